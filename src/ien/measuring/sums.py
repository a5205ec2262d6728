"""Running sums over images, in float64, and the means and confidence intervals that follow.

Batches are added one at a time and then forgotten: memory does not grow with the number of images.
Numbers go to the CPU before they become float64, which not every device has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups
from .intervals import NORMAL_95, Interval

__all__ = ["DiversitySums", "ErrorSums", "PredictionSums", "mean_of_known"]

MIN_VARIANCE_SHARE = 1e-9
"""Values whose variance is a smaller share of their mean square are constant up to rounding."""
MIN_VARIANCE = 1e-300
"""Maps of zeros have this variance, so that their errors, which are 0, can be divided by it."""


class ErrorSums:
    """Errors of images under each element of a group, and the variance of the maps compared.

    Every image gives a vector v: its error under each element, and the mean and mean square of its
    map. Σ v and Σ v vᵀ over images are kept. They give the mean errors, the variance of all values
    of the maps, and how much the ratio of the two would vary with other images.

    Args:
        num_elements: How many elements the group has, the identity included.
    """

    def __init__(self, num_elements: int) -> None:
        self.count = 0
        # where the entries of v are: errors first, then the mean and the mean square of the map
        self._mean = num_elements
        self._mean_square = num_elements + 1
        self._entries = num_elements + 2
        self._sum = _zeros(self._entries)
        self._outer_sum = _zeros(self._entries, self._entries)

    def add(self, h: Tensor, errors: Mapping[int, Tensor]) -> None:
        """Add one batch.

        Args:
            h: The maps (B, …) of the original images.
            errors: Index of an element -> error of each image (B,). Elements left out count as NaN.
        """
        every_dim_but_first = tuple(range(1, h.ndim))
        variance, mean = _var_mean(full_precision(h), every_dim_but_first)  # (B,) each
        variance = _precise(variance)
        mean = _precise(mean)

        v = _zeros(len(h), self._entries)  # a row for each image
        v.fill_(math.nan)
        for element, error in errors.items():
            v[:, element] = _precise(error)
        v[:, self._mean] = mean
        v[:, self._mean_square] = variance + mean.square()

        self.count += len(h)
        self._sum += v.sum(0)
        self._outer_sum += v.T @ v

    def merge(self, other: ErrorSums) -> None:
        """Add the sums over other images."""
        self.count += other.count
        self._sum += other._sum
        self._outer_sum += other._outer_sum

    @property
    def variance(self) -> float:
        """The variance of all values of the maps: over images, channels and pixels."""
        mean, mean_square = self._map_means()
        return max(mean_square - mean**2, 0.0)

    def raw(self, elements: Sequence[int]) -> float:
        """Return the mean error over images and over the elements that leave a valid pixel."""
        measured = self._measured(elements)
        if not measured:
            return math.nan
        return float(self._sum[measured].mean()) / self.count

    def relative(self, elements: Sequence[int]) -> tuple[float, Interval]:
        """Return the mean error divided by the variance, and its 95 % confidence interval.

        With the mean error e, and the mean m and mean square q of the maps, the ratio is

            r = e / (q - m²)    and, for small changes,    dr = (de + 2 m r dm - r dq) / (q - m²).

        With slope = (1, 2 m r, -r) and the covariance C of (e, m, q) over n images, r therefore has
        the standard error √(slopeᵀ C slope / (n - 1)) / (q - m²).
        """
        measured = self._measured(elements)
        if not measured:
            return math.nan, (math.nan, math.nan)

        mean, mean_square = self._map_means()
        # a lower bound in the scale of the maps, so that rounding errors are not divided by about 0
        variance = max(self.variance, MIN_VARIANCE_SHARE * mean_square, MIN_VARIANCE)
        ratio = self.raw(elements) / variance

        entries = [*measured, self._mean, self._mean_square]
        means = self._sum[entries] / self.count
        mean_of_products = self._outer_sum[entries][:, entries] / self.count
        covariance = mean_of_products - means.outer(means)
        share = 1 / len(measured)  # e is the mean of the errors under the elements measured
        slope = [share] * len(measured)
        slope.append(2 * mean * ratio)
        slope.append(-ratio)

        along = means.new_tensor(slope)
        spread = float(along @ covariance @ along)
        squared_error = spread / max(self.count - 1, 1)
        squared_error = max(squared_error, 0.0)  # rounding may leave -1e-30 where all images agree
        margin = NORMAL_95 * math.sqrt(squared_error) / variance
        low = max(ratio - margin, 0.0)
        return ratio, (low, ratio + margin)

    def _map_means(self) -> tuple[float, float]:
        """Return the mean and the mean square of all values of the maps."""
        means = self._sum / self.count
        mean = float(means[self._mean])
        mean_square = float(means[self._mean_square])
        return mean, mean_square

    def _measured(self, elements: Sequence[int]) -> list[int]:
        return [element for element in elements if not self._sum[element].isnan()]


class DiversitySums:
    """How different the channels of each feature group are from each other.

    The diversity of a feature group is

        mean over images and pixels of (variance over its channels) / (variance of all its values),

    0 if the channels are equal, about 1 if they are unrelated.

    Args:
        feature_groups: How the channels of the layer are partitioned.
    """

    def __init__(self, feature_groups: FeatureGroups) -> None:
        self.feature_groups = feature_groups
        self._count = 0
        # the first batch broadcasts these to their full width
        self._group_sums = _zeros(3, 1)
        self._channel_sums = _zeros(2, 1)

    def add(self, h: Tensor) -> None:
        """Add one batch of maps (B, C, H, W), before pooling."""
        h = full_precision(h)
        variance, mean = _var_mean(h, (2, 3))  # (B, C) each, over pixels
        mean = _precise(mean)
        mean_square = _precise(variance) + mean.square()
        moments = torch.stack([mean, mean_square])  # (2, B, C)

        self._count += len(h)
        self._channel_sums = self._channel_sums + moments.sum(1)  # (2, C)
        self._group_sums = self._group_sums + self._sums_of_groups(h, moments)  # (3, groups)

    def merge(self, other: DiversitySums) -> None:
        """Add the sums over other images."""
        self._count += other._count
        self._channel_sums = self._channel_sums + other._channel_sums
        self._group_sums = self._group_sums + other._group_sums

    @property
    def constant(self) -> bool:
        """Whether no channel varies over images and pixels, up to rounding."""
        mean, mean_square = self._channel_sums / self._count
        variance = mean_square - mean.square()
        return bool((variance <= MIN_VARIANCE_SHARE * mean_square).all())

    @property
    def of_groups(self) -> Tensor:
        """The diversity of each feature group, (groups,); NaN for those of size 1."""
        over_channels, mean, mean_square = self._group_sums / self._count
        variance = mean_square - mean.square()
        varies = variance > MIN_VARIANCE_SHARE * mean_square
        # channels that are all constant count as equal: 0, or NaN for a single one
        no_diversity = over_channels * 0
        return torch.where(varies, over_channels / variance, no_diversity)

    def _sums_of_groups(self, h: Tensor, moments: Tensor) -> Tensor:
        """Return, summed over a batch: variance over channels, mean, mean square; (3, groups)."""
        sums = []
        first = 0
        for size, channels in self.feature_groups.blocks(h.shape[1]):
            # all feature groups of one size lie side by side
            maps = h.narrow(1, first, channels)  # (B, channels, H, W)
            block_moments = moments.narrow(2, first, channels)  # (2, B, channels)
            first += channels

            members = maps.unflatten(1, (-1, size))  # (B, groups, size, H, W)
            over_channels, _ = _var_mean(members, (2,))  # (B, groups, H, W)
            over_channels = over_channels.mean((2, 3))  # (B, groups)
            over_channels *= _unbiased(size)

            moments_of_members = block_moments.unflatten(2, (-1, size))  # (2, B, groups, size)
            mean, mean_square = moments_of_members.mean(3)  # (B, groups) each
            block = torch.stack([_precise(over_channels), mean, mean_square])  # (3, B, groups)
            sums.append(block.sum(1))  # (3, groups)
        return torch.cat(sums, dim=1)  # (3, all groups)


class PredictionSums:
    """How a classifier's scores and classes change under each element, and how often it is right.

    Args:
        num_elements: How many elements the group has, the identity included.
    """

    def __init__(self, num_elements: int) -> None:
        self.errors = ErrorSums(num_elements)
        self.flips = _zeros(num_elements)
        self.agreeing = 0.0
        """Images whose class is the same under all elements."""
        self.hits = _zeros(num_elements)
        self.averaged_hits = 0.0

    def add(self, scores: Sequence[Tensor], labels: Tensor | None) -> None:
        """Add one batch.

        Args:
            scores: The scores (B, classes) under each element, the identity first.
            labels: The right classes (B,), if they are known.
        """
        original = scores[0]
        errors = {}
        for element in range(1, len(scores)):
            change = scores[element] - original
            errors[element] = change.square().mean(1)  # (B,)
        self.errors.add(original, errors)

        stacked = full_precision(torch.stack(list(scores)))  # (elements, B, classes)
        classes = _classes(stacked).cpu()  # (elements, B)
        changed = classes != classes[0]
        self.flips += changed.double().sum(1)
        self.agreeing += float((~changed.any(0)).sum())
        if labels is None:
            return

        labels = labels.cpu()
        right = classes == labels
        self.hits += right.double().sum(1)
        if stacked.shape[2] > 1:
            stacked = stacked.softmax(2)
        averaged = stacked.mean(0, keepdim=True)  # (1, B, classes)
        averaged_right = _classes(averaged).cpu() == labels
        self.averaged_hits += float(averaged_right.sum())

    def merge(self, other: PredictionSums) -> None:
        """Add the sums over other images."""
        self.errors.merge(other.errors)
        self.flips += other.flips
        self.agreeing += other.agreeing
        self.hits += other.hits
        self.averaged_hits += other.averaged_hits


def mean_of_known(values: Iterable[float]) -> float | None:
    """Return the mean of the values that are not NaN, or None if there are none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return math.fsum(known) / len(known)


def _zeros(*shape: int) -> Tensor:
    """Return zeros in float64 on the CPU, whatever torch's default dtype and device are."""
    return torch.zeros(shape, dtype=torch.float64, device="cpu")


def _precise(values: Tensor) -> Tensor:
    """Return values of any device in float64 on the CPU."""
    return values.cpu().double()


def _var_mean(h: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Do what torch.var_mean(correction=0) does, in two passes: several times as fast on a CPU."""
    mean = h.mean(dims, keepdim=True)
    deviation = h - mean
    variance = deviation.square_().mean(dims)
    return variance, mean.squeeze(dims)


def _unbiased(size: int) -> float:
    """Return n / (n - 1), which makes a sample variance unbiased; NaN for a sample of one."""
    if size == 1:
        return math.nan
    return size / (size - 1)


def _classes(scores: Tensor) -> Tensor:
    """Return the class with the largest score; of a single score, whether it is above 0."""
    if scores.shape[2] == 1:
        return (scores[..., 0] > 0).long()
    return scores.argmax(2)
