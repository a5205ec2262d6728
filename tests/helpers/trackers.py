"""Made-up records of trackers, fixtures for tables and plots: nothing in them was measured."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tests.helpers.records import change, content

LENGTHS = {"Couple": 140, "Crossing": 120, "Diving": 215, "Man": 134, "Skiing": 81}
STILL = {"otb": (0.21, 0.25), "rot-otb": (0.11, 0.12)}
UNTRAINED = {"otb": (0.26, 0.31), "rot-otb": (0.14, 0.16)}
ROWS: dict[str, dict[str, Any]] = {
    "siamfc": {"feature_groups": "1", "beta": 0.0, "augment": False},
    "cnn4-siamfc": {"feature_groups": "4", "beta": 0.0, "augment": True},
    "re-siamfc": {"feature_groups": "4", "beta": 0.0, "augment": False, "model": "re-siamfc"},
    "ien-siamfc": {"feature_groups": "4", "beta": 0.1, "augment": True},
    "ien-siamfc-beta0.01": {"feature_groups": "4", "beta": 0.01, "augment": True},
    "ien-siamfc-beta1": {"feature_groups": "4", "beta": 1.0, "augment": True},
    "het-siamfc": {"feature_groups": "4-2-1", "beta": 0.1, "augment": True},
}
SKILL = dict(zip(ROWS, (0.2, 0.45, 0.7, 0.62, 0.5, 0.55, 0.57), strict=True))
"""From 0, losing a target as soon as it rotates, to 1, never losing it."""


def record(
    row: str = "ien-siamfc", seed: int = 1, tests: tuple[str, str] = ("otb", "rot-otb"), **fields: Any
) -> dict[str, Any]:
    """A record as a tracker's run writes it; ``data__source`` reaches inside."""
    rng = np.random.default_rng([seed, *row.encode()])
    plain, rotated = tests
    tracking = {
        plain: _score(SKILL[row], False, rng),
        rotated: _score(SKILL[row], True, rng),
        "still": {plain: _baseline(STILL["otb"]), rotated: _baseline(STILL["rot-otb"])},
        "untrained": {plain: _baseline(UNTRAINED["otb"]), rotated: _baseline(UNTRAINED["rot-otb"])},
    }
    made = content(row, seed, images_per_second=float(rng.uniform(4, 7)))
    del made["layers"]["conv6"]
    made["config"] = {
        **{"task": "tracking", "experiment": f"tracking/{row}", "preset": "small", "seed": seed},
        **{"dataset": "got10k", "model": "siamfc", "backbone": "alexnet-v2", "group": "rot4", "width": 0.25},
        **ROWS[row],
    }
    made["data"] = {"name": "got10k", "source": "subset", "train": 32, "test": 5, "tested_on": "test"}
    made |= dict.fromkeys(("accuracy", "accuracy_with_copies", "images_seen"))
    made |= {
        "parameters": 487_000,
        "trained_parameters": 487_000,
        "macs": 6_543_000_000,
        "tracking": tracking,
    }
    change(made, fields)
    return copy.deepcopy(made)


def _baseline(values: tuple[float, float]) -> dict[str, float]:
    success, precision = values
    return {"success": success, "precision": precision}


def _score(skill: float, rotates: bool, rng: np.random.Generator) -> dict[str, Any]:
    """Straight and bent curves, lower if the target rotates, and random numbers for the rest."""
    level = (0.5 + 0.4 * skill + rng.uniform(0, 0.05)) * (0.7 if rotates else 1)
    success, precision = level * np.linspace(1, 0, 21), level * np.linspace(0, 1, 51) ** 0.5
    sequences = {}
    for name, frames in LENGTHS.items():
        of_one = dict(zip(("success", "precision", "overlap"), rng.random(3).tolist(), strict=True))
        sequences[name] = {**of_one, "frames": frames}
    names = ("normalised_precision", "overlap", "centre_error", "orientation_error", "fps")
    return {
        "success": float(success.mean()),
        "precision": float(precision[20]),
        "precision_auc": float(precision.mean()),
        **dict(zip(names, rng.uniform((0.2, 0.2, 10, 20, 4), (0.6, 0.6, 60, 80, 7)).tolist(), strict=True)),
        **({} if rotates else {"orientation_error": None}),
        "success_curve": success.tolist(),
        "precision_curve": precision.tolist(),
        "sequences": sequences,
        "by_orientation": _bins(24, rng) if rotates else None,
        "by_angle": _bins(86, rng) if rotates else None,
    }


def _bins(count: int, rng: np.random.Generator) -> list[list[float]]:
    return [[15 * k, float(rng.random()), 9] for k in range(count)]
