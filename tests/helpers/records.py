"""Made-up records of classifiers, and the tables of a Markdown text: nothing in them was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = [f"conv{i}" for i in range(1, 7)]


def content(row: str = "ien-r4", seed: int = 1, **fields: Any) -> dict[str, Any]:
    """A record as the engine writes it; ``data__source`` reaches inside."""
    rng = np.random.default_rng([seed, *row.encode()])
    record: dict[str, Any] = {
        "format": 3,
        "config": {
            **{"experiment": f"rot-mnist/{row}", "preset": "small", "seed": seed, "epochs": 10},
            **{"group": "rot4", "model": "cnn6", "feature_groups": "4", "width": 0.125},
        },
        "changes": {},
        "data": {
            **{"name": "rot-mnist", "source": "generated", "train": 12000, "test": 50000},
            "tested_on": "test",
        },
        "versions": {"ien": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.0", "python": "3.11.7"},
        "machine": "A processor of some maker, model 1234 @ 2.00 GHz, 2 threads, Linux",
        "commit": "abc1234",
        "finished": f"2026-11-16T02:00:{seed % 60:02}+00:00",
        "seconds": 201.3,
        "accuracy": float(rng.uniform(0.9, 1)),
        "accuracy_with_copies": float(rng.uniform(0.9, 1)),
        "layers": {
            name: {"raw": float(10 ** rng.uniform(-9, 0)), "relative": float(10 ** rng.uniform(-9, 0))}
            for name in LAYERS
        },
        "parameters": 174_000,
        "trained_parameters": 174_000,
        "macs": 12_345_678,
        "images_per_second": float(rng.uniform(5000, 7000)),
        "images_seen": 240_000,
    }
    change(record, fields)
    return record


def change(record: dict[str, Any], fields: dict[str, Any]) -> None:
    """Set fields of a record; two underscores lead inside, one may stand for a hyphen."""
    for name, value in fields.items():
        inside = record
        *parents, last = name.split("__")
        for parent in parents:
            inside = inside[parent if parent in inside else parent.replace("_", "-")]
        inside[last] = value


def write_records(folder: Path, *records: dict[str, Any]) -> Path:
    """One file for each record, below what was there before."""
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.iterdir()))
    for i, record in enumerate(records, start):
        (folder / f"{i:03}.json").write_text(json.dumps(record))
    return folder


def parse(markdown: str) -> dict[str, list[dict[str, str]]]:
    """The tables of a Markdown text, by heading, a dict for each line."""
    tables = {}
    for part in re.split(r"^### ", markdown, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line[:1] == "|"]
        if cells:
            assert all(len(line) == len(cells[0]) for line in cells)
            tables[heading] = [dict(zip(cells[0], line, strict=True)) for line in cells[2:]]
    return tables
