"""Records: from the JSON files that finished runs leave behind to rows of a table."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ..groups.families import group as parse_group
from ..models import NAMES, channel_share
from ..tracking.report.records import Tracking, tracker_share, tracking_of
from .fields import number, take

__all__ = ["Layer", "Record", "Row", "collect", "ranges", "read", "summarise"]

FORMAT = 2


class Layer(NamedTuple):
    """Equivariance errors of one layer; NaN where they were not measured."""

    raw: float
    relative: float
    exact: float = math.nan
    """The relative error of quarter turns and flips alone."""
    between: float = math.nan
    """The relative error of all other elements, which resample."""
    regular: float = math.nan
    """The relative error with members compared one by one, permuted by the element."""


@dataclass(frozen=True)
class Record:
    """What one finished run measured, and what it takes to repeat it."""

    path: Path = field(compare=False)
    experiment: str
    preset: str
    seed: int
    config: Mapping[str, object]
    changes: tuple[tuple[str, str], ...]
    """Fields set by hand against the preset, with their values as text, by name."""
    data: str
    source: str
    """``generated``, ``original``, ``subset`` or ``embedded-5k``."""
    tested_on: str
    train: int
    test: int
    versions: Mapping[str, str]
    machine: str
    commit: str | None
    finished: datetime
    accuracy: float
    """A fraction, as is the next; NaN for a tracker."""
    accuracy_with_copies: float
    """Over the originals and their transformed copies, as the authors measure it."""
    layers: Mapping[str, Layer]
    parameters: int
    trained_parameters: int
    macs: float
    images_per_second: float
    images_seen: float
    """In training, copies counted; NaN where that is not known."""
    tracking: Tracking | None = None
    """What a tracker reached; None for a classifier. Its images are the updates, a frame each."""


def collect(folder: Path | str, *experiments: str) -> list[Record]:
    """The records in ``folder`` and below whose experiment matches a pattern, in the order of their paths.

    No pattern means all. Every ``*.json`` file counts, except in a run folder (one that holds a
    ``config.json``), where only ``result.json`` does. Names that begin with a dot are left out.
    """
    patterns = experiments or ("*",)
    paths = sorted(path for path in Path(folder).rglob("*.json") if _counts(path))
    records = [
        record
        for record in map(read, paths)
        if any(fnmatchcase(record.experiment, pattern) for pattern in patterns)
    ]
    if not records:
        raise FileNotFoundError(
            f"no records of {', '.join(patterns)} in {folder}: make them with  "
            f"ien run {' '.join(repr(pattern) for pattern in patterns)} --preset small --seeds 1-3"
        )
    return records


def read(path: Path | str) -> Record:
    """The record in one file."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run its row again") from None
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{path} is not the record of a run (it has no format number): move it elsewhere")
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {content['format']!r} and this version of ien reads format {FORMAT}: "
            f"update ien, or delete the file and run its row again"
        )
    try:
        return _record(path, content)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run its row again") from None


@dataclass(frozen=True)
class Row:
    """The runs of one configuration, one record a seed, in the order of the seeds."""

    experiment: str
    preset: str
    source: str
    tested_on: str
    changes: tuple[tuple[str, str], ...]
    records: tuple[Record, ...]
    superseded: tuple[Record, ...] = ()
    """Older records of seeds that were recorded again."""
    name: str = ""
    """What a table calls it; by default its name without that of its own table."""

    @property
    def label(self) -> str:
        name = self.name or self.experiment.split("/", 1)[-1]
        return f"{name} ({', '.join(f'{k}={v}' for k, v in self.changes)})" if self.changes else name

    @property
    def data(self) -> str:
        return self.source if self.tested_on == "test" else f"{self.source}, {self.tested_on}"

    @property
    def tracks(self) -> bool:
        """Whether these are runs of a tracker, which has no accuracy."""
        return self.records[0].tracking is not None

    @property
    def seeds(self) -> str:
        return ranges([record.seed for record in self.records])

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and sample standard deviation over the seeds, in percent; None for a single seed."""
        values = [100 * record.accuracy for record in self.records]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None

    @property
    def accuracy_with_copies(self) -> float:
        return statistics.fmean(100 * record.accuracy_with_copies for record in self.records)

    @property
    def images_per_second(self) -> float:
        """The median, which one busy moment of the machine does not move."""
        known = [r.images_per_second for r in self.records if math.isfinite(r.images_per_second)]
        return statistics.median(known) if known else math.nan

    @property
    def channel_shares(self) -> list[float]:
        """Channels relative to feature groups all of the largest size, for each different network.

        For trackers relative to those of the steerable twin.
        """
        shares = (_channel_share(record.config) for record in self.records)
        return list(dict.fromkeys(share for share in shares if share is not None))

    def layer(self, name: str) -> Layer:
        """Means over the seeds, NaN when one of them lacks the value."""
        layers = [record.layers.get(name, Layer(math.nan, math.nan)) for record in self.records]
        return Layer(*map(statistics.fmean, zip(*layers, strict=True)))


def summarise(records: Iterable[Record], order: Sequence[str] = ()) -> list[Row]:
    """Rows of records that may be averaged, experiments in ``order`` first and unknown ones after them.

    Records share a row when experiment, preset, data source, tested set and changed fields are equal. Of
    two records of one seed the one that finished last counts.
    """
    groups: dict[tuple[str, str, str, str, tuple[tuple[str, str], ...]], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.finished, str(r.path))):
        key = record.experiment, record.preset, record.source, record.tested_on, record.changes
        groups[key].append(record)
    rows = []
    for key, runs in groups.items():
        newest = {record.seed: record for record in runs}
        kept = tuple(newest[seed] for seed in sorted(newest))
        rows.append(Row(*key, kept, tuple(run for run in runs if run != newest[run.seed])))
    places = {name: i for i, name in enumerate(order)}
    rows.sort(
        key=lambda r: (places.get(r.experiment, len(places)), r.experiment, r.changes, r.preset, r.data)
    )
    return rows


def ranges(seeds: Sequence[int]) -> str:
    """Seeds in rising order: 1–3, 7."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _counts(path: Path) -> bool:
    in_run_folder = (path.parent / "config.json").exists()
    return path.is_file() and path.name[0] != "." and (path.name == "result.json" or not in_run_folder)


def _record(path: Path, content: Mapping[str, object]) -> Record:
    config = _flat(take(content, "config", kind=dict))
    changes = take(content, "changes", kind=dict)
    layers = take(content, "layers", kind=dict)
    finished = datetime.fromisoformat(take(content, "finished", kind=str))
    if finished.tzinfo is None:
        raise ValueError(f"finished should name a time zone; it is {finished.isoformat()}")
    accuracy, with_copies = number(content, "accuracy"), number(content, "accuracy_with_copies")
    tracking = tracking_of(content)
    if not (0 <= accuracy <= 1 or tracking) or with_copies < 0 or with_copies > 1:
        raise ValueError(f"accuracies should be from 0 to 1; they are {accuracy} and {with_copies}")
    return Record(
        path=path,
        experiment=take(config, "experiment", kind=str),
        preset=take(config, "preset", kind=str),
        seed=take(config, "seed", kind=int),
        config=config,
        changes=tuple((name, _text(value)) for name, value in sorted(changes.items())),
        data=take(content, "data", "name", kind=str),
        source=take(content, "data", "source", kind=str),
        tested_on=take(content, "data", "tested_on", kind=str),
        train=take(content, "data", "train", kind=int),
        test=take(content, "data", "test", kind=int),
        versions={name: str(value) for name, value in take(content, "versions", kind=dict).items()},
        machine=take(content, "machine", kind=str),
        commit=None if content.get("commit") is None else take(content, "commit", kind=str),
        finished=finished,
        accuracy=accuracy,
        accuracy_with_copies=with_copies,
        layers={name: _layer(layers, name, _measured(config)) for name in layers},
        parameters=take(content, "parameters", kind=int),
        trained_parameters=take(content, "trained_parameters", kind=int),
        macs=number(content, "macs"),
        images_per_second=number(content, "images_per_second"),
        images_seen=number(content, "images_seen"),
        tracking=tracking,
    )


def _flat(config: Mapping[str, object]) -> dict[str, object]:
    """The fields of all sections together; no two have the same name."""
    fields: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            fields |= value
        else:
            fields[name] = value
    return fields


def _measured(config: Mapping[str, object]) -> str:
    """The groups whose elements were measured, joined by +."""
    return str(config.get("measured", "")) or take(config, "group", kind=str)


def _channel_share(config: Mapping[str, object]) -> float | None:
    model, mix, width = (config.get(name) for name in ("model", "feature_groups", "width"))
    if not isinstance(model, str) or not isinstance(mix, str) or not isinstance(width, int | float):
        return None
    if model in ("siamfc", "re-siamfc"):
        return tracker_share(mix, width, str(config.get("backbone", "alexnet-v2")), str(config.get("group")))
    name = model.removeprefix("e2cnn-")
    return channel_share(name, mix, width) if name in NAMES else None


def _layer(layers: Mapping[str, object], name: str, group: str) -> Layer:
    raw, relative = number(layers, name, "raw"), number(layers, name, "relative")
    errors: dict[bool, list[float]] = {True: [], False: []}
    found = take(layers, name, kind=dict)
    regular = number(layers, name, "relative_regular") if "relative_regular" in found else math.nan
    is_exact = exact_labels(group)
    for label in found.get("per_element", {}):
        if label in is_exact and math.isfinite(error := number(layers, name, "per_element", label)):
            errors[is_exact[label]].append(error)
    exact, between = (statistics.fmean(some) if some else math.nan for some in errors.values())
    return Layer(raw, relative, exact, between, regular)


@lru_cache
def exact_labels(groups: str) -> dict[str, bool]:
    """For each element but the identity, by its label, whether it only permutes pixels."""
    parsed = map(parse_group, groups.split("+"))
    return {
        label: exact
        for group in parsed
        for label, exact in list(zip(group.labels, group.exact, strict=True))[1:]
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
