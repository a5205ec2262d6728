"""What a trained network can do and what it costs: from a module and images to the numbers of a record."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..data import to_float
from ..groups.members import permutes_members, regular_sizes
from ..loss.layers import per_layer
from ..measuring.measure import measure
from ..measuring.report import Report
from .config import Config

__all__ = ["REGULAR_IMAGES", "cost", "evaluate", "inference_speed", "layer_errors"]

REGULAR_IMAGES = 2000
"""The first so many images are seen a second time, to compare the members of feature groups one by one."""


def evaluate(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Accuracy, clean and as the authors count it, and the equivariance error of every tap.

    The authors count each test image and a transformed copy of it; here the copies are all elements, equally.
    Several groups count equally, whatever the number of their elements.
    """
    taps: Any = (model.taps, model.feature_groups)
    reports = [
        measure(model, _batches(x), group, *taps, labels=y, floors=False) for group in config.measured_groups
    ]
    accuracies = [list((report.accuracy or {}).values()) for report in reports]
    clean, averaged = accuracies[0][0], reports[0].averaged_accuracy
    both: float | None = (clean + statistics.mean(statistics.mean(a[1:]) for a in accuracies)) / 2
    if config.average:  # averaged over an exact group, the prediction for a copy is that for the image
        both = averaged if all(next(iter(config.groups)).exact) else None
    layers = layer_errors(reports)
    for name, error in _regular_errors(config, model, x[:REGULAR_IMAGES]).items():
        layers[name]["relative_regular"] = error
    return {
        "accuracy": averaged if config.average else clean,
        "accuracy_with_copies": both,
        "layers": layers,
    }


def layer_errors(reports: Sequence[Report]) -> dict[str, Any]:
    """The equivariance error of each layer, the mean over the groups of the reports, and of each element."""
    layers = {name: [report.layers[name] for report in reports] for name in reports[0].layers}
    return {
        name: {
            "raw": statistics.mean(layer.raw for layer in under),
            "relative": statistics.mean(layer.relative for layer in under),
            "per_element": {label: error for layer in under for label, error in layer.per_element.items()},
        }
        for name, under in layers.items()
    }


def _regular_errors(config: Config, model: nn.Module, x: Tensor) -> dict[str, float]:
    """The relative error of each layer, members compared one by one; none where they cannot be permuted."""
    taps: Any = (model.taps, model.feature_groups)
    sizes = {size for spec in per_layer(taps[1], taps[0]).values() for size in spec.sizes}
    groups = config.measured_groups
    if sizes == {1} or not all(
        permutes_members(group) and sizes <= set(regular_sizes(group)) for group in groups
    ):
        return {}
    reports = [measure(model, _batches(x), group, *taps, floors=False, action="regular") for group in groups]
    return {name: statistics.mean(r.layers[name].relative for r in reports) for name in reports[0].layers}


def cost(config: Config, model: nn.Module, x: Tensor) -> dict[str, int]:
    """Parameters, and multiply-accumulates for one image (convolutions and matrix products).

    Of what a batch needs once, such as kernels made of a basis, an image has the share that it has in a
    batch of 64. Counted on tensors without values: nothing is computed.
    """
    batch = torch.empty(64, *x.shape[1:], device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(model).to("meta").eval()(batch)
    passes = len(next(iter(config.groups))) if config.average else 1
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": counter.get_total_flops() // 2 // len(batch) * passes,
    }


def inference_speed(config: Config, model: nn.Module, x: Tensor, rounds: int = 30) -> float:
    """Images per second in batches of 64: the best of many rounds, as other work only ever slows it down."""
    passes = len(next(iter(config.groups))) if config.average else 1
    batch = next(_batches(x[:64])).to(next(model.parameters()).device)
    seconds = []
    with torch.inference_mode():
        model.eval()
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(passes):
                output = model(batch)
            output.cpu()  # waits for a GPU
            seconds.append(time.perf_counter() - start)
    return len(batch) / min(seconds)


def _batches(x: Tensor, size: int = 250) -> Iterator[Tensor]:
    for part in x.split(size):
        yield to_float(part).contiguous(memory_format=torch.channels_last)
