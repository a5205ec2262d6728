"""Before and after: what a model and its adapted versions do under every element of a group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from .._text import columns
from ..groups.families import group as named_group
from ..groups.group import Group
from ..measuring.inputs import Images, checked_batches, device_of, eval_mode
from .outputs import only_tensor

__all__ = ["Comparison", "Version", "compare"]

TIMED_ROUNDS = 5
"""How often each version is timed, in turns; the fastest pass counts."""
TIMED_IMAGES = 8


@dataclass
class Version:
    """What one version of a model does with the images; all shares are from 0 to 1."""

    agreement: dict[str, float] = field(default_factory=dict)
    """Element → the share of images that this version predicts as it does upright."""
    all_agree: float = 0.0
    """The share of images (or pixels) predicted alike under all elements."""
    like_original: float = 0.0
    """The share of upright images that are predicted as by the first version."""
    accuracy: dict[str, float] = field(default_factory=dict)
    """Element → the share of images predicted right; empty without labels."""
    cost: float = 1.0
    """The time of a forward pass, in those of the first version."""


@dataclass
class Comparison:
    """What :func:`compare` returns; prints as a table."""

    group: Group
    num_images: int
    versions: dict[str, Version]

    def __str__(self) -> str:
        versions = self.versions.values()
        labels = self.group.labels
        rows = [["", *self.versions]]
        rows.append(["same answer under all", *[f"{version.all_agree:.1%}" for version in versions]])
        for label in labels[1:]:
            rows.append(
                [f"same answer at {label}", *[f"{version.agreement[label]:.1%}" for version in versions]]
            )
        rows.append(["as the original, upright", *[f"{version.like_original:.1%}" for version in versions]])
        if all(version.accuracy for version in versions):
            rows.append(["right upright", *[f"{version.accuracy[labels[0]]:.1%}" for version in versions]])
            for label in labels[1:]:
                rows.append(
                    [f"right at {label}", *[f"{version.accuracy[label]:.1%}" for version in versions]]
                )
        rows.append(["time of a pass", *[f"{version.cost:.2f}" for version in versions]])
        title = f"{self.num_images} images under {self.group}"
        return "\n".join([title, *columns(rows)])

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.versions)} under {self.group}, {self.num_images} images>"


def compare(
    models: Mapping[str, nn.Module],
    images: Images,
    group: Group | str,
    labels: Tensor | None = None,
    outputs: Literal["scores", "map"] = "scores",
    batch_size: int = 32,
) -> Comparison:
    """Compare versions of a model on images and on their transformed copies.

    For models that classify images, or pixels. For anything else use :func:`ien.measure`.

    Args:
        models: Name → model, the original first. They return scores (B, classes), or maps of them
            (B, classes, n, n).
        images: Images in their usual orientation, a tensor (N, C, n, n), or batches.
        group: The transformations.
        labels: The right classes (N,), or masks (N, n, n), for the accuracy.
        outputs: ``"map"`` if the models return maps: pixels are compared then, rotated back.
        batch_size: Images per batch, if ``images`` is a tensor.

    Raises:
        ValueError: There are no models or images, labels do not fit, or a model does not return
            scores.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    >>> averaged = ien.GroupAverage(net, "rot4")
    >>> result = compare({"as it is": net, "averaged": averaged}, torch.rand(8, 3, 8, 8), "rot4")
    >>> result.versions["averaged"].all_agree
    1.0
    """
    named = named_group(group)
    if not models:
        raise ValueError('there is nothing to compare: pass {"original": model, …}')
    predicted: dict[str, list[Tensor]] = {name: [] for name in models}  # (|G|, B, …) of each batch
    x = None
    for x in checked_batches(images, batch_size):
        for name, model in models.items():
            with eval_mode(model), torch.inference_mode():
                predicted[name].append(_under_all(model, x, named, outputs))
    if x is None:
        raise ValueError("there are no images to compare on")
    found = {name: torch.cat(parts, dim=1) for name, parts in predicted.items()}  # (|G|, N, …)
    seconds = _seconds(models, x[:TIMED_IMAGES])
    original = next(iter(models))
    _, *needed = found[original].shape
    if labels is not None and labels.shape != tuple(needed):
        raise ValueError(f"labels must have the shape {tuple(needed)}; got {tuple(labels.shape)}")

    versions = {}
    for name, classes in found.items():
        upright = classes[0]
        version = Version()
        version.all_agree = _share((classes == upright).all(0))
        version.like_original = _share(upright == found[original][0])
        version.cost = seconds[name] / seconds[original]
        for label, row in zip(named.labels, classes, strict=True):
            version.agreement[label] = _share(row == upright)
            if labels is not None:
                version.accuracy[label] = _share(row == labels.cpu())
        versions[name] = version
    return Comparison(named, needed[0], versions)


def _under_all(model: nn.Module, x: Tensor, group: Group, outputs: Literal["scores", "map"]) -> Tensor:
    """The class predicted under each element, (|G|, B), or rotated back (|G|, B, n, n)."""
    x = x.to(device_of(model, x.device))
    dims = 2 if outputs == "scores" else 4
    rows = []
    for element in range(len(group)):
        g = torch.full((len(x),), element)
        scores = only_tensor(model(group.act(x, g)))
        if scores.ndim != dims or len(scores) != len(x):
            needed = "(B, classes)" if outputs == "scores" else "(B, classes, n, n)"
            raise ValueError(
                f"the model should return scores {needed} for {len(x)} images; got {tuple(scores.shape)}: "
                f'wrap it in a module that does, or pass outputs="map" for maps'
            )
        classes = scores.argmax(1)  # (B,) or (B, n, n)
        if outputs == "map":
            classes = group.act_on_masks(classes, g, inverse=True)
        rows.append(classes.cpu())
    return torch.stack(rows)


def _seconds(models: Mapping[str, nn.Module], x: Tensor) -> dict[str, float]:
    """The time of a forward pass of each model, the fastest of several."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(TIMED_ROUNDS):
        for name, model in models.items():
            images = x.to(device_of(model, x.device))
            with eval_mode(model), torch.inference_mode():
                started = time.perf_counter()
                only_tensor(model(images)).cpu()  # waits for a GPU to finish
                times[name].append(time.perf_counter() - started)
    return {name: min(taken) for name, taken in times.items()}


def _share(true: Tensor) -> float:
    return float(true.double().mean())
