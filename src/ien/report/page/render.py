"""Rendering: from runs, plots, diagnoses and an exploration to the text of the page."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...training import flat
from ..opened import Subject
from ..records import Record
from .explorer import Exploration

if TYPE_CHECKING:
    from ...geometry.doctor import Diagnosis

__all__ = ["LIMIT", "Examined", "Figure", "data_of", "page"]

LIMIT = 10_000_000
"""Bytes that the page may have."""
TEMPLATE = Path(__file__).parent / "template"


class Figure(NamedTuple):
    """A plot of the page."""

    title: str
    caption: str
    svg: str
    """Markup: the only text that is not escaped."""


@dataclass(frozen=True)
class Examined:
    """What the doctor says of one network: its diagnosis, or why there is none."""

    diagnosis: Diagnosis | None
    error: str = ""


def page(
    subjects: Sequence[Subject],
    findings: Sequence[Examined],
    figures: Sequence[Figure],
    exploration: Exploration,
    limit: int = LIMIT,
) -> str:
    """The page as text, with as many images and maps as ``limit`` bytes allow."""
    template = _template()
    style, script = ((TEMPLATE / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    settings = {
        "style": style,
        "script": script,
        "script_hash": b64encode(sha256(script.encode()).digest()).decode(),
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "version": _version(),
        "commits": list(dict.fromkeys(s.record.commit for s in subjects if s.record.commit)),
        "machines": list(dict.fromkeys(s.record.machine for s in subjects)),
        "runs": [_row(subject) for subject in subjects],
        "layers": list(dict.fromkeys(name for subject in subjects for name in subject.record.layers)),
        "measured": len(subjects[0].images),
        "data": data_of(subjects[0].record),
        "figures": figures,
        "configs": _configs(subjects),
        "findings": _together(subjects, findings),
        "names": [subject.name for subject in subjects],
        "nan": math.nan,
        "scales": len(exploration.content["tracks"]) > 1,
    }
    size = 0
    for images, maps in exploration.smaller():
        content = json.dumps(exploration.cut(images, maps), allow_nan=False, separators=(",", ":"))
        left_out = _left_out(exploration, images, maps)
        text = template.render(settings, explorer=content.replace("<", "\\u003c"), left_out=left_out)
        size = len(text.encode())
        if size <= limit:
            return text
    raise ValueError(
        f"a report of {len(subjects)} runs has at least {size:,} bytes, and {limit:,} are allowed: "
        f"give fewer runs"
    )


def data_of(record: Record) -> str:
    return f"{record.source} {record.data}, {record.tested_on} set, {record.test:,} images"


def _left_out(exploration: Exploration, images: int, maps: int) -> str:
    counts = ((images, exploration.images, "images"), (maps, exploration.maps, "maps of each layer"))
    fewer = [f"{shown} of {all_} {what}" for shown, all_, what in counts if shown < all_]
    if not fewer:
        return ""
    return f"To keep the file small it holds {' and '.join(fewer)}: a report of fewer runs holds more."


def _row(subject: Subject) -> dict[str, Any]:
    record = subject.record
    layers = {name: layer.relative for name, layer in record.layers.items()}
    return {"name": subject.name, "folder": str(subject.folder), "record": record, "layers": layers}


def _configs(subjects: Sequence[Subject]) -> list[tuple[str, list[str], bool]]:
    """(field, its value in each run, whether they differ), those that differ first."""
    configs = [flat(subject.config) for subject in subjects]
    rows = []
    for name in configs[0]:
        values = [_setting(config[name]) for config in configs]
        rows.append((name, values, len(set(values)) > 1))
    return sorted(rows, key=lambda row: not row[2])


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)


def _together(subjects: Sequence[Subject], findings: Sequence[Examined]) -> list[tuple[list[str], Examined]]:
    """Runs of which the doctor says the same, together."""
    groups: list[tuple[list[str], Examined]] = []
    for subject, finding in zip(subjects, findings, strict=True):
        same = [names for names, other in groups if other == finding]
        if same:
            same[0].append(subject.name)
        else:
            groups.append(([subject.name], finding))
    return groups


def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "value": _value, "heat": _heat}
    return environment.get_template("report.html")


def _number(value: float, form: str = "error") -> str:
    if not math.isfinite(value):
        return "–"
    if form == "percent":
        return f"{value:.2%}".replace("%", " %")
    if form == "count":
        return f"{value:,.0f}".replace(",", "\u202f")
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}"


def _value(value: float) -> str:
    """All digits, for machines; empty for what was not measured."""
    return repr(value) if math.isfinite(value) else ""


def _heat(value: float) -> str:
    """From 0 for a relative error of 1e-4 and below to 1 for 1 and above."""
    if not value > 0:
        return "0"
    return f"{min(max(1 + math.log10(value) / 4, 0), 1):.2f}" if math.isfinite(value) else "1"


def _version() -> str:
    from ... import __version__

    return __version__
