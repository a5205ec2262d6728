"""A group: a finite list of transformations, and what each does to images and to feature maps.

    φ_g^X x  =  group.act(x, g)                  on images
    φ_g^Y h  =  group.act_on_features(h, g)      on feature maps
                group.act_on_masks(y, g)         on targets: masks, boxes, points, vectors, angles

``g`` holds one element index for each image of a batch, or is one index for all of them: elements
are values that the caller keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from .._text import type_name
from .acting import (
    Planned,
    constant_in_a_trace,
    is_traced,
    transform,
    transform_all_traced,
    transform_traced,
)
from .devices import sent
from .elements import BlackBox, Element, composed, share_of_valid, similarities
from .similarity import ROUNDING, Mode, Similarity, check_sides, valid_pixels
from .targets import (
    check_floating,
    check_numbers,
    fits,
    move_angles,
    move_boxes,
    move_mask,
    move_points,
    move_vectors,
)

__all__ = ["MAX_ELEMENTS", "Group", "random_order"]

MAX_ELEMENTS = 1024
"""A larger group is a typing error: its elements could not be told apart on any image."""
MAX_LISTED_ELEMENTS = 12
"""A longer group shows only some of its elements when it is printed."""
INTEGER_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, repr=False)
class Group:
    """A finite set of transformations, with the identity at index 0.

    A value: frozen, equal and hashed by its elements. Make one with :func:`ien.rotation`,
    :func:`ien.reflection`, :func:`ien.scale`, :func:`ien.custom` or from text with
    :func:`ien.group`, and combine them with ``*``.

    >>> rotation(4).labels
    ('identity', '90°', '180°', '270°')
    >>> rotation(4).act(torch.arange(4.0).view(1, 1, 2, 2), torch.tensor([1])).tolist()
    [[[[1.0, 3.0], [0.0, 2.0]]]]
    """

    name: str = field(compare=False)
    """Its text form, such as rot4xflip."""
    elements: tuple[Element, ...]

    def __len__(self) -> int:
        return len(self.elements)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        labels = self.labels
        if len(self) > MAX_LISTED_ELEMENTS:
            labels = (*labels[:5], "…", labels[-1])
        return f"<Group {self.name}: {', '.join(labels)}>"

    def __mul__(self, other: Group) -> Group:
        """Every ``a∘b``, ``b`` acting first, ordered by ``a``; equal products are kept once."""
        if not isinstance(other, Group):
            return NotImplemented
        if len(self) * len(other) > MAX_ELEMENTS:
            raise ValueError(
                f"a group can have at most {MAX_ELEMENTS} elements; {self} times {other} has "
                f"{len(self)} × {len(other)}"
            )
        products: dict[Element, None] = {}
        for a in self.elements:
            for b in other.elements:
                products[composed(a, b)] = None
        return Group(f"{self}x{other}", tuple(products))

    @property
    def labels(self) -> tuple[str, ...]:
        """A short name for each element, such as ``90°``."""
        labels = []
        for element in self.elements:
            words = [step.label for step in reversed(element)]  # read like a∘b: b acts first
            labels.append(" ".join(words) or "identity")
        return tuple(labels)

    @property
    def exact(self) -> tuple[bool, ...]:
        """For each element, whether it only permutes the pixels of a square map."""
        exact = []
        for element in self.elements:
            exact.append(all(step.exact for step in element))  # the identity has no steps
        return tuple(exact)

    @property
    def matrices(self) -> Tensor:
        """The matrix of each element (x right, y up), float64 (n, 2, 2); black boxes have none."""
        rows = [self._similarity(i).matrix for i in range(len(self))]
        return torch.tensor(rows, dtype=torch.float64, device="cpu")

    def sample(
        self, n: int, generator: torch.Generator | None = None, include_identity: bool = False
    ) -> Tensor:
        """Draw one element for each of ``n`` images.

        All elements come equally often, each in one contiguous run, the runs in random order, so
        an exact quarter turn is one ``rot90`` of a slice. If ``n`` does not divide evenly, random
        elements get one image more.

        Args:
            n: Number of images.
            generator: Source of randomness; torch's global one by default.
            include_identity: Whether element 0 is drawn too.

        Returns:
            Element indices, int64 (n,) on the CPU.
        """
        first = 0 if include_identity else 1
        choices = len(self) - first
        if choices == 0:
            raise ValueError(f"group {self} has only the identity: there is nothing to draw")
        order = random_order(choices, generator) + first  # (choices,)
        # 0, 0, 0, 1, 1, 2, 2, …: each about equally often, in one run each
        place = (torch.arange(n, device="cpu") % choices).sort().values  # (n,)
        return order[place]

    def act(self, x: Tensor, g: Tensor | int, inverse: bool = False, mode: Mode = "bilinear") -> Tensor:
        """Transform image ``i`` by element ``g[i]``: φ_g^X x of the paper.

        Quarter turns and flips permute pixels, bit for bit. Everything else is resampled once, in
        one batch; what comes from outside of the image is 0.

        Args:
            x: Images (B, C, H, W).
            g: Element indices (B,), or one index for all images.
            inverse: Undo the elements instead. Black boxes have no inverse.
            mode: Interpolation, ``bilinear``, ``bicubic`` or ``nearest``.

        Returns:
            The transformed images, with the shape and memory format of ``x``.
        """
        return self._apply(x, g, inverse, mode, on_features=False)

    def act_on_features(
        self, h: Tensor, g: Tensor | int, inverse: bool = False, mode: Mode = "bilinear"
    ) -> Tensor:
        """Transform feature maps: φ_g^Y h of the paper.

        The same as :meth:`act` for rotation, flip and scale; for ``custom`` groups what was
        declared. It does not permute the members of feature groups.

        Args:
            h: Feature maps (B, C, H, W).
            g: Element indices (B,), or one index for all images.
            inverse: Undo the elements instead.
            mode: Interpolation, as in :meth:`act`.

        Returns:
            The transformed maps, with the shape and memory format of ``h``.
        """
        return self._apply(h, g, inverse, mode, on_features=True)

    def act_on_masks(
        self, masks: Tensor, g: Tensor | int, ignore: float = 255, inverse: bool = False
    ) -> Tensor:
        """Transform masks, the targets of segmentation, as :meth:`act` transforms their images.

        Each pixel takes the value of the nearest one, so no new classes appear; quarter turns and
        flips permute pixels, bit for bit. Tell your loss to skip ``ignore``, as in
        ``F.cross_entropy(scores, masks, ignore_index=255)``.

        Do not use it for maps with values in between, such as depth: :meth:`act` interpolates them.

        Args:
            masks: Class numbers (B, H, W) of any number type, or several maps per image
                (B, …, H, W).
            g: Element indices (B,), or one index for all images.
            ignore: What pixels get whose source lies outside of the mask, such as corners at 45°.
            inverse: Undo the elements instead.

        Returns:
            The transformed masks, of the same shape and type.

        Raises:
            ValueError: The type of the masks cannot hold ``ignore``, or an element is custom.

        >>> rotation(4).act_on_masks(torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([1])).tolist()
        [[[1, 3], [0, 2]]]
        """
        if masks.ndim < 3:
            raise ValueError(f"masks must have shape (B, H, W), one for each image; got {tuple(masks.shape)}")
        if not all(self.exact) and not fits(ignore, masks.dtype):
            raise ValueError(
                f"masks of {masks.dtype} cannot hold ignore={ignore!r}, which marks unknown pixels under "
                f"{self}: pass masks.long(), or another value"
            )
        g = self._check_elements(len(masks), g)
        size = masks.shape[-2:]
        count = masks[:1].numel() // max(1, size.numel())  # maps of an image
        maps = masks.reshape(len(masks), count, *size)  # (B, …, H, W) -> (B, C, H, W)
        moved = maps.clone()
        for i in g.unique().tolist():
            # places and not a mask: a GPU would have to tell how many places a mask has
            places = sent((g == i).nonzero().flatten(), maps.device)  # (images of the element,)
            of_element = maps.index_select(0, places)
            step = self._target_step(i, inverse)
            moved.index_copy_(0, places, move_mask(of_element, step, ignore))
        return moved.view(masks.shape)

    def act_on_points(
        self, points: Tensor, g: Tensor | int, size: tuple[int, int], inverse: bool = False
    ) -> Tensor:
        """Transform points (x, y), such as keypoints, as :meth:`act` transforms their images.

        Do not use it for corners of boxes, which lie between pixels: see :meth:`act_on_boxes`.

        Args:
            points: In pixels, (B, 2) or (B, …, 2) in floating point: the centre of the pixel
                ``image[y, x]`` is (x, y), with y down.
            g: Element indices (B,), or one index for all images.
            size: Height and width of the images.
            inverse: Undo the elements instead.

        Returns:
            The transformed points, which may lie outside of the image.

        >>> corner, g = torch.tensor([[8.0, 0.0]]), torch.tensor([1])
        >>> rotation(4).act_on_points(corner, g, (9, 9)).tolist()
        [[0.0, 0.0]]
        """
        check_numbers(points, "points", ("x", "y"))
        height, width = size
        centre = ((width - 1) / 2, (height - 1) / 2)
        return move_points(points, self._target_steps(points, g, inverse, size), centre)

    def act_on_boxes(
        self, boxes: Tensor, g: Tensor | int, size: tuple[int, int], inverse: bool = False
    ) -> Tensor:
        """Transform boxes (x1, y1, x2, y2) as :meth:`act` transforms their images.

        The result is the smallest upright box around the transformed one: exact for quarter turns
        and flips, larger otherwise. It is not cut at the border of the image. Do not undo it with
        ``inverse`` where elements resample: the box grows a second time.

        Args:
            boxes: In pixels, (B, 4) or (B, …, 4) in floating point: the box around
                ``image[y1:y2, x1:x2]``, so the whole image is (0, 0, W, H).
            g: Element indices (B,), or one index for all images.
            size: Height and width of the images.
            inverse: Undo the elements instead.

        Returns:
            The transformed boxes.

        >>> boxes, g = torch.tensor([[6.0, 0, 9, 1]]), torch.tensor([1])
        >>> rotation(4).act_on_boxes(boxes, g, (9, 9)).tolist()
        [[0.0, 0.0, 1.0, 3.0]]
        """
        check_numbers(boxes, "boxes", ("x1", "y1", "x2", "y2"))
        height, width = size
        centre = (width / 2, height / 2)
        return move_boxes(boxes, self._target_steps(boxes, g, inverse, size), centre)

    def act_on_vectors(self, vectors: Tensor, g: Tensor | int, inverse: bool = False) -> Tensor:
        """Transform vectors (dx, dy), such as offsets and velocities, as differences of points.

        Do not use it for maps of vectors (B, 2, H, W), whose pixels move as well: move those with
        :meth:`act` and put the channels last for this.

        Args:
            vectors: (B, 2) or (B, …, 2) in floating point, dx to the right and dy down.
            g: Element indices (B,), or one index for all images.
            inverse: Undo the elements instead.

        Returns:
            The transformed vectors; a scaling changes their length.

        >>> rotation(4).act_on_vectors(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).tolist()
        [[0.0, -1.0]]
        """
        check_numbers(vectors, "vectors", ("dx", "dy"))
        return move_vectors(vectors, self._target_steps(vectors, g, inverse))

    def act_on_angles(self, angles: Tensor, g: Tensor | int, inverse: bool = False) -> Tensor:
        """Transform angles in degrees, such as orientations, as the directions they stand for.

        Do not use it as it is for lines without a direction: take the result ``% 180``.

        Args:
            angles: In degrees, counter-clockwise from the x axis, (B,) or (B, …) in floating point.
                On the screen 90 points up, so the vector of an angle is (cos, -sin).
            g: Element indices (B,), or one index for all images.
            inverse: Undo the elements instead.

        Returns:
            The transformed angles, from 0 to 360.

        >>> rotation(4).act_on_angles(torch.tensor([30.0, -30.0]), torch.tensor([1, 0])).tolist()
        [120.0, 330.0]
        """
        if angles.ndim == 0:
            raise ValueError("angles must have shape (B, …), an entry for each image; got ()")
        check_floating(angles, "angles")
        return move_angles(angles, self._target_steps(angles, g, inverse))

    def valid(self, h: Tensor, g: Tensor) -> Tensor | None:
        """Return where ``act(h, g)`` is made of pixels of ``h`` alone.

        A pixel is valid if all its bilinear neighbours lie in the map, so this holds for the
        default mode; ``bicubic`` reads one pixel further on each side. Black boxes count as valid
        everywhere.

        Args:
            h: Maps (B, C, H, W); only their shape matters.
            g: Element indices (B,).

        Returns:
            A bool mask (B, 1, H, W), or None if every pixel of every image is valid.
        """
        height, width = h.shape[-2:]
        if is_traced():
            # a mean over neighbours is 1 only if all of them lie in the map
            # in float64, as valid_pixels does: in float32 a mean of ones can be 1 - 1e-6
            ones = torch.ones(len(h), 1, height, width, dtype=torch.float64, device=h.device)
            return self.act(ones, g) > 1 - ROUNDING  # (B, 1, H, W)
        elements, place = self._indices(h, g).unique(return_inverse=True)
        masks = []
        for i in elements.tolist():
            masks.append(valid_pixels(similarities(self.elements[i]), height, width, h.device))
        if all(mask is None for mask in masks):
            return None
        everywhere = torch.ones(1, height, width, dtype=torch.bool, device=h.device)
        filled = []
        for mask in masks:
            filled.append(everywhere if mask is None else mask)  # (1, H, W)
        return torch.stack(filled)[sent(place, h.device)]  # (B, 1, H, W)

    def coverage(self, size: tuple[int, int]) -> tuple[float, ...]:
        """Return the share of valid pixels on a map of ``size`` (H, W), for each element."""
        shares = []
        for element in self.elements:
            shares.append(share_of_valid(similarities(element), *size))
        return tuple(shares)

    @property
    def _resamples(self) -> bool:
        """Whether an element resamples pixels; can be asked in a trace, unlike ``exact``."""
        return any(step.resamples for step in _plan(self, False))

    def _similarity(self, i: int) -> Similarity:
        """Element ``i`` as one similarity."""
        match self.elements[i]:
            case ():
                return Similarity()
            case (Similarity() as only,):
                return only
        raise ValueError(f"{self.labels[i]!r} of {self} is a black box: it has no matrix and no inverse")

    def _target_step(self, i: int, inverse: bool) -> Similarity:
        """What element ``i`` does to targets."""
        for step in self.elements[i]:
            if isinstance(step, BlackBox):
                raise ValueError(
                    f"{self.labels[i]!r} of {self} is your own function of images, so what it does to "
                    f"targets is not known: transform them yourself, or repeat them if they stay as they are"
                )
        similarity = self._similarity(i)
        return similarity.inverse if inverse else similarity

    def _target_steps(
        self, targets: Tensor, g: Tensor | int, inverse: bool, size: tuple[int, int] | None = None
    ) -> list[Similarity]:
        """What the element of each image does to its targets, in images of ``size``.

        One step if all images have the same element.
        """
        if isinstance(g, int):
            elements = [self._check_element(g)]  # an export must not see the number of images
        else:
            elements = self._check_elements(len(targets), g).tolist()
        steps = []
        for i in elements:
            step = self._target_step(i, inverse)
            if size is not None:
                check_sides(step, *size)
            steps.append(step)
        return steps

    def _indices(self, x: Tensor, g: Tensor) -> Tensor:
        """Check that ``g`` holds one element for each image of ``x``, and return it on the CPU."""
        _check_maps(self, x)
        return self._check_elements(len(x), g)

    def _check_elements(self, count: int, g: Tensor | int) -> Tensor:
        """Check that ``g`` holds an element for each of ``count`` images; return it on the CPU.

        Elements are drawn and kept there: they decide which operations run, and asking a GPU would
        wait for all that it does. That happens only if a caller's ``g`` is on a GPU. What depends
        on them is sent, a few numbers for each image.
        """
        if isinstance(g, int):
            g = torch.full((count,), self._check_element(g), device="cpu")
        g = torch.as_tensor(g, device="cpu")
        if g.shape != (count,) or g.dtype not in INTEGER_TYPES:
            raise ValueError(
                f"g must be an integer tensor ({count},), one element index for each image; "
                f"got {g.dtype} of shape {tuple(g.shape)}"
            )
        if len(g) and not (0 <= int(g.min()) and int(g.max()) < len(self)):
            raise ValueError(
                f"{self} has elements 0 to {len(self) - 1}; g has {int(g.min())} to {int(g.max())}"
            )
        return g

    def _check_element(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise ValueError(f"{self} has elements 0 to {len(self) - 1}; got {i}")
        return i

    def _apply(self, x: Tensor, g: Tensor | int, inverse: bool, mode: Mode, on_features: bool) -> Tensor:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is one of {', '.join(get_args(Mode))}; got {mode!r}")
        _check_maps(self, x)
        if is_traced() and isinstance(g, int):
            i = self._check_element(g)
            return transform_all_traced(x, _plan(self, inverse)[i], self.elements[i], mode, on_features)
        if is_traced():
            g = torch.as_tensor(g, device=x.device)
            return transform_traced(x, g, _plan(self, inverse), self.elements, mode, on_features)

        def steps_of(i: int) -> Element:
            if inverse:
                return (self._similarity(i).inverse,)
            return self.elements[i]

        return transform(x, self._check_elements(len(x), g), steps_of, mode, on_features)


@constant_in_a_trace
def _plan(group: Group, inverse: bool) -> list[Planned]:
    """Plan what each element does to pixels, for a trace that sees only the result."""
    identity = Similarity().matrix
    plan = []
    for i, steps in enumerate(group.elements):
        if not inverse and any(isinstance(step, BlackBox) for step in steps):
            plan.append(Planned(False, False, 0, False, identity))
            continue
        step = group._similarity(i)
        if inverse:
            step = step.inverse
        if step.exact:
            plan.append(Planned(True, False, step.quarters, step.flip, identity))
        else:
            plan.append(Planned(True, True, 0, step.flip, step.inverse.matrix))
    return plan


def random_order(n: int, generator: torch.Generator | None) -> Tensor:
    """Return 0 to ``n`` - 1 in random order, on the CPU wherever the generator is."""
    if generator is None:
        return torch.randperm(n, device="cpu")
    # of a generator on a GPU this waits: give one on the CPU
    return torch.randperm(n, generator=generator, device=generator.device).cpu()


def _check_maps(group: Group, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"group {group} acts on tensors (B, C, H, W); got {type_name(x)}")
    if x.ndim != 4:
        raise ValueError(f"group {group} acts on maps of shape (B, C, H, W); got {tuple(x.shape)}")
