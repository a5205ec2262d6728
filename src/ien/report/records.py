"""Records: the JSON files that finished runs leave behind."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .._files import read_bounded
from .._text import printable, short_repr
from ..groups.families import group as parse_group
from ..loss.feature_groups import FeatureGroups

__all__ = [
    "Layer",
    "Record",
    "collect",
    "damaged",
    "flat",
    "read",
    "read_count",
    "read_curve",
    "read_field",
    "read_number",
    "read_share",
]

FORMAT = 3
MAX_COUNT = 2**63
"""Of seeds, images and parameters."""
T = TypeVar("T")
Json = Mapping[str, object]


class Layer(NamedTuple):
    """Equivariance errors of one layer; NaN where they were not measured."""

    raw: float
    relative: float
    exact: float = math.nan
    """The relative error of quarter turns and flips alone."""
    between: float = math.nan
    """The relative error of all other elements, which resample."""
    regular: float = math.nan
    """The relative error with every channel compared, permuted by the element."""


@dataclass(frozen=True)
class Record:
    """What one finished run measured, and what it takes to repeat it."""

    path: Path = field(compare=False)
    experiment: str
    preset: str
    seed: int
    config: Json
    """Every setting by its own name."""
    changes: tuple[tuple[str, str], ...]
    """Settings changed by hand against the preset, with their values as text, by name."""
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
    """A fraction, like the next; NaN for a network that does not classify."""
    accuracy_with_copies: float
    """Over the originals and their transformed copies, as the authors measure it."""
    accuracy_under_group: float
    """Mean over all elements of the group; NaN in records that are older than it."""
    agreement: float
    """The share of images whose class is the same under all elements; NaN in older records."""
    slack: Mapping[str, float]
    """‖r‖ / ‖P W‖ of each layer with slack; empty for other networks."""
    layers: Mapping[str, Layer]
    parameters: int
    trained_parameters: int
    macs: float
    images_per_second: float
    images_seen: float
    """In training, every view of an image counted; NaN where that is not known."""
    seconds: float
    """Of training; 0 for a row that tests the weights of another."""
    content: Json = field(compare=False, repr=False)
    """The whole file, for what only some kinds of runs have."""


def collect(folder: Path | str, *experiments: str) -> list[Record]:
    """Read the records in a folder and below it, in the order of their paths.

    Every ``*.json`` file counts, except in a run folder (one that holds a ``config.json``), where
    only ``result.json`` does. Names that begin with a dot are left out.

    Args:
        folder: Where to look.
        experiments: Only records that match one of these, such as ``rot-mnist/*``. None: all.

    Raises:
        FileNotFoundError: There is no such record.
    """
    patterns = experiments or ("*",)
    records = []
    for path in sorted(Path(folder).rglob("*.json")):
        if not _is_record(path):  # the folder may be that of run folders, which hold more
            continue
        record = read(path)
        for pattern in patterns:
            if fnmatchcase(record.experiment, pattern):
                records.append(record)
                break
    if not records:
        quoted = " ".join(map(repr, patterns))  # so that the shell leaves them alone
        raise FileNotFoundError(
            f"no records of {', '.join(patterns)} in {folder}: make them with  "
            f"ien run {quoted} --preset small --seeds 1-3"
        )
    return records


def read(path: Path | str) -> Record:
    """Read the record in one file.

    Raises:
        ValueError: It is damaged, no record at all, or of another version of ien.
    """
    path = Path(path)
    try:
        content = _without_escapes(json.loads(read_bounded(path).decode()))
    except (ValueError, RecursionError) as error:  # cut off, not UTF-8, or nested too deeply
        raise damaged(path, error) from None
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{path} is not the record of a run (it has no format number): move it elsewhere")
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {short_repr(content['format'])} and this version of ien reads format "
            f"{FORMAT}: update ien, or delete the file and run its row again"
        )
    try:
        return _record(path, content)
    except (ValueError, OverflowError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> ValueError:
    """Return the error that says what is wrong with a record, and what to do."""
    return ValueError(f"{path} is damaged ({error}): delete it and run its row again")


def flat(config: Json) -> dict[str, object]:
    """Return the settings of a nested configuration by their own names.

    >>> flat({"seed": 1, "objective": {"beta": 0.1}})
    {'seed': 1, 'beta': 0.1}
    """
    settings: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            settings |= flat(value)
        else:
            settings[name] = value
    return settings


def read_field(content: Json, *names: str, kind: type[T]) -> T:
    """Return what the names lead to in the JSON of a record.

    >>> read_field({"data": {"name": "rot-mnist"}}, "data", "name", kind=str)
    'rot-mnist'
    """
    value: object = content
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"it has no {'.'.join(names)}")
        value = value[name]
    # True would pass for an int
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{'.'.join(names)} should be of type {kind.__name__}; it is {short_repr(value)}")
    return value


def read_count(content: Json, *names: str) -> int:
    """Return a whole number from 0 on, of the size that counts and seeds have."""
    value = read_field(content, *names, kind=int)
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{'.'.join(names)} should be from 0 to 2^63; it is {short_repr(value)}")
    return value


def read_number(content: Json, *names: str) -> float:
    """Return a number, NaN where there is none."""
    value = read_field(content, *names, kind=object)
    if value is None or value != value:
        return math.nan  # always the same NaN, so that two readings of one file are equal
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{'.'.join(names)} should be a number; it is {short_repr(value)}")
    if abs(value) > sys.float_info.max and value not in (math.inf, -math.inf):
        raise ValueError(
            f"{'.'.join(names)} is larger than any number in floating point: {short_repr(value)}"
        )
    return float(value)


def read_share(content: Json, *names: str) -> float:
    """Return a number from 0 to 1, which has to be there."""
    value = read_number(content, *names)
    if not 0 <= value <= 1:
        raise ValueError(f"{'.'.join(names)} should be from 0 to 1; it is {value}")
    return value


def read_curve(content: Json, *names: str, count: int) -> tuple[float, ...]:
    """Return this many shares."""
    values = read_field(content, *names, kind=list)
    if len(values) != count:
        raise ValueError(f"{'.'.join(names)} should have {count} values; it has {len(values)}")
    name = names[-1]
    shares = []
    for value in values:
        shares.append(read_share({name: value}, name))  # an error says which curve it is
    return tuple(shares)


def _without_escapes(content: Any) -> Any:
    """Write out the control characters in all texts: they would reach the reader's terminal."""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [_without_escapes(value) for value in content]
    if isinstance(content, dict):
        return {printable(name): _without_escapes(value) for name, value in content.items()}
    return content


def _is_record(path: Path) -> bool:
    if not path.is_file() or path.name.startswith("."):
        return False
    in_run_folder = (path.parent / "config.json").exists()
    return path.name == "result.json" or not in_run_folder


def _record(path: Path, content: Json) -> Record:
    config = flat(read_field(content, "config", kind=dict))
    # the size of the network is looked up by these
    if "model" in config:
        read_field(config, "model", kind=str)
    if "feature_groups" in config:
        FeatureGroups.of(read_field(config, "feature_groups", kind=str))
    if "width" in config:
        read_number(config, "width")
    changes = read_field(content, "changes", kind=dict)
    changed = []
    for name in sorted(changes):
        changed.append((name, _as_text(changes[name])))
    finished = datetime.fromisoformat(read_field(content, "finished", kind=str))
    if finished.tzinfo is None:  # it could not be compared with others
        raise ValueError(f"finished should name a time zone; it is {finished.isoformat()}")
    shares = {
        "accuracy": read_number(content, "accuracy"),
        "accuracy_with_copies": read_number(content, "accuracy_with_copies"),
        "accuracy_under_group": _number_if_there(content, "accuracy_under_group"),
        "agreement": _number_if_there(content, "agreement"),
    }
    for name, share in shares.items():
        if share < 0 or share > 1:  # NaN is neither: it was not measured
            raise ValueError(f"{name} should be from 0 to 1; it is {share}")
    commit = None  # the run was started outside of a repository
    if content.get("commit") is not None:
        commit = read_field(content, "commit", kind=str)
    versions = read_field(content, "versions", kind=dict)
    # which elements resample: those of the groups that were measured, joined by +
    exact = _exact_elements(str(config.get("measured", "")) or read_field(config, "group", kind=str))
    found = read_field(content, "layers", kind=dict)
    layers = {}
    for name in found:
        layers[name] = _layer(read_field(found, name, kind=dict), exact)
    slack = {}
    if "slack" in content:
        ratios = read_field(content, "slack", kind=dict)
        slack = {name: read_number(ratios, name) for name in ratios}
    return Record(
        path=path,
        experiment=read_field(config, "experiment", kind=str),
        preset=read_field(config, "preset", kind=str),
        seed=read_count(config, "seed"),
        config=config,
        changes=tuple(changed),
        data=read_field(content, "data", "name", kind=str),
        source=read_field(content, "data", "source", kind=str),
        tested_on=read_field(content, "data", "tested_on", kind=str),
        train=read_count(content, "data", "train"),
        test=read_count(content, "data", "test"),
        versions={name: str(version) for name, version in versions.items()},
        machine=read_field(content, "machine", kind=str),
        commit=commit,
        finished=finished,
        **shares,
        slack=slack,
        layers=layers,
        parameters=read_count(content, "parameters"),
        trained_parameters=read_count(content, "trained_parameters"),
        macs=read_number(content, "macs"),
        images_per_second=read_number(content, "images_per_second"),
        images_seen=read_number(content, "images_seen"),
        seconds=_number_if_there(content, "seconds"),
        content=content,
    )


def _layer(found: Json, exact_elements: Mapping[str, bool]) -> Layer:
    # only some runs keep the errors of single elements, or of every channel
    per_element: Json = {}
    if "per_element" in found:
        per_element = read_field(found, "per_element", kind=dict)
    regular = _number_if_there(found, "relative_regular")
    exact, between = [], []
    for label in per_element:
        error = read_number(per_element, label)
        if label not in exact_elements or not math.isfinite(error):
            continue
        if exact_elements[label]:
            exact.append(error)
        else:
            between.append(error)
    return Layer(
        raw=read_number(found, "raw"),
        relative=read_number(found, "relative"),
        exact=_mean(exact),
        between=_mean(between),
        regular=regular,
    )


def _number_if_there(content: Json, name: str) -> float:
    """Return a number; NaN in a record that is older than it."""
    if name not in content:
        return math.nan
    return read_number(content, name)


def _mean(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    return statistics.fmean(values)


@lru_cache  # few groups, many records
def _exact_elements(groups: str) -> dict[str, bool]:
    """Say for each element but the identity, by its label, whether it only permutes pixels."""
    exact: dict[str, bool] = {}
    for name in groups.split("+"):
        group = parse_group(name)
        exact |= dict(zip(group.labels[1:], group.exact[1:], strict=True))
    return exact


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)
