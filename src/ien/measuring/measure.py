"""measure: run a model on images and on their views, and report how equivariant it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import FeatureAction, check_action
from ..loss.feature_groups import Spec
from .choose_layers import requested_layers
from .inputs import (
    ImageArguments,
    Images,
    check_inputs,
    checked_batches,
    device_of,
    eval_mode,
    number_of_batches,
    with_progress_bar,
)
from .measurement import Measurement, begin, group_to_measure
from .report import Report

__all__ = ["measure"]


def measure(
    model: nn.Module,
    images: Images,
    group: Group | str,
    layers: str | Sequence[str] | None = None,
    feature_groups: Spec | Mapping[str, Spec] = 1,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    labels: Tensor | None = None,
    batch_size: int = 64,
    floors: bool = True,
    progress: bool = False,
    action: FeatureAction = "pooled",
) -> Report:
    """Measure how equivariant each layer of a model is, and how much its predictions change.

    Each image x is compared with its views g·x, for every element g of the group but the identity.
    A layer whose maps, after group pooling, are ĥ has the errors

        raw      = mean of (ĥ(g·x) - g·ĥ(x))²   over elements, images, channels and valid pixels
        relative = raw / variance of ĥ(x)       0: equivariant; about 2: the maps are unrelated

    The model runs in eval mode and without gradients, and is left as it was. Every batch takes one
    forward pass per element; only one batch is in memory, however many images there are.

    Args:
        model: Any module that takes images first; it need not come from ``ien``.
        images: A tensor (N, C, H, W), or an iterable of batches such as a DataLoader. If a batch is
            a tuple, its first entry is used. At least two images, better a hundred.
        group: The transformations, such as ``ien.rotation(8)`` or ``"rot8"``.
        layers: Names, as in ``model.named_modules()``, of layers that return maps (B, C, H, W). By
            default the model's direct children that return maps, and its last map.
        feature_groups: Which channels are pooled: a size such as 4 or a mix such as ``"4-2-1"`` for
            all layers, or a dict from layer names to their own. 1 compares every channel by itself.
        args: What the model takes after the images. If ``images`` is a tensor, tensors (N, …) among
            them, also inside lists, tuples and dicts, are cut into the same batches; everything
            else is passed as it is. Nothing is transformed.
        kwargs: What it takes by name, treated in the same way.
        labels: The class of each image, integers (N,) in the order of the images. Adds the accuracy
            under every element.
        batch_size: Images per batch, if ``images`` is a tensor.
        floors: Also report the error that the pixel grid and resampling alone would cause, which
            can double the time.
        progress: Show a progress bar on a terminal.
        action: ``"pooled"`` compares the maximum over each feature group, as the paper does.
            ``"regular"`` compares all channels, each with the one the element moves to its place.

    Returns:
        A :class:`Report`: print it, save it, or read ``report.layers["layer1"].relative``.

    Raises:
        ValueError: Images, labels, layers and group do not fit together; the message says why.
        TypeError: ``model``, ``images``, ``labels``, ``args`` or ``kwargs`` is something else
            altogether.
        KeyError: The model has no layer of that name.

    Do not train with it: it has no gradient; use :class:`EquivarianceLoss`. To learn which
    operation breaks the symmetry, and at which input sizes it would not, use :func:`doctor`.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, kernel_size=1), nn.ReLU())  # 1×1: no direction
    >>> report = measure(net, torch.rand(8, 1, 6, 6), "rot4", layers=["1"], feature_groups=4)
    >>> report.layers["1"].relative < 1e-12
    True
    """
    check_inputs(model, images, labels, batch_size)
    group = group_to_measure(group)
    check_action(action)
    requested = requested_layers(layers, feature_groups)

    batches = checked_batches(images, batch_size)
    if progress:
        batches = with_progress_bar(batches, number_of_batches(images, batch_size))

    device = device_of(model, torch.device("cpu"))
    arguments = ImageArguments(images, args, kwargs, device)
    measurement: Measurement | None = None
    with torch.no_grad(), eval_mode(model):
        for x in batches:
            x = x.to(device)
            if measurement is None:
                few = x[:2]
                measurement = begin(
                    model, group, few, arguments.of(0, len(few)), requested, feature_groups, floors, action
                )
            start = measurement.count
            stop = start + len(x)
            labels_of_batch = None
            if labels is not None:
                labels_of_batch = labels[start:stop]
            measurement.add(x, arguments.of(start, stop), labels_of_batch)

    needed = "measure needs at least two images, better a hundred, to give confidence intervals"
    if measurement is None:
        raise ValueError(f"{needed}; got none")
    count = measurement.count
    if count == 1:
        raise ValueError(f"{needed}; got one")
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels must have one entry per image; got {len(labels)} labels for {count} images")
    return measurement.report(chosen=requested is None)
