"""Made-up reports, as ``measure`` returns them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ien.measuring.layer_report import ElementReport, LayerReport
from ien.measuring.report import Report


def layer(errors: dict[float, float], floor: float | None = None) -> LayerReport:
    """A layer with these errors at these angles."""
    elements = {}
    for angle, error in errors.items():
        interval = (0.8 * error, 1.25 * error)
        elements[f"{angle:g}°"] = ElementReport(error, error, interval, floor, angle % 90 == 0, angle)
    mean = float(np.nanmean(list(errors.values())))
    return LayerReport(
        raw=mean,
        relative=mean,
        interval=(0.9 * mean, 1.1 * mean),
        floor=floor,
        variance=1.0,
        diversity=None,
        collapsed=(),
        num_groups=4,
        constant=False,
        size=(8, 8),
        elements=elements,
    )


def scaled(errors: dict[float, float], floor: float | None = None) -> LayerReport:
    """A layer with these errors at these factors."""
    elements = {}
    for factor, error in errors.items():
        interval = (0.8 * error, 1.25 * error)
        elements[f"×{factor:g}"] = ElementReport(error, error, interval, floor, False, None, factor)
    return replace(layer(errors, floor), elements=elements)


def report(**layers: LayerReport) -> Report:
    return Report("rot8", 10, layers)


def quarters(**errors: float) -> Report:
    """A report of one element, with this error of each layer."""
    return Report("rot2", 10, {name: layer({180.0: error}) for name, error in errors.items()})


def circle(error: float = 0.5, count: int = 8) -> dict[float, float]:
    """Errors at this many angles, the identity left out."""
    return {360 * k / count: error + k / 100 for k in range(1, count)}
