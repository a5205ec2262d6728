"""Before and after: what a model and its adapted versions do under every element of a group."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .._text import type_name
from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.modules import tensors_in
from ..measuring.inputs import Images, checked_batches, device_of, eval_mode
from .comparison import Comparison
from .outputs import Kinds, check_kinds
from .tallies import ClassTally, NumberTally, num_classes

__all__ = ["check_labels", "compare", "try_under_all"]

TIMED_ROUNDS = 5
"""How often each version is timed, in turns; the fastest pass counts."""
TIMED_IMAGES = 8


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
    if not isinstance(models, Mapping):
        raise TypeError(
            f'models must be a dict by name, such as {{"original": model}}; got {type_name(models)}'
        )
    if not models:
        raise ValueError('there is nothing to compare: pass {"original": model, …}')
    original, *_ = models
    tally: ClassTally | NumberTally | None = None
    x = None
    for x in checked_batches(images, batch_size):
        if tally is None:
            classes = num_classes(original, models[original], x[:1], outputs)
            if labels is not None:
                check_labels(labels, classes, outputs)
            tally = NumberTally(named, outputs) if classes is None else ClassTally(named, outputs)
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
    classes = num_classes("original", model, x[:1], outputs)
    tally = NumberTally(group, outputs) if classes is None else ClassTally(group, outputs)
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
