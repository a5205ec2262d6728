"""The model and its files side by side: how far they differ, and how equivariant each is.

All of them see the same images under every element of a group. For a model f and its file f̃

    difference        =  max | f̃(g·x) - f(g·x) |  /  max | f(g·x) |      over images and elements
    error of g        =  mean of ( f̃(g·x) - g·f̃(x) )²  /  variance of f̃(x)

where g·f̃(x) is f̃(x) for scores, and the rotated map for maps. 0 means equivariant.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..adapting.outputs import Kind, act_on_outputs
from ..groups.group import Group
from ..loss.error import MIN_VARIANCE, image_errors
from ..loss.modules import tensors_in

__all__ = ["Version", "Views", "compare_versions", "difference", "run_under_all"]

BATCH_SIZE = 32
TIMED_ROUNDS = 5
"""How often each version is timed, in turns; the fastest pass counts."""
TIMED_IMAGES = 8

Views = list[list[Tensor]]
"""What a model returns under each element of a group: its tensors (N, …)."""


@dataclass(frozen=True)
class Version:
    """What the model, or a file of it, does with the images; all shares are from 0 to 1."""

    difference: float
    """The largest difference from the model, as a share of the model's largest output."""
    errors: dict[str, float]
    """Element → the relative error of what is returned; 0: equivariant, about 2: unrelated."""
    same: float | None
    """The share of images (or pixels) in the class that the model says; None without classes."""
    agreement: float | None
    """The share of images in the same class under all elements; None for maps."""
    accuracy: float | None
    """The share of images classified right; None without labels."""
    accuracy_under_group: float | None
    """The same over the images under all elements."""
    cost: float
    """The time of a pass, in those of the model."""


def run_under_all(model: nn.Module, images: Tensor, group: Group | None) -> Views:
    """Run a model on images under every element of a group; as they are if there is none."""
    found = []
    with torch.inference_mode():
        for k in range(len(group) if group is not None else 1):
            batches = []
            for x in images.split(BATCH_SIZE):
                view = x
                if group is not None:
                    view = group.act(x, torch.full((len(x),), k))
                batches.append(list(tensors_in(model(view))))
            # a list of tensors for each batch -> a list of batches for each tensor
            found.append([torch.cat(parts) for parts in zip(*batches, strict=True)])
    return found


def difference(found: Views, expected: Views) -> float:
    """Return the largest difference from what is expected, as a share of the largest that is.

    NaN if anything is not finite; infinite if there are other tensors than expected.
    """
    largest = 0.0
    for i in range(len(expected[0])):
        change = scale = 0.0
        for tensors, others in zip(expected, found, strict=True):
            if len(others) != len(tensors) or others[i].shape != tensors[i].shape:
                return math.inf
            gap = (others[i].double() - tensors[i].double()).abs().max()
            if not gap.isfinite():
                return math.nan
            change = max(change, float(gap))
            scale = max(scale, float(tensors[i].double().abs().max()))
        if change > 0:
            largest = max(largest, change / max(scale, MIN_VARIANCE))
    return largest


def compare_versions(
    versions: Mapping[str, tuple[nn.Module, Views]],
    images: Tensor,
    labels: Tensor | None,
    group: Group | None,
    kinds: Sequence[Kind],
) -> dict[str, Version]:
    """Compare versions of a model, the model itself first.

    Args:
        versions: Name → the module, and what it returns for the images under each element.
        images: (N, C, H, W).
        labels: The right classes (N,), if known.
        group: The transformations, if any.
        kinds: How each tensor that they return changes with the image.
    """
    modules = {}
    for name, (module, _) in versions.items():
        modules[name] = module
    seconds = _seconds(modules, images[:TIMED_IMAGES])
    first = next(iter(versions))
    _, expected = versions[first]
    classes = _classes(expected, images)

    compared = {}
    for name, (_, found) in versions.items():
        own = _classes(found, images)
        same = agreement = accuracy = under_group = None
        if own is not None and classes is not None:
            same = _share(own[0] == classes[0])
            if own[0].ndim == 1:
                agreement = _share((torch.stack(own) == own[0]).all(0))  # (|G|, N) -> (N,)
        if own is not None and labels is not None:
            right = [_share(row == labels) for row in own]
            accuracy, under_group = right[0], statistics.fmean(right)
        compared[name] = Version(
            difference=difference(found, expected),
            errors=_errors(found, images, group, kinds),
            same=same,
            agreement=agreement,
            accuracy=accuracy,
            accuracy_under_group=under_group,
            cost=seconds[name] / seconds[first],
        )
    return compared


def _errors(found: Views, images: Tensor, group: Group | None, kinds: Sequence[Kind]) -> dict[str, float]:
    """Return the relative error under each element but the identity: that of the worst tensor."""
    errors: dict[str, float] = {}
    if group is None:
        return errors
    height, width = images.shape[-2:]
    for k in range(1, len(group)):
        g = torch.full((len(images),), k)
        worst = 0.0
        for value, value_g, kind in zip(found[0], found[k], kinds, strict=True):
            value, value_g = value.double(), value_g.double()
            if kind == "map":
                error = image_errors(value, value_g, group, g).mean()
            else:
                change = value_g - act_on_outputs(value, kind, group, g, (height, width))
                if kind == "angles":
                    change = (change + 180) % 360 - 180  # 359° is 1° away from 0°
                error = change.square().mean()
            variance = value.var(unbiased=False).clamp(min=MIN_VARIANCE)
            worst = max(worst, float(error / variance))
        errors[group.labels[k]] = worst
    return errors


def _classes(found: Views, images: Tensor) -> list[Tensor] | None:
    """Return the class of each image (N,) or pixel (N, H, W) under each element, if it has any."""
    scores = found[0][0]
    of_images = scores.ndim == 2 and scores.shape[1] > 1
    # maps as large as the images; smaller ones are features
    of_pixels = scores.ndim == 4 and scores.shape[1] > 1 and scores.shape[2:] == images.shape[2:]
    if not of_images and not of_pixels:
        return None
    return [tensors[0].argmax(1) for tensors in found]


def _seconds(models: Mapping[str, nn.Module], x: Tensor) -> dict[str, float]:
    """Return the time of a forward pass of each model, the fastest of several."""
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for model in models.values():
            model(x)  # the first pass is slower
        for _ in range(TIMED_ROUNDS):
            for name, model in models.items():
                started = time.perf_counter()
                model(x)
                times[name].append(time.perf_counter() - started)
    return {name: min(taken) for name, taken in times.items()}


def _share(true: Tensor) -> float:
    return float(true.double().mean())
