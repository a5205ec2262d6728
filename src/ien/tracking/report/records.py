"""What a tracker reached: its scores on each test, with what it must beat."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...groups.families import group as parse_group
from ...loss.feature_groups import FeatureGroups
from ...report.records import Record, damaged, read_curve, read_field, read_number, read_share
from ...report.rows import Row
from ..by_angle import Bin
from ..siamfc_network import num_groups

__all__ = [
    "Baseline",
    "Tracked",
    "Tracking",
    "averaged",
    "channel_shares",
    "shown_test",
    "tracking_of",
    "trackings",
]

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
    success_hull: float
    """Of boxes that follow the angle that was found."""
    precision_auc: float
    normalised_precision: float
    overlap: float
    centre_error: float
    """In pixels."""
    orientation_error: float
    """In degrees."""
    orientation_error_on_target: float
    """The same over frames in which the target is not lost."""
    fps: float
    success_curve: tuple[float, ...]
    precision_curve: tuple[float, ...]
    sequences: int
    frames: int
    by_orientation: tuple[Bin, ...]
    """From 0° to 345°; empty where nothing rotates, like the next."""
    by_angle: tuple[Bin, ...]
    """By how far the target has rotated since the first frame."""


class Tracking(NamedTuple):
    """Everything by the name of the test: ``otb``, ``rot-otb``."""

    tests: Mapping[str, Tracked]
    """Those that are not rotated first."""
    still: Mapping[str, Baseline]
    """A box that never moves."""
    untrained: Mapping[str, Baseline]
    """The same network with its initial weights."""

    def not_above(self, test: str) -> list[str]:
        """Name the baselines that the tracker does not beat in both scores, with all scores."""
        own = self.tests[test]
        baselines = {
            "a box that never moves": self.still[test],
            "its untrained network": self.untrained[test],
        }
        unbeaten = []
        for name, (success, precision) in baselines.items():
            if own.success > success and own.precision > precision:  # level is not above
                continue
            unbeaten.append(
                f"{name} ({success:.3f} / {precision:.3f}; it has {own.success:.3f} / {own.precision:.3f})"
            )
        return unbeaten


def tracking_of(record: Record) -> Tracking | None:
    """Return the scores in a record; None if it is not of a tracker."""
    if record.content.get("tracking") is None:
        return None
    try:
        return _tracking(read_field(record.content, "tracking", kind=dict))
    except ValueError as error:
        raise damaged(record.path, error) from None


def trackings(row: Row) -> list[Tracking]:
    """Return the scores of each seed of a row; none if it is not of a tracker."""
    found = []
    for record in row.records:
        tracking = tracking_of(record)
        if tracking is not None:
            found.append(tracking)
    return found


def averaged(scores: Sequence[Tracked]) -> Tracked:
    """Return means over seeds, curves and bins included; NaN where a seed lacks a value."""
    first = scores[0]
    if len(scores) == 1:
        return first
    means: dict[str, Any] = {}
    for name, value in vars(first).items():
        values = [getattr(score, name) for score in scores]
        if isinstance(value, float):
            means[name] = statistics.fmean(values)
        elif name.endswith("_curve"):
            means[name] = tuple(map(statistics.fmean, zip(*values, strict=True)))  # point by point
        elif name.startswith("by_"):
            means[name] = _mean_bins(values)
        else:
            means[name] = value  # counts, which are the same for all seeds
    return Tracked(**means)


def shown_test(name: str) -> str:
    """Return what a test is called where it is shown.

    >>> shown_test("rot-otb"), shown_test("clips")
    ('Rot-OTB', 'clips')
    """
    return TITLES.get(name, name)


def channel_shares(row: Row) -> list[float]:
    """Return channels relative to the steerable twin's, for each different network of a row."""
    shares: dict[float, None] = {}
    for record in row.records:
        config = record.config
        feature_groups, width = str(config["feature_groups"]), config["width"]
        assert isinstance(width, int | float)
        features = config.get("features")  # older records have none
        assert features is None or isinstance(features, int)
        share = _channel_share(feature_groups, width, str(config["backbone"]), str(config["group"]), features)
        shares[share] = None
    return list(shares)


def _channel_share(
    feature_groups: str, width: float, backbone: str, group: str, features: int | None = None
) -> float:
    """Return the channels of all layers, relative to those of the steerable twin.

    >>> _channel_share("4-2-1", 1, "alexnet-v2", "rot4")
    0.6875
    """
    own = FeatureGroups.of(feature_groups)
    twin = FeatureGroups.of(len(parse_group(group)))
    # num_groups: of each layer; the members of its feature groups are its channels
    own_channels = sum(map(own.channels, num_groups(own, width, backbone, features)))
    twin_channels = sum(map(twin.channels, num_groups(twin, width, backbone, features)))
    return own_channels / twin_channels


def _tracking(found: Mapping[str, object]) -> Tracking:
    names = [name for name in found if name not in BASELINES]
    names.sort(key=lambda name: name.startswith("rot-"))  # False comes first
    if not names:
        raise ValueError("tracking should hold the scores of a test, such as otb; it holds none")
    tests, still, untrained = {}, {}, {}
    for name in names:
        tests[name] = _tracked(read_field(found, name, kind=dict))
        still[name] = _baseline(found, "still", name)
        untrained[name] = _baseline(found, "untrained", name)
    return Tracking(tests, still, untrained)


def _baseline(found: Mapping[str, object], kind: str, test: str) -> Baseline:
    return Baseline(read_share(found, kind, test, "success"), read_share(found, kind, test, "precision"))


def _tracked(found: Mapping[str, object]) -> Tracked:
    sequences = read_field(found, "sequences", kind=dict)
    frames = 0
    for name in sequences:
        frames += read_field(sequences, name, "frames", kind=int)
    return Tracked(
        success=read_share(found, "success"),
        precision=read_share(found, "precision"),
        success_hull=_optional_share(found, "success_hull"),
        precision_auc=read_share(found, "precision_auc"),
        normalised_precision=read_number(found, "normalised_precision"),
        overlap=read_number(found, "overlap"),
        centre_error=read_number(found, "centre_error"),
        orientation_error=read_number(found, "orientation_error"),
        orientation_error_on_target=_optional_number(found, "orientation_error_on_target"),
        fps=read_number(found, "fps"),
        success_curve=read_curve(found, "success_curve", count=21),
        precision_curve=read_curve(found, "precision_curve", count=51),
        sequences=len(sequences),
        frames=frames,
        by_orientation=_bins(found, "by_orientation"),
        by_angle=_bins(found, "by_angle"),
    )


def _optional_share(found: Mapping[str, object], name: str) -> float:
    """Return a number from 0 to 1; NaN if the record is older, or its tracker knows no angle."""
    if name not in found:
        return math.nan
    return read_share(found, name)


def _optional_number(found: Mapping[str, object], name: str) -> float:
    """Return a number; NaN if the record is older, or has none."""
    if name not in found:
        return math.nan
    return read_number(found, name)


def _bins(found: Mapping[str, object], name: str) -> tuple[Bin, ...]:
    if found.get(name) is None:  # nothing rotates in this test
        return ()
    bins = []
    for entry in read_field(found, name, kind=list):
        if not isinstance(entry, list) or len(entry) != len(Bin._fields):
            raise ValueError(f"{name} should hold degrees, overlap and frames; it holds {entry!r}")
        values = dict(zip(Bin._fields, entry, strict=True))
        degrees, overlap = read_number(values, "degrees"), read_share(values, "overlap")
        bins.append(Bin(degrees, overlap, read_field(values, "frames", kind=int)))
    return tuple(sorted(bins))


def _mean_bins(runs: Sequence[Sequence[Bin]]) -> tuple[Bin, ...]:
    """Average the bins of runs, which saw the same frames."""
    alike: dict[float, list[Bin]] = defaultdict(list)
    for run in runs:
        for one in run:
            alike[one.degrees].append(one)
    means = []
    for degrees in sorted(alike):
        bins = alike[degrees]
        overlaps = [one.overlap for one in bins]
        means.append(Bin(degrees, statistics.fmean(overlaps), bins[0].frames))
    return tuple(means)
