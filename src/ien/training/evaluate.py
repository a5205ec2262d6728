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

from .._measure import measure
from .._measured import Report
from ..data import to_float
from .config import Config

__all__ = ["cost", "evaluate", "inference_speed", "layer_errors"]


def evaluate(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Accuracy, clean and as the authors count it, and the equivariance error of every tap.

    The authors count each test image and a transformed copy of it; here the copies are all elements, equally.
    Several groups count equally, whatever the number of their elements.
    """
    reports = [
        measure(
            model,
            _batches(x),
            group,
            layers=model.taps,  # type: ignore[arg-type]
            feature_groups=model.feature_groups,  # type: ignore[arg-type]
            labels=y,
            floors=False,
        )
        for group in config.measured_groups
    ]
    accuracies = [list((report.accuracy or {}).values()) for report in reports]
    clean, averaged = accuracies[0][0], reports[0].averaged_accuracy
    both: float | None = (clean + statistics.mean(statistics.mean(a[1:]) for a in accuracies)) / 2
    if config.average:  # averaged over an exact group, the prediction for a copy is that for the image
        both = averaged if all(next(iter(config.groups)).exact) else None
    return {
        "accuracy": averaged if config.average else clean,
        "accuracy_with_copies": both,
        "layers": layer_errors(reports),
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
