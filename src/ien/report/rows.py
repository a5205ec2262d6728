"""Rows: the runs of one configuration, one record for each seed, as a line of a table."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..models import NAMES as MODELS
from ..models import channel_share
from .records import Layer, Record

__all__ = ["Row", "by_preset_and_data", "ranges", "summarise"]


Changes = tuple[tuple[str, str], ...]
Key = tuple[str, str, str, str, Changes]
"""What the records of a row share: experiment, preset, data source, tested set and changes."""


@dataclass(frozen=True)
class Row:
    """The runs of one configuration, one record for each seed, in the order of the seeds."""

    experiment: str
    preset: str
    source: str
    tested_on: str
    changes: Changes
    records: tuple[Record, ...]
    superseded: tuple[Record, ...] = ()
    """Older records of seeds that were recorded again."""
    name: str = ""
    """What a table calls it; by default its experiment without the table's name."""

    @property
    def label(self) -> str:
        name = self.name or self.experiment.split("/", 1)[-1]
        if not self.changes:
            return name
        changes = ", ".join(f"{field}={value}" for field, value in self.changes)
        return f"{name} ({changes})"

    @property
    def data(self) -> str:
        if self.tested_on == "test":
            return self.source
        return f"{self.source}, {self.tested_on}"

    @property
    def seeds(self) -> str:
        return ranges([record.seed for record in self.records])

    @property
    def has_accuracy(self) -> bool:
        """Whether accuracies were measured for all seeds."""
        return math.isfinite(self.accuracy[0])

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and sample standard deviation over the seeds, in percent; None for a single seed."""
        values = [100 * record.accuracy for record in self.records]
        if len(values) == 1:  # which has no spread
            return values[0], None
        return statistics.fmean(values), statistics.stdev(values)

    @property
    def accuracy_with_copies(self) -> float:
        values = [100 * record.accuracy_with_copies for record in self.records]
        return statistics.fmean(values)

    @property
    def images_per_second(self) -> float:
        """The median, which one busy moment of the machine does not move."""
        known = []
        for record in self.records:
            if math.isfinite(record.images_per_second):
                known.append(record.images_per_second)
        if not known:
            return math.nan
        return statistics.median(known)

    @property
    def channel_shares(self) -> list[float]:
        """Channels relative to feature groups all of the largest size, for each network."""
        shares: list[float] = []
        for record in self.records:
            share = _channel_share(record.config)
            if share is not None and share not in shares:
                shares.append(share)
        return shares

    def layer(self, name: str) -> Layer:
        """Return means over the seeds, NaN when one of them lacks the value."""
        unknown = Layer(math.nan, math.nan)
        layers = [record.layers.get(name, unknown) for record in self.records]
        means = map(statistics.fmean, zip(*layers, strict=True))  # each field over the seeds
        return Layer(*means)


def summarise(records: Iterable[Record], order: Sequence[str] = ()) -> list[Row]:
    """Put records that may be averaged into rows.

    Records share a row when experiment, preset, data source, tested set and changed settings are
    equal. If a seed was recorded twice, the record that finished last counts.

    Args:
        records: In any order.
        order: Experiments whose rows come first, in this order; the others follow by name.
    """
    alike: dict[Key, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.finished, str(record.path))):
        key = record.experiment, record.preset, record.source, record.tested_on, record.changes
        alike[key].append(record)

    rows = []
    for key, runs in alike.items():
        newest: dict[int, Record] = {}
        superseded = []
        for record in runs:  # in the order in which they finished
            earlier = newest.get(record.seed)
            if earlier is not None and earlier != record:  # a copy of a record is not another one
                superseded.append(earlier)
            newest[record.seed] = record
        kept = sorted(newest.values(), key=lambda record: record.seed)
        rows.append(Row(*key, tuple(kept), tuple(superseded)))

    known = list(order)

    def rank(row: Row) -> tuple[object, ...]:
        place = len(known)
        if row.experiment in known:
            place = known.index(row.experiment)
        return place, row.experiment, row.changes, row.preset, row.data

    return sorted(rows, key=rank)


def by_preset_and_data(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each preset and data source, which alone can be compared."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.preset, row.data].append(row)
    return found


def ranges(seeds: Sequence[int]) -> str:
    """Write seeds in rising order.

    >>> ranges([1, 2, 3, 7])
    '1–3, 7'
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    texts = []
    for run in runs:
        text = str(run[0])
        if len(run) > 1:
            text = f"{run[0]}–{run[-1]}"
        texts.append(text)
    return ", ".join(texts)


def _channel_share(config: Mapping[str, object]) -> float | None:
    model, mix, width = config.get("model"), config.get("feature_groups"), config.get("width")
    if not isinstance(model, str) or not isinstance(mix, str) or not isinstance(width, int | float):
        return None
    name = model.removeprefix("e2cnn-")  # the steerable twin of a network has its channels
    if name not in MODELS:
        return None
    return channel_share(name, mix, width)
