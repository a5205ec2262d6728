"""Seen: from maps of an image and its transformed copies to the feature groups that turned with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ._compare import full_precision, image_errors
from ._feature_groups import FeatureGroups
from ._groups import Group
from ._regular import Blocks, channels_moved, sizes

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
        self.exact = torch.tensor(group.exact[1:], device="cpu")
        self.swaps_sides = bool(group.matrices[:, 0, 1].any())
        self._recent: deque[tuple[Tensor, int, Seen | None]] = deque(maxlen=4)

    def of(self, x: Tensor) -> Tensor:
        """``x`` (B, C, H, W) under all elements, one after another, the identity first."""
        views = [self.group.act(x, self._element(i, len(x))) for i in range(len(self.group))]
        if all(bool((view - x).square().mean() <= 1e-3 * x.var(unbiased=False)) for view in views):
            raise ValueError(
                f"input looks the same under all of {self.group}, so that nothing can be seen to turn: "
                f"give images, or noise such as torch.rand{tuple(x.shape)}"
            )
        return torch.cat(views)

    def look(self, h: Tensor) -> Seen | None:
        """The feature groups that maps of the views turn in; None if they turn in none.

        Those that are known come first, then single maps, then a mix read off one by one, as in joined maps.
        """
        if len(h) % len(self.group) or (self.swaps_sides and h.shape[2] != h.shape[3]):
            return None
        for maps, version, seen in self._recent:  # what a layer returns mostly comes into the next
            if maps.is_set_to(h) and version == h._version:
                return seen
        found = filter(None, (self._judge(h, blocks) for blocks in self._candidates(h.shape[1])))
        best = next(found, None) if self.exact.all() else min(found, key=_rank, default=None)
        best = best or self._read(h)
        self._recent.append((h, h._version, best))
        return best

    def error(self, h: Tensor) -> float:
        """How far maps are from turning in known feature groups or as single maps: the relative error."""
        if len(h) % len(self.group) or (self.swaps_sides and h.shape[2] != h.shape[3]):
            return float("nan")
        return min(float(self._errors(h, b)[self.exact].max()) for b in self._candidates(h.shape[1]))

    def _candidates(self, channels: int) -> Iterator[Blocks]:
        for spec in self.specs:
            if spec.nearest(channels) == channels:
                yield tuple(spec.blocks(channels))
        yield ((1, channels),)

    def _read(self, h: Tensor) -> Seen | None:
        found: list[int] = []
        scale = _scale(h)
        while (at := sum(found)) < h.shape[1]:
            fitting = [size for size in sizes(self.group) if at + size <= h.shape[1]]
            here = [self._judge(h[:, at : at + size], ((size, size),), scale) for size in fitting]
            best = min(filter(None, here), key=_rank, default=None)
            if best is None:
                return None
            found.append(best.blocks[0][0])
        return self._judge(h, tuple((size, size * len(list(run))) for size, run in groupby(found)))

    def _judge(self, h: Tensor, blocks: Blocks, scale: Tensor | None = None) -> Seen | None:
        errors = self._errors(h, blocks, scale)
        exact, between = errors[self.exact], errors[~self.exact]
        worst = float(exact.max())
        return (
            Seen(blocks, worst, float(between.nanmean()) if len(between) else None)
            if worst < TOLERANCE
            else None
        )

    def _errors(self, h: Tensor, blocks: Blocks, scale: Tensor | None = None) -> Tensor:
        """The relative error of each element but the identity, on the CPU."""
        table = channels_moved(self.group, blocks).to(h.device)
        first, *others = h.chunk(len(self.group))
        errors = [
            image_errors(first[:, table[i]], h_g, self.group, self._element(i, len(first))).mean()
            for i, h_g in enumerate(others, start=1)
        ]
        return (torch.stack(errors) / (_scale(h) if scale is None else scale)).cpu()

    @staticmethod
    def _element(i: int, count: int) -> Tensor:
        return torch.full((count,), i, device="cpu")


def _scale(h: Tensor) -> Tensor:
    """The variance of maps, and so much of their mean that rounding is small where they are constant."""
    h = full_precision(h)
    return h.var(unbiased=False) + 1e-6 * h.square().mean() + torch.finfo(h.dtype).tiny


def _rank(seen: Seen) -> float:
    """Quarter turns alone cannot tell some sizes apart, as 2 and 1 under rot8; other elements can."""
    return max(seen.between or 0.0, TOLERANCE)
