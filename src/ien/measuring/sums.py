"""Tallies: sums over images, batch after batch in float64, and the means and intervals that they give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups

__all__ = ["Diversity", "Predictions", "Tally", "interval_of_share"]

NORMAL_95 = 1.959964


class Tally:
    """Errors of each element and the variance of the maps they are errors of: Σ v and Σ v vᵀ over images,

    where v holds an image's error under each element, the mean of its map and the mean square of its map.
    """

    def __init__(self, elements: int) -> None:
        self.count = 0
        self.elements = elements
        self._first = torch.zeros(elements + 2, dtype=torch.float64, device="cpu")
        self._second = torch.zeros(elements + 2, elements + 2, dtype=torch.float64, device="cpu")

    def add(self, h: Tensor, errors: Mapping[int, Tensor]) -> None:
        """Maps ``h`` (B, …) and the error of each image (B,) under some elements; the others count as NaN."""
        variance, mean = _var_mean(full_precision(h), tuple(range(1, h.ndim)))
        rows = torch.full((len(h), self.elements + 2), math.nan, dtype=torch.float64, device="cpu")
        for i, error in errors.items():
            rows[:, i] = error.double().cpu()
        rows[:, -2] = mean = mean.double().cpu()
        rows[:, -1] = variance.double().cpu() + mean.square()
        self.count += len(h)
        self._first += rows.sum(0)
        self._second += rows.T @ rows

    @property
    def variance(self) -> float:
        mean, mean_square = (self._first[-2:] / self.count).tolist()
        return max(mean_square - mean**2, 0.0)

    def raw(self, elements: Sequence[int]) -> float:
        """The mean error over images and those of the elements that have one."""
        kept = self._measured(elements)
        return float(self._first[kept].mean()) / self.count if kept else math.nan

    def relative(self, elements: Sequence[int]) -> tuple[float, tuple[float, float]]:
        """The mean error over the variance, and its 95 % interval over images (a linearised ratio)."""
        # guarded in the scale of the maps: what varies less than this is constant but for rounding
        mean, mean_square = (self._first[-2:] / self.count).tolist()
        kept, variance = self._measured(elements), max(self.variance, 1e-9 * mean_square, 1e-300)
        if not kept:
            return math.nan, (math.nan, math.nan)
        ratio = self.raw(elements) / variance
        places = [*kept, self.elements, self.elements + 1]
        means = self._first[places] / self.count
        slope = means.new_tensor([1 / len(kept)] * len(kept) + [2 * mean * ratio, -ratio])
        covariance = self._second[places][:, places] / self.count - means.outer(means)
        spread = float(slope @ covariance @ slope) / max(self.count - 1, 1)
        margin = NORMAL_95 * math.sqrt(max(spread, 0.0)) / variance
        return ratio, (max(ratio - margin, 0.0), ratio + margin)

    def _measured(self, elements: Sequence[int]) -> list[int]:
        return [i for i in elements if not self._first[i].isnan()]


class Diversity:
    """How different the members of each feature group are: their variance over that of all they hold."""

    def __init__(self, feature_groups: FeatureGroups) -> None:
        self.feature_groups = feature_groups
        self._sums: list[Tensor] = []
        self._channels: Tensor | int = 0  # Σ mean and Σ mean square of each channel, (2, C)
        self._count = 0

    def add(self, h: Tensor) -> None:
        """Maps (B, C, H, W) before pooling."""
        self._count += len(h)
        h = full_precision(h)
        variance, mean = _var_mean(h, (2, 3))
        moments = torch.stack([mean.double(), variance.double() + mean.double().square()])  # (2, B, C)
        self._channels = self._channels + moments.sum(1).cpu()
        blocks = self.feature_groups.blocks(h.shape[1])
        channels = [n for _, n in blocks]
        parts = zip(h.split(channels, 1), moments.split(channels, 2), blocks, strict=True)
        for k, (part, of_channels, (size, _)) in enumerate(parts):
            members = part.unflatten(1, (-1, size))  # (B, N, size, H, W)
            within = _var_mean(members, (2,))[0].mean((2, 3))  # over members, pixel by pixel
            between = within * (size / (size - 1) if size > 1 else math.nan)
            rows = torch.stack([between.double(), *of_channels.unflatten(2, (-1, size)).mean(3)])  # (3, B, N)
            sums = rows.sum(1).cpu()
            if k == len(self._sums):
                self._sums.append(torch.zeros_like(sums))
            self._sums[k] += sums

    @property
    def constant(self) -> bool:
        """Whether no channel varies over images and pixels, but for rounding."""
        assert isinstance(self._channels, Tensor)
        mean, mean_square = self._channels / self._count
        return bool((mean_square - mean.square() <= 1e-9 * mean_square).all())

    @property
    def of_groups(self) -> Tensor:
        """One number for each feature group: 0 for copies, about 1 for unrelated members, NaN for size 1."""
        between, mean, mean_square = torch.cat(self._sums, 1) / self._count
        total = mean_square - mean.square()
        # members that are all constant are copies as well
        return torch.where(total > 1e-9 * mean_square, between / total, between * 0)


class Predictions:
    """Scores (B, classes) under each element: how much they change, how often the class does and is right."""

    def __init__(self, elements: int) -> None:
        self.tally = Tally(elements)
        self.flips = torch.zeros(elements, dtype=torch.float64, device="cpu")
        self.hits = torch.zeros(elements + 1, dtype=torch.float64, device="cpu")  # the last one: averaged

    def add(self, scores: Sequence[Tensor], labels: Tensor | None) -> None:
        first = scores[0]
        self.tally.add(first, {i: (s - first).square().mean(1) for i, s in enumerate(scores) if i})
        stacked = full_precision(torch.stack(list(scores)))  # (elements, B, classes)
        classes = _classes(stacked)
        self.flips += (classes != classes[0]).double().sum(1).cpu()
        if labels is not None:
            averaged = (stacked.softmax(2) if stacked.shape[2] > 1 else stacked).mean(0, keepdim=True)
            self.hits += (torch.cat([classes, _classes(averaged)]).cpu() == labels.cpu()).double().sum(1)


def interval_of_share(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was counted over ``count`` images.

    >>> [round(x, 3) for x in interval_of_share(0.5, 100)]
    [0.404, 0.596]
    """
    z = NORMAL_95**2 / count
    centre, margin = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    return max((centre - margin) / (1 + z), 0.0), min((centre + margin) / (1 + z), 1.0)


def _var_mean(h: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """torch.var_mean, without correction, in two passes: several times as fast on a CPU."""
    mean = h.mean(dims, keepdim=True)
    return (h - mean).square_().mean(dims), mean.squeeze(dims)


def _classes(scores: Tensor) -> Tensor:
    """The class of the largest score; a single score is that of the second of two classes."""
    return scores.argmax(2) if scores.shape[2] > 1 else (scores[..., 0] > 0).long()
