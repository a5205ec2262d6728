"""What a trained network can do and what it costs: the numbers of a record."""

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
from ..tying.tied import count_parameters
from .config import Config

__all__ = ["REGULAR_IMAGES", "cost", "evaluate", "inference_speed", "layer_errors"]

REGULAR_IMAGES = 2000
"""How many images are seen a second time, to compare feature groups channel by channel."""


def evaluate(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Measure accuracy, clean and as the authors count it, and the equivariance error of every tap.

    The authors count each test image and one transformed view of it; here all elements count
    equally. Several groups count equally too, however many elements they have.

    Args:
        config: The configuration of the run.
        model: The plain network.
        x: Test images (N, C, H, W).
        y: Their labels (N,).

    Returns:
        What a record holds of them: ``accuracy``; ``accuracy_with_copies``, the authors' measure;
        ``accuracy_under_group``, the mean over all elements, the identity included; ``agreement``,
        the share of images whose predicted class is the same under all elements; and ``layers``.
    """
    objective = config.objective
    if not model.taps:
        return _evaluate_predictions(config, model, x, y)
    taps: Any = (model.taps, model.feature_groups)
    reports = []
    for group in objective.measured_groups:
        # all elements on all images: one pass for each group gives accuracies and errors
        reports.append(measure(model, _batches(x), group, *taps, labels=y, floors=False))

    of_views = []
    under_groups = []
    agreements = []
    for report in reports:
        identity, *others = (report.accuracy or {}).values()
        of_views.append(statistics.mean(others))
        under_groups.append(statistics.mean([identity, *others]))
        if report.output is not None:
            agreements.append(report.output.agreement)
    accuracy: float | None = identity  # the same in all reports: it is that of the images themselves
    # half of what the authors test on are images as they are, half are views of them
    with_copies: float | None = (identity + statistics.mean(of_views)) / 2
    under_group: float | None = statistics.mean(under_groups)
    agreement: float | None = statistics.mean(agreements)
    if objective.average:
        accuracy, with_copies, under_group, agreement = reports[0].averaged_accuracy, None, None, None
        (group,) = objective.groups
        if all(group.exact):
            # averaged over an exact group, the prediction for a view is that for the image
            with_copies, under_group, agreement = accuracy, accuracy, 1.0

    layers = layer_errors(reports)
    for name, error in _regular_errors(config, model, x[:REGULAR_IMAGES]).items():
        layers[name]["relative_regular"] = error
    return {
        "accuracy": accuracy,
        "accuracy_with_copies": with_copies,
        "accuracy_under_group": under_group,
        "agreement": agreement,
        "layers": layers,
    }


def _evaluate_predictions(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Measure what :func:`evaluate` does of a network none of whose layers returns a map."""
    device = next(model.parameters()).device
    of_views, under_groups, agreements = [], [], []
    model.eval()
    for group in config.objective.measured_groups:
        accuracies = []
        agree = torch.ones(len(x), dtype=torch.bool)
        for k in range(len(group)):
            parts = []
            with torch.inference_mode():
                for batch in _batches(x):
                    g = torch.full((len(batch),), k, device=device)
                    parts.append(model(group.act(batch.to(device), g)).argmax(1).cpu())
            predicted = torch.cat(parts)  # (N,)
            if k == 0:
                upright = predicted
            agree &= predicted == upright
            accuracies.append(float((predicted == y.cpu()).double().mean()))
        identity, *others = accuracies
        of_views.append(statistics.mean(others))
        under_groups.append(statistics.mean(accuracies))
        agreements.append(float(agree.double().mean()))
    return {
        "accuracy": identity,
        "accuracy_with_copies": (identity + statistics.mean(of_views)) / 2,
        "accuracy_under_group": statistics.mean(under_groups),
        "agreement": statistics.mean(agreements),
        "layers": {},
    }


def layer_errors(reports: Sequence[Report]) -> dict[str, Any]:
    """Average the equivariance errors of each layer over the groups of the reports."""
    errors = {}
    for name in reports[0].layers:
        layers = [report.layers[name] for report in reports]
        per_element: dict[str, float] = {}
        for layer in layers:
            per_element |= layer.per_element
        errors[name] = {
            "raw": statistics.mean(layer.raw for layer in layers),
            "relative": statistics.mean(layer.relative for layer in layers),
            "per_element": per_element,
        }
    return errors


def _regular_errors(config: Config, model: nn.Module, x: Tensor) -> dict[str, float]:
    """Measure each layer's relative error channel by channel.

    Empty if a group does not say how to permute the channels of some feature group.
    """
    layers: Any = model.taps
    feature_groups: Any = model.feature_groups
    groups = config.objective.measured_groups
    sizes: set[int] = set()
    for spec in per_layer(feature_groups, layers).values():
        sizes |= set(spec.sizes)
    if sizes == {1}:  # nothing to permute
        return {}
    for group in groups:
        if not permutes_members(group) or not sizes <= set(regular_sizes(group)):
            return {}
    reports = []
    for group in groups:
        report = measure(model, _batches(x), group, layers, feature_groups, floors=False, action="regular")
        reports.append(report)
    errors = {}
    for name in reports[0].layers:
        errors[name] = statistics.mean(report.layers[name].relative for report in reports)
    return errors


def cost(config: Config, model: nn.Module, shape: Sequence[int]) -> tuple[int, int]:
    """Count parameters, and multiply-accumulates for one image (convolutions and matrix products).

    What a batch needs once, such as kernels made from a basis, is shared by the images of a batch
    of 64. Counted on tensors without values: nothing is computed.

    Args:
        config: The configuration of the run.
        model: The plain network.
        shape: Channels, height and width of an image.
    """
    batch = torch.empty(64, *shape, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(model).to("meta").eval()(batch)
    # a multiply-accumulate is two operations
    macs = counter.get_total_flops() // 2 // len(batch)
    return count_parameters(model), macs * _passes(config)


def inference_speed(config: Config, model: nn.Module, x: Tensor, rounds: int = 30) -> float:
    """Return images per second in batches of 64, in the best of many rounds."""
    passes = _passes(config)
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
    # the best one: whatever else the machine does can only slow a round down
    return len(batch) / min(seconds)


def _passes(config: Config) -> int:
    """How often the network sees an image at test time."""
    if not config.objective.average:
        return 1
    (group,) = config.objective.groups
    return len(group)


def _batches(x: Tensor, size: int = 250) -> Iterator[Tensor]:
    # in the layout in which most CPUs and GPUs convolve faster
    for part in x.split(size):
        yield to_float(part).contiguous(memory_format=torch.channels_last)
