"""What trackers reached: from the record of a run to scores by test, with what a tracker must beat."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...groups.families import group as parse_group
from ...loss.feature_groups import FeatureGroups
from ...report.fields import number, numbers, share, take
from ..by_angle import Bin
from ..siamfc_network import num_groups

__all__ = ["Baseline", "Tracked", "Tracking", "averaged", "shown_test", "tracker_share", "tracking_of"]

BASELINES = ("still", "untrained")
TITLES = {"otb": "OTB", "rot-otb": "Rot-OTB"}


class Baseline(NamedTuple):
    """What a tracker that learnt nothing reaches."""

    success: float
    precision: float


@dataclass(frozen=True)
class Tracked:
    """What a tracker reached on one set of sequences; what is not known is NaN."""

    success: float
    """Area under the success curve."""
    precision: float
    """At 20 pixels."""
    precision_auc: float
    normalised_precision: float
    overlap: float
    centre_error: float
    """In pixels."""
    orientation_error: float
    """In degrees."""
    fps: float
    success_curve: tuple[float, ...]
    precision_curve: tuple[float, ...]
    sequences: int
    frames: int
    by_orientation: tuple[Bin, ...]
    """From 0° to 345°; empty where nothing turns, as is the next."""
    by_angle: tuple[Bin, ...]
    """By how far the target has turned since the first frame."""


class Tracking(NamedTuple):
    """Everything by the name of the test: ``otb``, ``rot-otb``."""

    tests: Mapping[str, Tracked]
    """Those that are not turned first."""
    still: Mapping[str, Baseline]
    """A box that never moves."""
    untrained: Mapping[str, Baseline]
    """The same network with its initial weights."""

    def not_above(self, test: str) -> list[str]:
        """The baselines that the tracker does not beat, in success and in precision, each with its scores."""
        own = self.tests[test]
        named = {"a box that never moves": self.still[test], "its untrained network": self.untrained[test]}
        return [
            f"{name} ({success:.3f} / {precision:.3f}; it has {own.success:.3f} / {own.precision:.3f})"
            for name, (success, precision) in named.items()
            if not (own.success > success and own.precision > precision)
        ]


def tracking_of(content: Mapping[str, object]) -> Tracking | None:
    """The scores in the JSON of a record; None if it is not of a tracker."""
    if content.get("tracking") is None:
        return None
    found = take(content, "tracking", kind=dict)
    tests = sorted(
        (name for name in found if name not in BASELINES), key=lambda name: name.startswith("rot-")
    )
    if not tests:
        raise ValueError("tracking should hold the scores of a test, such as otb; it holds none")
    still, untrained = (
        {test: Baseline(*(share(found, kind, test, field) for field in Baseline._fields)) for test in tests}
        for kind in BASELINES
    )
    return Tracking({test: _tracked(take(found, test, kind=dict)) for test in tests}, still, untrained)


def averaged(scores: Sequence[Tracked]) -> Tracked:
    """Means over the seeds of a row, curves and bins included; NaN where a seed lacks a value."""
    first = scores[0]
    if len(scores) == 1:
        return first
    names = [name for name, value in vars(first).items() if isinstance(value, float)]
    means: dict[str, Any] = {
        name: statistics.fmean(getattr(score, name) for score in scores) for name in names
    }
    curves: dict[str, Any] = {
        name: tuple(map(statistics.fmean, zip(*(getattr(score, name) for score in scores), strict=True)))
        for name in ("success_curve", "precision_curve")
    }
    bins: dict[str, Any] = {
        name: _together([getattr(score, name) for score in scores]) for name in ("by_orientation", "by_angle")
    }
    return Tracked(**means, **curves, **bins, sequences=first.sequences, frames=first.frames)


def shown_test(name: str) -> str:
    """How a test is called where it is shown.

    >>> shown_test("rot-otb"), shown_test("clips")
    ('Rot-OTB', 'clips')
    """
    return TITLES.get(name, name)


def tracker_share(feature_groups: str, width: float, backbone: str, group: str) -> float:
    """Channels of a tracker's network, all layers together, relative to those of its steerable twin.

    >>> tracker_share("4-2-1", 1, "alexnet-v2", "rot4"), tracker_share("1", 1, "alexnet-v2", "rot4")
    (0.6875, 0.5)
    """
    mixes = FeatureGroups.of(feature_groups), FeatureGroups.of(len(parse_group(group)))
    own, twin = (sum(map(mix.channels, num_groups(mix, width, backbone))) for mix in mixes)
    return own / twin


def _tracked(found: Mapping[str, object]) -> Tracked:
    sequences = take(found, "sequences", kind=dict)
    return Tracked(
        success=share(found, "success"),
        precision=share(found, "precision"),
        precision_auc=share(found, "precision_auc"),
        normalised_precision=number(found, "normalised_precision"),
        overlap=number(found, "overlap"),
        centre_error=number(found, "centre_error"),
        orientation_error=number(found, "orientation_error"),
        fps=number(found, "fps"),
        success_curve=numbers(found, "success_curve", count=21),
        precision_curve=numbers(found, "precision_curve", count=51),
        sequences=len(sequences),
        frames=sum(take(sequences, name, "frames", kind=int) for name in sequences),
        by_orientation=_bins(found, "by_orientation"),
        by_angle=_bins(found, "by_angle"),
    )


def _bins(found: Mapping[str, object], name: str) -> tuple[Bin, ...]:
    rows = [] if found.get(name) is None else take(found, name, kind=list)
    for row in rows:
        if not isinstance(row, list) or len(row) != len(Bin._fields):
            raise ValueError(f"{name} should hold degrees, overlap and frames; it holds {row!r}")
    values = (dict(zip(Bin._fields, row, strict=True)) for row in rows)
    return tuple(
        sorted(Bin(number(v, "degrees"), share(v, "overlap"), take(v, "frames", kind=int)) for v in values)
    )


def _together(runs: Sequence[Sequence[Bin]]) -> tuple[Bin, ...]:
    """Means over runs, which saw the same frames."""
    bins: dict[float, list[Bin]] = defaultdict(list)
    for one in (one for run in runs for one in run):
        bins[one.degrees].append(one)
    return tuple(
        Bin(degrees, statistics.fmean(one.overlap for one in alike), alike[0].frames)
        for degrees, alike in sorted(bins.items())
    )
