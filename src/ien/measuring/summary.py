"""All sums of a measurement, and the report that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..groups.group import Group
from ..groups.members import FeatureAction
from ..groups.similarity import Similarity
from ..loss.feature_groups import FeatureGroups
from .intervals import interval_of_share
from .layer_report import ElementReport, LayerReport, OutputElement, OutputReport
from .report import Report
from .sums import DiversitySums, ErrorSums, PredictionSums, mean_of_known

__all__ = ["DescribedElement", "LayerSums", "Sums", "described", "report_of"]

MAX_COLLAPSED_DIVERSITY = 0.01
"""A feature group of less diversity has collapsed: its channels are (nearly) equal."""


class DescribedElement(NamedTuple):
    """One element of the group, as it is described in the report."""

    label: str
    similarity: Similarity | None
    """Its rotation, flip and scale; None for custom transformations."""
    exact: bool
    degrees: float | None
    factor: float | None


class LayerSums:
    """The sums of one layer.

    Args:
        feature_groups: How its channels are partitioned.
        num_elements: How many elements the group has, the identity included.
    """

    def __init__(self, feature_groups: FeatureGroups, num_elements: int) -> None:
        self.feature_groups = feature_groups
        self.errors = ErrorSums(num_elements)
        self.grid_floors = ErrorSums(num_elements)
        self.resampling_floors = ErrorSums(num_elements)
        self.diversity = DiversitySums(feature_groups)
        self.size = (0, 0)
        """Height and width of its maps, once it has run."""

    def merge(self, other: LayerSums) -> None:
        """Add the sums of the same layer over other images."""
        self.errors.merge(other.errors)
        self.grid_floors.merge(other.grid_floors)
        self.resampling_floors.merge(other.resampling_floors)
        self.diversity.merge(other.diversity)
        self.size = other.size


@dataclass(frozen=True)
class Sums:
    """All sums of a measurement, without its model: what processes send to each other."""

    count: int
    """How many images were added."""
    labelled: int
    """How many of them had a label."""
    layers: dict[str, LayerSums]
    predictions: PredictionSums | None


def described(group: Group) -> list[DescribedElement]:
    """Describe each element of a group, the identity first."""
    elements = []
    for label, steps in zip(group.labels, group.elements, strict=True):
        # a custom transformation, alone or in a product with others, is a black box
        if len(steps) != 1 or not isinstance(steps[0], Similarity):
            elements.append(DescribedElement(label, similarity=None, exact=False, degrees=None, factor=None))
            continue
        similarity = steps[0]
        degrees = None
        factor = None
        if similarity.scale == 1 and not similarity.flip:
            degrees = float(360 * similarity.turn)
        if similarity.turn == 0 and not similarity.flip:
            factor = float(similarity.scale)
        elements.append(DescribedElement(label, similarity, similarity.exact, degrees, factor))
    return elements


def report_of(sums: Sums, group: Group, floors: bool, action: FeatureAction, chosen: bool) -> Report:
    """Return the report of all images added.

    Args:
        sums: What was added up over them.
        group: The transformations.
        floors: Whether floors were measured too.
        action: What was compared of a layer.
        chosen: Whether the user named no layers.
    """
    elements = described(group)
    layers = {}
    for name, layer in sums.layers.items():
        layers[name] = _layer_report(layer, elements, floors)
    accuracy = None
    averaged = None
    output = None
    predictions = sums.predictions
    if predictions is not None:
        if sums.labelled == sums.count:
            hits = (predictions.hits / sums.count).tolist()
            accuracy = dict(zip(group.labels, hits, strict=True))
            averaged = predictions.averaged_hits / sums.count
        output = _output_report(predictions, sums.count, elements, accuracy)
    return Report(
        group=str(group),
        images=sums.count,
        layers=layers,
        chosen=chosen,
        output=output,
        accuracy=accuracy,
        averaged_accuracy=averaged,
        action=action,
    )


def _layer_report(layer: LayerSums, elements: Sequence[DescribedElement], floors: bool) -> LayerReport:
    not_identity = range(1, len(elements))
    reports = {}
    known_floors = []
    for i in not_identity:
        report = _element_report(layer, i, elements[i], floors)
        reports[elements[i].label] = report
        if report.floor is not None:
            known_floors.append(report.floor)

    diversity = layer.diversity.of_groups
    is_collapsed = diversity < MAX_COLLAPSED_DIVERSITY  # NaN, of a single channel, is not
    collapsed = is_collapsed.nonzero().flatten()
    relative, interval = layer.errors.relative(not_identity)
    return LayerReport(
        raw=layer.errors.raw(not_identity),
        relative=relative,
        interval=interval,
        floor=mean_of_known(known_floors),
        variance=layer.errors.variance,
        diversity=_mean_diversity(diversity),
        collapsed=tuple(collapsed.tolist()),
        num_groups=len(diversity),
        constant=layer.diversity.constant,
        size=layer.size,
        elements=reports,
    )


def _element_report(layer: LayerSums, i: int, element: DescribedElement, floors: bool) -> ElementReport:
    relative, interval = layer.errors.relative([i])
    floor = None
    if floors and element.similarity is not None:
        sums = layer.resampling_floors
        if element.exact:
            sums = layer.grid_floors
        floor, _ = sums.relative([i])
    return ElementReport(
        raw=layer.errors.raw([i]),
        relative=relative,
        interval=interval,
        floor=floor,
        exact=element.exact,
        degrees=element.degrees,
        factor=element.factor,
    )


def _output_report(
    predictions: PredictionSums,
    count: int,
    elements: Sequence[DescribedElement],
    accuracy: Mapping[str, float] | None,
) -> OutputReport:
    not_identity = range(1, len(elements))
    errors = predictions.errors
    flip_rates = (predictions.flips / count).tolist()
    reports = {}
    for i in not_identity:
        element = elements[i]
        logit_error, _ = errors.relative([i])
        reports[element.label] = OutputElement(
            logit_error=logit_error,
            flip_rate=flip_rates[i],
            interval=interval_of_share(flip_rates[i], count),
            accuracy=None if accuracy is None else accuracy[element.label],
            exact=element.exact,
            degrees=element.degrees,
            factor=element.factor,
        )
    logit_error, _ = errors.relative(not_identity)
    flip_rate = math.fsum(flip_rates[1:]) / len(not_identity)
    return OutputReport(logit_error, flip_rate, reports, agreement=predictions.agreeing / count)


def _mean_diversity(of_groups: Tensor) -> float | None:
    """Return the mean over feature groups of size 2 and more, or None if there are none."""
    known = of_groups[~of_groups.isnan()]
    if len(known) == 0:
        return None
    return float(known.mean())
