"""Before and after: what a model and its adapted versions do under every element of a group.

What names classes is compared by its classes. Of anything else, with y = f(x) of the upright image,

    error of g            =  mean of ( g⁻¹ · f(g · x) - y )²   /  variance of y
    difference, upright   =  mean of ( y - y of the original )²  /  variance of y of the original
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._text import columns, html_table, number
from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.error import MIN_VARIANCE
from ..loss.modules import tensors_in
from ..measuring.inputs import Images, checked_batches, device_of, eval_mode, try_model
from .outputs import Kind, Kinds, act_on_outputs, check_kinds, kinds_in, only_tensor

__all__ = ["Comparison", "Version", "check_labels", "compare", "try_under_all"]

TIMED_ROUNDS = 5
"""How often each version is timed, in turns; the fastest pass counts."""
TIMED_IMAGES = 8


@dataclass
class Version:
    """What one version of a model does with the images; all shares are from 0 to 1.

    Models that name classes have shares; all others have errors, where 0 is equivariant and 2 or
    more unrelated.
    """

    agreement: dict[str, float] = field(default_factory=dict)
    """Element → the share of images that this version predicts as it does upright."""
    all_agree: float = 0.0
    """The share of images (or pixels) predicted alike under all elements."""
    like_original: float = 0.0
    """The share of upright images that are predicted as by the first version."""
    accuracy: dict[str, float] = field(default_factory=dict)
    """Element → the share of images predicted right; empty without labels."""
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    """Key of what is returned ("" if it has none) → element → relative error."""
    differences: dict[str, float] = field(default_factory=dict)
    """Key → relative difference from what the first version returns for upright images."""
    cost: float = 1.0
    """The time of a forward pass, in those of the first version."""


@dataclass
class Comparison:
    """What :func:`compare` returns; prints as a table."""

    group: Group
    num_images: int
    versions: dict[str, Version]

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self.rows()), *self._notes()])

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.versions)} under {self.group}, {self._count()}>"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self.rows(), self._notes())

    def rows(self) -> list[list[str]]:
        """Return the table as text: a column for each version."""
        versions = list(self.versions.values())
        labels = self.group.labels
        rows = [["", *self.versions]]
        if versions[0].errors:
            rows += self._rows_of_errors()
        else:
            rows.append(["same answer under all", *[f"{version.all_agree:.1%}" for version in versions]])
            for label in labels[1:]:
                shares = [f"{version.agreement[label]:.1%}" for version in versions]
                rows.append([f"same answer at {label}", *shares])
            shares = [f"{version.like_original:.1%}" for version in versions]
            rows.append(["as the original, upright", *shares])
        if all(version.accuracy for version in versions):
            rows.append(["right upright", *[f"{version.accuracy[labels[0]]:.1%}" for version in versions]])
            for label in labels[1:]:
                shares = [f"{version.accuracy[label]:.1%}" for version in versions]
                rows.append([f"right at {label}", *shares])
        rows.append(["time of a pass", *[f"{version.cost:.2f}" for version in versions]])
        return rows

    def _rows_of_errors(self) -> list[list[str]]:
        versions = list(self.versions.values())
        rows = []
        for key in versions[0].errors:
            of_key = f" of {key}" if key else ""
            for label in self.group.labels[1:]:
                errors = [number(version.errors[key][label]) for version in versions]
                rows.append([f"error{of_key} at {label}", *errors])
            differences = [number(version.differences[key]) for version in versions]
            rows.append([f"difference{of_key} from the original, upright", *differences])
        return rows

    def _title(self) -> str:
        return f"{self._count()} under {self.group}"

    def _count(self) -> str:
        return "1 image" if self.num_images == 1 else f"{self.num_images} images"

    def _notes(self) -> list[str]:
        if any(version.errors for version in self.versions.values()):
            return ["errors are shares of the variance between images: 0 is equivariant, 2 or more unrelated"]
        return []


def compare(
    models: Mapping[str, nn.Module],
    images: Images,
    group: Group | str,
    labels: Tensor | None = None,
    outputs: Kinds = "scores",
    batch_size: int = 32,
) -> Comparison:
    """Compare versions of a model on images and on their transformed copies.

    Models that classify images, or pixels, are compared by the classes that they name, and all
    others by the relative error of what they return. For single layers use :func:`ien.measure`.

    Args:
        models: Name → model, the original first.
        images: Images in their usual orientation, a tensor (N, C, n, n), or batches.
        group: The transformations.
        labels: The right classes (N,), or masks (N, n, n), for the accuracy.
        outputs: What the models return, as in :class:`GroupAverage`: scores (B, classes), maps of
            them (B, classes, n, n), whose pixels are compared, or anything else.
        batch_size: Images per batch, if ``images`` is a tensor.

    Raises:
        ValueError: There are no models or images, labels do not fit, or a model does not return
            what ``outputs`` says, or returns NaN or infinity.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    >>> averaged = ien.GroupAverage(net, "rot4")
    >>> result = compare({"as it is": net, "averaged": averaged}, torch.rand(8, 3, 8, 8), "rot4")
    >>> result.versions["averaged"].all_agree
    1.0
    """
    named = named_group(group)
    check_kinds(outputs)
    if not models:
        raise ValueError('there is nothing to compare: pass {"original": model, …}')
    original, *_ = models
    tally: _Classes | _Numbers | None = None
    x = None
    for x in checked_batches(images, batch_size):
        if tally is None:
            classes = _num_classes(original, models[original], x[:1], outputs)
            if labels is not None:
                check_labels(labels, classes, outputs)
            tally = _Numbers(named, outputs) if classes is None else _Classes(named, outputs)
        for name, model in models.items():
            with eval_mode(model), torch.inference_mode():
                tally.add(name, model, x)
    if tally is None or x is None:
        raise ValueError("there are no images to compare on")
    versions = tally.versions(original, labels)
    seconds = _seconds(models, x[:TIMED_IMAGES])
    for name, version in versions.items():
        version.cost = seconds[name] / seconds[original]
    return Comparison(named, tally.num_images, versions)


def try_under_all(model: nn.Module, x: Tensor, group: Group, outputs: Kinds) -> int | None:
    """Run a model on a few images, as :func:`compare` does, before anything takes long.

    Args:
        model: The original.
        x: The images (B, C, n, n).
        group: The transformations.
        outputs: What it returns.

    Returns:
        The number of classes that it tells apart; None if it does not name classes.

    Raises:
        ValueError: It cannot be compared.
    """
    check_kinds(outputs)
    classes = _num_classes("original", model, x[:1], outputs)
    tally = _Numbers(group, outputs) if classes is None else _Classes(group, outputs)
    with eval_mode(model), torch.inference_mode():
        tally.add("original", model, x)
    return classes


def check_labels(labels: Tensor, classes: int | None, outputs: Kinds) -> None:
    """Raise a ValueError if these cannot be the classes of images or pixels.

    Args:
        labels: (N,), or masks (N, n, n), which may have other numbers for pixels to ignore.
        classes: How many the model knows; None if it does not name classes.
        outputs: What it returns.
    """
    if classes is None:
        raise ValueError(f"labels are for models that name classes; with outputs={outputs!r} leave them out")
    if outputs != "scores" or len(labels) == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(
            f"labels name class {wrong}, but the model returns {classes} scores, for classes 0 to "
            f"{classes - 1}"
        )


def _num_classes(name: str, model: nn.Module, x: Tensor, outputs: Kinds) -> int | None:
    """How many classes a model tells apart; None if it does not name classes."""
    if outputs not in ("scores", "map"):
        return None
    with eval_mode(model), torch.inference_mode():
        scores = _scores(name, model, x, outputs)
    classes = scores.shape[1]
    if outputs == "map" and classes == 1:
        return None  # a depth, or how likely one class is: the largest of one number says nothing
    return classes


def _scores(name: str, model: nn.Module, x: Tensor, outputs: Kinds) -> Tensor:
    """What a model returns for images, as scores (B, classes) or a map of them."""
    scores = only_tensor(try_model(model, x))
    dims = 2 if outputs == "scores" else 4
    if scores.ndim != dims or len(scores) != len(x) or (outputs == "scores" and scores.shape[1] < 2):
        needed = "(B, classes)" if outputs == "scores" else "(B, classes, n, n)"
        raise ValueError(
            f"the model should return scores {needed}; for images {tuple(x.shape)} it returns "
            f'{tuple(scores.shape)}: say what that is, outputs="map", "boxes", … (in the shell: --outputs '
            f"map), or wrap it in a module that returns scores"
        )
    # a score of minus infinity rules a class out; if the largest is infinite, there is no answer
    _check_finite(name, scores.amax(1))
    return scores


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        raise ValueError(
            f"{name!r} answers with NaN or infinity: look at its weights, and at the range of the images"
        )


class _Classes:
    """Which classes the versions of a model name for images, or for their pixels."""

    def __init__(self, group: Group, outputs: Kinds) -> None:
        self.group = group
        self.outputs = outputs
        self._predicted: dict[str, list[Tensor]] = {}  # (|G|, B, …) of each batch

    @property
    def num_images(self) -> int:
        batches = next(iter(self._predicted.values()))
        return sum(batch.shape[1] for batch in batches)

    def add(self, name: str, model: nn.Module, x: Tensor) -> None:
        """Predict the images of a batch under each element; masks are rotated back."""
        x = x.to(device_of(model, x.device))
        rows = []
        for element in range(len(self.group)):
            moved = self.group.act(x, element)
            classes = _scores(name, model, moved, self.outputs).argmax(1)  # (B,) or (B, n, n)
            if self.outputs == "map":
                classes = self.group.act_on_masks(classes, element, inverse=True)
            rows.append(classes.cpu())
        self._predicted.setdefault(name, []).append(torch.stack(rows))

    def versions(self, original: str, labels: Tensor | None) -> dict[str, Version]:
        """Count how often the predictions are alike, and right."""
        found = {name: torch.cat(batches, dim=1) for name, batches in self._predicted.items()}  # (|G|, N, …)
        _, *needed = found[original].shape
        if labels is not None and labels.shape != tuple(needed):
            raise ValueError(f"labels must have the shape {tuple(needed)}; got {tuple(labels.shape)}")
        versions = {}
        for name, classes in found.items():
            upright = classes[0]
            version = Version()
            version.all_agree = _share((classes == upright).all(0))
            version.like_original = _share(upright == found[original][0])
            for label, row in zip(self.group.labels, classes, strict=True):
                version.agreement[label] = _share(row == upright)
                if labels is not None:
                    version.accuracy[label] = _share(row == labels.cpu())
            versions[name] = version
        return versions


class _Numbers:
    """What the versions of a model return, if it is not classes."""

    def __init__(self, group: Group, outputs: Kinds) -> None:
        self.group = group
        self.outputs = outputs
        self._upright: dict[str, list[dict[str, Tensor]]] = {}  # what each batch gives
        self._squares: dict[str, dict[str, Tensor]] = {}  # name -> key -> sums over images (|G|,)

    @property
    def num_images(self) -> int:
        batches = next(iter(self._upright.values()))
        return sum(len(next(iter(batch.values()))) for batch in batches)

    def add(self, name: str, model: nn.Module, x: Tensor) -> None:
        """Run the images of a batch under each element, and rotate what comes back."""
        x = x.to(device_of(model, x.device))
        height, width = x.shape[-2:]
        squares = self._squares.setdefault(name, {})
        upright: dict[str, Tensor] = {}
        for element in range(len(self.group)):
            g = torch.full((len(x),), element)
            returned = try_model(model, self.group.act(x, g))
            back = act_on_outputs(returned, self.outputs, self.group, g, (height, width), inverse=True)
            for key, values in _by_key(back, self.outputs).items():
                _check_finite(name, values)
                if element == 0:
                    upright[key] = values
                sums = squares.setdefault(key, torch.zeros(len(self.group), dtype=torch.float64))
                sums[element] += (values - upright[key]).square().sum()
        self._upright.setdefault(name, []).append(upright)

    def versions(self, original: str, labels: Tensor | None) -> dict[str, Version]:
        """Relate the sums to how much the answers differ between images."""
        expected = self._whole(original)
        versions = {}
        for name, squares in self._squares.items():
            version = Version()
            found = self._whole(name)
            for key, values in found.items():
                errors = squares[key] / values.numel() / _variance(values)  # (|G|,)
                version.errors[key] = dict(zip(self.group.labels, errors.tolist(), strict=True))
                gap = (values - expected[key]).square().mean()
                version.differences[key] = float(gap / _variance(expected[key]))
            versions[name] = version
        return versions

    def _whole(self, name: str) -> dict[str, Tensor]:
        """What a version returns for all upright images, by key."""
        batches = self._upright[name]
        return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def _by_key(returned: Any, outputs: Kinds) -> dict[str, Tensor]:
    """Return the tensors of what a model returned by key, as numbers whose differences count."""
    tensors = list(tensors_in(returned))
    if not tensors:
        raise ValueError(f"the model should return tensors; it returned a {type(returned).__name__}")
    keys = [str(i) for i in range(len(tensors))]
    if len(tensors) == 1:
        keys = [""]
    if isinstance(returned, Mapping):
        keys = []
        for key, value in returned.items():
            inside = len(list(tensors_in(value)))
            keys += [str(key)] if inside == 1 else [f"{key} {i}" for i in range(inside)]
    found = {}
    for key, tensor, kind in zip(keys, tensors, kinds_in(returned, outputs), strict=True):
        found[key] = _comparable(tensor.double().cpu(), kind)
    return found


def _comparable(values: Tensor, kind: Kind) -> Tensor:
    if kind == "scores":
        return values.softmax(1)  # scores mean the same with a number added to all of them
    if kind == "angles":
        radians = values.deg2rad()
        return torch.stack([radians.cos(), radians.sin()], dim=-1)  # 359° is close to 1°
    return values


def _variance(values: Tensor) -> Tensor:
    return values.var(unbiased=False).clamp(min=MIN_VARIANCE)


def _seconds(models: Mapping[str, nn.Module], x: Tensor) -> dict[str, float]:
    """The time of a forward pass of each model, the fastest of several."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(TIMED_ROUNDS):
        for name, model in models.items():
            images = x.to(device_of(model, x.device))
            with eval_mode(model), torch.inference_mode():
                started = time.perf_counter()
                for tensor in tensors_in(model(images)):
                    tensor.cpu()  # waits for a GPU to finish
                times[name].append(time.perf_counter() - started)
    return {name: min(taken) for name, taken in times.items()}


def _share(true: Tensor) -> float:
    return float(true.double().mean())
