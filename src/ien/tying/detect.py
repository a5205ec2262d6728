"""Seen: from maps of an image and its transformed copies to the feature groups that turned with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, channel_table, num_channels, regular_sizes
from ..loss.error import full_precision, image_errors
from ..loss.feature_groups import FeatureGroups

__all__ = ["Seen", "Views"]

TOLERANCE = 1e-4
"""Relative errors below are rounding, also with TF32: the least that a wrong grid costs is far above."""


class Seen(NamedTuple):
    """Feature groups whose members an element permutes as it turns their maps."""

    blocks: Blocks
    exact: float
    """The largest relative error under quarter turns and flips."""
    between: float | None
    """The mean relative error under all other elements, which resample."""


class Views:
    """Images under every element of a group in one batch, and what can be told from maps of these."""

    def __init__(self, group: Group, specs: Sequence[FeatureGroups]) -> None:
        self.group = group
        self.specs = list(dict.fromkeys(specs))
        self.swaps_sides = bool(group.matrices[:, 0, 1].any())
        self.count = 0  # images and their copies
        self._recent: deque[tuple[Tensor, int, Seen | None]] = deque(maxlen=4)

    def of(self, x: Tensor) -> Tensor:
        """``x`` (B, C, H, W) under all elements, one after another, the identity first."""
        views = [self.group.act(x, self._element(i, len(x))) for i in range(len(self.group))]
        if all(bool((view - x).square().mean() <= 1e-3 * x.var(unbiased=False)) for view in views):
            raise ValueError(
                f"input looks the same under all of {self.group}, so that nothing can be seen to turn: "
                f"give images, or noise such as torch.rand{tuple(x.shape)}"
            )
        images = torch.cat(views)
        self.count = len(images)
        self._recent.append((images, images._version, Seen(((1, x.shape[1]),), 0.0, None)))  # never members
        return images

    def look(self, h: Tensor, given: Blocks = ()) -> Seen | None:
        """The feature groups that maps of the views turn in; None if they turn in none.

        First come those ``given`` to the layer, then those seen last, which decide where maps are constant,
        those that are known, single maps, and a mix read off one by one, as in joined maps.
        """
        if len(h) % len(self.group) or (self.swaps_sides and h.shape[2] != h.shape[3]):
            return None
        for maps, version, seen in self._recent:  # what a layer returns mostly comes into the next
            if maps.is_set_to(h) and version == h._version:
                return seen
        best = self._judge(h, given) if num_channels(given) == h.shape[1] else None
        if best is None:
            found = filter(None, (self._judge(h, blocks) for blocks in self._candidates(h.shape[1])))
            best = next(found, None) if all(self.group.exact) else min(found, key=_rank, default=None)
        best = best or self._read(h)
        self._recent.append((h, h._version, best))
        return best

    def error(self, h: Tensor) -> float:
        """How far maps are from turning in known feature groups or as single maps: the relative error."""
        if len(h) % len(self.group) or (self.swaps_sides and h.shape[2] != h.shape[3]):
            return float("nan")
        errors = (self._errors(h, blocks) / _scale(h) for blocks in self._candidates(h.shape[1]))
        return min(float(each.max()) for each in errors)

    def _candidates(self, channels: int) -> list[Blocks]:
        last = [seen.blocks for _, _, seen in reversed(self._recent) if seen is not None]
        known = [tuple(spec.blocks(channels)) for spec in self.specs if spec.nearest(channels) == channels]
        every = (*last, *known, ((1, channels),))
        return list(dict.fromkeys(blocks for blocks in every if num_channels(blocks) == channels))

    def _read(self, h: Tensor) -> Seen | None:
        found: list[int] = []
        scale = _scale(h)
        while (at := sum(found)) < h.shape[1]:
            fitting = [size for size in regular_sizes(self.group) if at + size <= h.shape[1]]
            ends = [(size, slice(at, at + size)) for size in fitting]
            here = [self._judge(h[:, part], ((size, size),), scale[part]) for size, part in ends]
            best = min(filter(None, here), key=_rank, default=None)
            if best is None:
                return None
            found.append(best.blocks[0][0])
        return self._judge(h, tuple((size, size * len(list(run))) for size, run in groupby(found)))

    def _judge(self, h: Tensor, blocks: Blocks, scale: Tensor | None = None) -> Seen | None:
        errors, scale = self._errors(h, blocks), _scale(h) if scale is None else scale
        if not (errors / scale).max() < TOLERANCE:
            return None
        # told over the variance of all channels together, as relative errors are elsewhere
        together = scale.mean() + full_precision(h).mean((0, 2, 3)).var(unbiased=False)
        between = [
            image_errors(maps, h_g, self.group, g).mean() / together
            for maps, h_g, g in self._compared(h, blocks, exact=False)
        ]
        mean = float(torch.stack(between).nanmean()) if between else None
        return Seen(blocks, float((errors.mean(1) / together).max()), mean)

    def _errors(self, h: Tensor, blocks: Blocks) -> Tensor:
        """The mean square error of each channel under each exact element but the identity, (elements, C)."""
        errors = [
            (h_g - self.group.act_on_features(maps, g)).square().mean((0, 2, 3))
            for maps, h_g, g in self._compared(h, blocks, exact=True)
        ]
        return torch.stack(errors)

    def _compared(self, h: Tensor, blocks: Blocks, exact: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Maps with the members that an element moves, those of the images under it, and the element."""
        table = channel_table(self.group, blocks).to(h.device)
        first, *others = full_precision(h).chunk(len(self.group))
        for i, h_g in enumerate(others, start=1):
            if self.group.exact[i] == exact:
                yield first[:, table[i]], h_g, self._element(i, len(first))

    @staticmethod
    def _element(i: int, count: int) -> Tensor:
        return torch.full((count,), i, device="cpu")


def _scale(h: Tensor) -> Tensor:
    """The variance within each channel, (C,), and so much of the maps that rounding is small beside it."""
    eps = max(torch.finfo(h.dtype).eps, 2**-11 * h.is_cuda)  # that of TF32
    h = full_precision(h)
    least = max(1e-6, eps**2 / TOLERANCE) * h.square().mean()
    return h.var((0, 2, 3), unbiased=False) + least + torch.finfo(h.dtype).tiny


def _rank(seen: Seen) -> float:
    """Quarter turns alone cannot tell some sizes apart, as 2 and 1 under rot8; other elements can."""
    return max(seen.between or 0.0, TOLERANCE)
