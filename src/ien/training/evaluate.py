"""What a trained network can do and what it costs: from a module and images to the numbers of a record."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .._groups import group as parse_group
from .._measure import measure
from ..data import to_float
from .config import Config

__all__ = ["cost", "evaluate", "inference_speed"]


def evaluate(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Accuracy, clean and as the authors count it, and the equivariance error of every tap.

    The authors count each test image and a transformed copy of it; here the copies are all elements, equally.
    """
    report = measure(
        model,
        _batches(x),
        config.group,
        layers=model.taps,  # type: ignore[arg-type]
        feature_groups=model.feature_groups,  # type: ignore[arg-type]
        labels=y,
        floors=False,
    )
    assert report.accuracy is not None
    clean, *copies = report.accuracy.values()
    both: float | None = (clean + statistics.mean(copies)) / 2
    if config.average:  # averaged over an exact group, the prediction for a copy is that for the image
        both = report.averaged_accuracy if all(parse_group(config.group).exact) else None
    return {
        "accuracy": report.averaged_accuracy if config.average else clean,
        "accuracy_with_copies": both,
        "layers": {
            name: {"raw": layer.raw, "relative": layer.relative, "per_element": layer.per_element}
            for name, layer in report.layers.items()
        },
    }


def cost(config: Config, model: nn.Module, x: Tensor) -> dict[str, int]:
    """Parameters, and multiply-accumulates for one image (convolutions and matrix products)."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(to_float(x[:1]).to(next(model.parameters()).device))
    passes = len(parse_group(config.group)) if config.average else 1
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": counter.get_total_flops() // 2 * passes,
    }


def inference_speed(config: Config, model: nn.Module, x: Tensor, rounds: int = 30) -> float:
    """Images per second in batches of 64: the best of many rounds, as other work only ever slows it down."""
    passes = len(parse_group(config.group)) if config.average else 1
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
