"""Groups: from element indices to transformed images and feature maps, and where these are defined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import groupby
from numbers import Integral
from operator import mul
from typing import Literal, get_args

import torch
from torch import Tensor

from .._text import nearest
from .elements import Action, BlackBox, Element, compose, coverage, pixel_steps, take_step, unchanged
from .similarity import Mode, Similarity, resample, valid_pixels

__all__ = ["Group", "custom", "group", "reflection", "rotation", "scale"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, repr=False)
class Group:
    """A finite set of transformations, the identity at index 0: a value, equal and hashed by its elements.

    An index tensor ``g`` of shape (B,) says which element transforms which image.

    >>> rotation(4).labels
    ('identity', '90°', '180°', '270°')
    >>> rotation(4).act(torch.arange(4.0).view(1, 1, 2, 2), torch.tensor([1])).tolist()
    [[[[1.0, 3.0], [0.0, 2.0]]]]
    """

    name: str = field(compare=False)
    elements: tuple[Element, ...]

    def __len__(self) -> int:
        return len(self.elements)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        shown = self.labels if len(self) <= 12 else (*self.labels[:5], "…", self.labels[-1])
        return f"<Group {self.name}: {', '.join(shown)}>"

    def __mul__(self, other: Group) -> Group:
        """Every ``a∘b``, ``b`` acting first, ordered by ``a``; of equal elements only the first is kept."""
        if not isinstance(other, Group):
            return NotImplemented
        composed = (compose(a, b) for a in self.elements for b in other.elements)
        return Group(f"{self}x{other}", tuple(dict.fromkeys(composed)))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(" ".join(step.label for step in reversed(e)) or "identity" for e in self.elements)

    @property
    def exact(self) -> tuple[bool, ...]:
        """For each element, whether it only permutes the pixels of a square map: quarter turns and flips."""
        return tuple(all(step.exact for step in element) for element in self.elements)

    @property
    def matrices(self) -> Tensor:
        """What each element does to a point (x right, y up): float64 (n, 2, 2). Black boxes have none."""
        rows = [self._similarity(i).matrix for i in range(len(self))]
        return torch.tensor(rows, dtype=torch.float64, device="cpu")

    def sample(
        self, n: int, generator: torch.Generator | None = None, include_identity: bool = False
    ) -> Tensor:
        """Draw elements for ``n`` images: all equally often, each in one contiguous run, the runs shuffled.

        Where ``n`` does not divide evenly, random elements get one more. Returns int64 (n,) on the CPU.
        """
        first = 0 if include_identity else 1
        choices = len(self) - first
        if choices == 0:
            raise ValueError(f"group {self} has one element, the identity: there is nothing to draw")
        order = random_order(choices, generator) + first
        return order[(torch.arange(n, device="cpu") % choices).sort().values]

    def act(self, x: Tensor, g: Tensor, inverse: bool = False, mode: Mode = "bilinear") -> Tensor:
        """Transform image ``i`` of ``x`` (B, C, H, W) by element ``g[i]``; what is unknown becomes 0.

        Quarter turns and flips permute pixels, bit for bit; all else is resampled once, in one batch.
        """
        return self._apply(x, g, inverse, mode, on_features=False)

    def act_on_features(self, h: Tensor, g: Tensor, inverse: bool = False, mode: Mode = "bilinear") -> Tensor:
        """:meth:`act` for feature maps: the same for rotation, flip and scale, as declared for ``custom``."""
        return self._apply(h, g, inverse, mode, on_features=True)

    def valid(self, h: Tensor, g: Tensor) -> Tensor | None:
        """Where ``act(h, g)`` is made of pixels of ``h`` alone: bool (B, 1, H, W), or None for everywhere.

        A pixel is valid when all its bilinear neighbours lie in the map: this is for the default mode, and
        ``bicubic`` reads one pixel further on each side. Black boxes are taken as valid.
        """
        indices, place = self._indices(h, g).unique(return_inverse=True)
        steps = [pixel_steps(self.elements[i]) for i in indices.tolist()]
        masks = [valid_pixels(s, h.shape[-2], h.shape[-1], h.device) for s in steps]
        if all(mask is None for mask in masks):
            return None
        everywhere = torch.ones(1, *h.shape[-2:], dtype=torch.bool, device=h.device)
        return torch.stack([everywhere if m is None else m for m in masks])[place.to(h.device)]

    def coverage(self, size: tuple[int, int]) -> tuple[float, ...]:
        """The share of valid pixels on a map of (H, W), for each element."""
        return tuple(coverage(pixel_steps(element), *size) for element in self.elements)

    def _similarity(self, i: int) -> Similarity:
        match self.elements[i]:
            case ():
                return Similarity()
            case (Similarity() as only,):
                return only
        raise ValueError(f"{self.labels[i]!r} of {self} is a black box: it has no matrix and no inverse")

    def _indices(self, x: Tensor, g: Tensor) -> Tensor:
        """``g`` as a tensor on the CPU, after a check that it holds one element for each image of ``x``."""
        if x.ndim != 4:
            raise ValueError(f"group {self} acts on maps of shape (B, C, H, W); got {tuple(x.shape)}")
        g = torch.as_tensor(g, device="cpu")
        if g.shape != x.shape[:1] or g.dtype not in _INTEGERS:
            raise ValueError(
                f"g must be an integer tensor ({len(x)},), one element index for each image; "
                f"got {g.dtype} of shape {tuple(g.shape)}"
            )
        if len(g) and not (0 <= int(g.min()) and int(g.max()) < len(self)):
            raise ValueError(
                f"{self} has elements 0 to {len(self) - 1}; g has {int(g.min())} to {int(g.max())}"
            )
        return g

    def _apply(self, x: Tensor, g: Tensor, inverse: bool, mode: Mode, on_features: bool) -> Tensor:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is one of {', '.join(get_args(Mode))}; got {mode!r}")
        g = self._indices(x, g)
        runs = _runs(g)
        if len(runs) == len({i for i, _ in runs}):
            result = self._apply_to_runs(x, runs, inverse, mode, on_features)
        else:
            order = g.argsort(stable=True)
            together = x.index_select(0, order.to(x.device))
            result = self._apply_to_runs(together, _runs(g[order]), inverse, mode, on_features)
            result = result.index_select(0, order.argsort().to(x.device))
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return result.contiguous(memory_format=torch.channels_last) if channels_last else result

    def _apply_to_runs(
        self, x: Tensor, runs: list[tuple[int, int]], inverse: bool, mode: Mode, on_features: bool
    ) -> Tensor:
        """``runs`` are (element, number of images), each element once."""
        if not runs:
            return x.clone()
        parts = list(x.split([n for _, n in runs]))  # one backward for all runs, unlike slices
        resampled: dict[int, Similarity] = {}
        for k, (i, _) in enumerate(runs):
            steps: Element = (self._similarity(i).inverse,) if inverse else self.elements[i]
            match steps:
                case (Similarity(exact=False) as only,):
                    resampled[k] = only
                case _:
                    for step in steps:
                        parts[k] = take_step(step, parts[k], mode, on_features)
        if resampled:
            lengths = [len(parts[k]) for k in resampled]
            done = resample(torch.cat([parts[k] for k in resampled]), [*resampled.values()], lengths, mode)
            for k, part in zip(resampled, done.split(lengths), strict=True):
                parts[k] = part
        return torch.cat(parts)


def rotation(n: int) -> Group:
    """``n`` equidistant rotations, counter-clockwise: ``rotation(4)`` is the paper's R4.

    >>> rotation(8).labels[1]
    '45°'
    """
    if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
        raise ValueError(f"rotation(n) needs a whole number of rotations, at least 1; got {n!r}")
    n = int(n)
    return _group_of(f"rot{n}", (Similarity(turn=Fraction(k, n)) for k in range(1, n)))


def reflection(axis: Literal["horizontal", "vertical"] = "horizontal") -> Group:
    """The identity and one flip; ``axis`` is the direction reversed: ``horizontal`` swaps left and right."""
    if axis not in ("horizontal", "vertical"):
        raise ValueError(f"axis is 'horizontal' (swaps left and right) or 'vertical'; got {axis!r}")
    name, half = ("vflip", 1) if axis == "vertical" else ("flip", 0)
    return _group_of(name, [Similarity(turn=Fraction(half, 2), flip=True)])


def scale(factors: float | Iterable[float]) -> Group:
    """The identity and one scaling about the centre for each factor; below 1 shrinks the content.

    >>> str(scale([0.7, 0.84]))
    'scale0.7,0.84'
    """
    if isinstance(factors, str):
        raise TypeError(
            f'scale takes numbers, as in scale([0.7, 0.84]); for text use group("scale{factors}")'
        )
    values = [float(f) for f in (factors if isinstance(factors, Iterable) else [factors])]
    if bad := [f for f in values if not 1e-30 <= f <= 1e30]:
        raise ValueError(
            f"scale factors must be positive numbers such as 0.7, from 1e-30 to 1e30; "
            f"got {bad[0]!r} among {values}"
        )
    kept = list(dict.fromkeys(f for f in values if f != 1))
    if not kept:
        raise ValueError(f"scale needs a factor other than 1 (the identity is always there); got {values}")
    text = ",".join(repr(f).removesuffix(".0") for f in kept)
    return _group_of(f"scale{text}", (Similarity(scale=Fraction(repr(f))) for f in kept))


def custom(
    name: str,
    actions: Mapping[str, Action],
    feature_actions: Literal["identity", "same"] | Mapping[str, Literal["identity", "same"] | Action],
) -> Group:
    """Your own transformations: the identity and an element for each named function of (n, C, H, W) images.

    ``feature_actions`` says what each does to feature maps: ``"identity"`` (layers shall be invariant),
    ``"same"`` (the same function), or a mapping that says it for every action by name.

    >>> custom("negative", {"invert": lambda x: 1 - x}, feature_actions="identity").labels
    ('identity', 'invert')
    """
    if isinstance(feature_actions, str):
        feature_actions = dict.fromkeys(actions, feature_actions)
    if not actions or set(feature_actions) != set(actions):
        raise ValueError(
            f"group {name!r} needs at least one action, and feature_actions that name every one of them; "
            f"got actions {sorted(actions)} and feature_actions {sorted(feature_actions)}"
        )
    elements = []
    for label, action in actions.items():
        given = feature_actions[label]
        on_features = {"identity": unchanged, "same": action}.get(given) if isinstance(given, str) else given
        if not callable(action) or not callable(on_features):
            raise ValueError(
                f"action {label!r} of group {name!r} must be a function of an image batch, and what it "
                f"does to features 'identity', 'same' or a function; got {action!r} and {given!r}"
            )
        elements.append(BlackBox(label, action, on_features))
    return _group_of(name, elements)


def group(text: str | Group) -> Group:
    """Read a group's text form: ``rot8``, ``flip``, ``vflip``, ``scale0.7,0.84``, products as ``rot4xflip``.

    ``r4``, ``r8`` and ``r4r`` are the paper's names. ``str(group)`` gives the text back.

    >>> group("r4r") == rotation(4) * reflection()
    True
    """
    if isinstance(text, Group):
        return text
    if not isinstance(text, str):
        raise TypeError(f"a group is written as text such as rot4xflip; got {text!r}")
    return reduce(mul, (_parse(part, text) for part in text.strip().lower().split("x")))


def _parse(part: str, text: str) -> Group:
    if found := re.fullmatch(r"(?:rot|r)(\d+)", part):
        return rotation(int(found[1]))
    if found := re.fullmatch(r"r(\d+)r", part):
        return rotation(int(found[1])) * reflection()
    if part in ("flip", "vflip"):
        return reflection("vertical" if part == "vflip" else "horizontal")
    if found := re.fullmatch(r"scale([\d.e+-]+(?:,[\d.e+-]+)*)", part):
        try:
            return scale([float(f) for f in found[1].split(",")])
        except ValueError as error:
            raise ValueError(f"cannot read group {text!r}: {error}") from None
    raise ValueError(
        f"cannot read group {text!r}: {part!r} is none of rot<n>, flip, vflip, scale<factor>,<factor>; "
        f"join them with x, as in rot4xflip; {nearest(part, ['rot4', 'rot8', 'flip', 'vflip', 'scale0.7'])}"
    )


def random_order(n: int, generator: torch.Generator | None) -> Tensor:
    device = generator.device if generator is not None else "cpu"
    return torch.randperm(n, generator=generator, device=device).cpu()


def _runs(g: Tensor) -> list[tuple[int, int]]:
    """(element, number of images) of each run of equal elements."""
    return [(i, len(list(run))) for i, run in groupby(g.tolist())]


def _group_of(name: str, steps: Iterable[Similarity | BlackBox]) -> Group:
    return Group(name, ((), *((step,) for step in steps)))
