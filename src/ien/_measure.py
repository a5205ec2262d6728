"""Measure: from any model and images to how equivariant each layer is, in numbers that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ._capture import capture
from ._feature_groups import Spec, per_layer, pool_layer
from ._groups import Group
from ._groups import group as parse_group
from ._loss import full_precision, image_errors

__all__ = ["LayerReport", "Report", "measure"]


@dataclass(frozen=True)
class LayerReport:
    """How far one layer is from commuting with a group."""

    raw: float
    """The paper's L_G: the mean over elements and images. Depends on the scale of the features."""
    relative: float
    """L_G over the variance of the pooled maps: 0 is equivariant, about 2 is unrelated."""
    variance: float
    """Of the pooled maps of the untransformed images, over images, channels and pixels."""
    per_element: dict[str, float]
    """The relative error of each element; NaN where the map is too small to have a valid pixel."""


@dataclass(frozen=True)
class Report:
    """What :func:`measure` found; ``print`` it for a table."""

    group: str
    images: int
    layers: dict[str, LayerReport]
    accuracy: dict[str, float] | None = None
    """With labels: the share of images classified rightly under each element, the identity first."""
    averaged_accuracy: float | None = None
    """With labels: the same for the softmax averaged over all elements."""

    def __str__(self) -> str:
        width = max([5, *map(len, self.layers)])
        lines = [
            f"equivariance to {self.group} over {self.images} images",
            f"{'layer':{width}}       raw  relative",
        ]
        lines += [f"{name:{width}}  {r.raw:8.2e}  {r.relative:8.2e}" for name, r in self.layers.items()]
        if self.accuracy is not None:
            lines.append("accuracy: " + ", ".join(f"{label} {a:.2%}" for label, a in self.accuracy.items()))
        return "\n".join(lines)


def measure(
    model: nn.Module,
    images: Tensor | Iterable[Tensor | Sequence[Tensor]],
    group: Group | str,
    layers: str | Sequence[str],
    feature_groups: Spec | Mapping[str, Spec] = 1,
    *,
    labels: Tensor | None = None,
    batch_size: int = 64,
) -> Report:
    """Raw and relative equivariance error of the named layers, over all images and all elements.

    ``images`` is a tensor (N, C, H, W), or an iterable of batches such as a DataLoader; of tuples the first
    entry counts. The model runs in eval mode, without gradients, and is left as it was. ``labels`` (N,),
    in the order of the images, adds the accuracy of a classifier under every element.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, kernel_size=1), nn.ReLU())     # 1×1 convolutions are equivariant
    >>> report = measure(net, torch.rand(8, 1, 6, 6), "rot4", layers=["1"], feature_groups=4)
    >>> report.layers["1"].relative < 1e-12
    True
    """
    group = parse_group(group)
    if len(group) == 1:
        raise ValueError(f"group {group} has one element, the identity: there is nothing to measure")
    layers = [layers] if isinstance(layers, str) else list(layers)
    if not layers:
        raise ValueError("measure needs at least one layer name (see model.named_modules())")
    partition = per_layer(feature_groups, layers)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    count = 0
    # sums over images, float64 on the CPU: mean and mean square of the pooled maps, error of each element
    moments = {name: torch.zeros(2, dtype=torch.float64, device="cpu") for name in layers}
    errors = {name: torch.zeros(len(group), dtype=torch.float64, device="cpu") for name in layers}

    hits = torch.zeros(len(group) + 1, dtype=torch.float64, device="cpu")  # the last one: averaged

    def run(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with capture(model, layers, lambda name, h: pool_layer(name, h, partition[name])) as features:
            output = model(x)
        return output, dict(features)

    with torch.no_grad(), _eval_mode(model):
        for x in _batches(images, batch_size):
            x = x.to(device)
            output, original = run(x)
            outputs = [output]
            for name, h in original.items():
                of_images = torch.var_mean(full_precision(h), (1, 2, 3), correction=0)
                variance, mean = (moment.cpu().double() for moment in of_images)
                moments[name] += torch.stack([mean.sum(), (variance + mean.square()).sum()])
            for i in range(1, len(group)):
                g = torch.full((len(x),), i, device="cpu")
                output, transformed = run(group.act(x, g))
                outputs.append(output)
                for name, h_g in transformed.items():
                    errors[name][i] += image_errors(original[name], h_g, group, g).cpu().double().sum()
            if labels is not None:
                hits += _hits(outputs, labels[count : count + len(x)])
            count += len(x)
    if count == 0:
        raise ValueError("measure needs at least one image; got none")
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels must hold one for each image: got {len(labels)} for {count} images")
    summaries = {name: _summary(name, group, moments[name] / count, errors[name] / count) for name in layers}
    if labels is None:
        return Report(str(group), count, summaries)
    *shares, averaged = (hits / count).tolist()
    return Report(str(group), count, summaries, dict(zip(group.labels, shares, strict=True)), averaged)


def _hits(outputs: list[Tensor], labels: Tensor) -> Tensor:
    """How many images each element's output classifies rightly, and how many their averaged softmax does."""
    first = outputs[0]
    if not isinstance(first, Tensor) or first.ndim != 2 or first.shape[:1] != labels.shape:
        got = tuple(first.shape) if isinstance(first, Tensor) else f"a {type(first).__name__}"
        raise ValueError(
            f"labels need a classifier with an output (B, classes) and a label for each image; "
            f"got {got} and labels {tuple(labels.shape)}"
        )
    scores = torch.stack(outputs)  # (elements, B, classes)
    scores = torch.cat([scores, scores.float().softmax(2).mean(0, keepdim=True).to(scores.dtype)])
    return (scores.argmax(2).cpu() == labels.cpu()).double().sum(1)


def _summary(name: str, group: Group, moments: Tensor, raw: Tensor) -> LayerReport:
    if not torch.isfinite(moments).all():
        raise ValueError(f"layer {name!r} returned NaN or infinite values: there is nothing to measure")
    mean, mean_square = moments.tolist()
    variance = max(mean_square - mean**2, 0.0)
    measured = raw[1:][~raw[1:].isnan()]
    if len(measured) == 0:
        raise ValueError(
            f"the map of layer {name!r} is too small for {group}: no element leaves a valid pixel"
        )
    guarded = max(variance, 1e-12)
    return LayerReport(
        raw=float(measured.mean()),
        relative=float(measured.mean()) / guarded,
        variance=variance,
        per_element={label: float(raw[i]) / guarded for i, label in enumerate(group.labels) if i},
    )


def _batches(images: Tensor | Iterable[Tensor | Sequence[Tensor]], batch_size: int) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (N, C, H, W); got {tuple(images.shape)}")
        yield from images.split(batch_size) if len(images) else ()
        return
    for batch in images:
        yield batch if isinstance(batch, Tensor) else batch[0]


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
