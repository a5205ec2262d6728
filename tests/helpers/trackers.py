"""Made-up records of trackers, fixtures for tables and plots: nothing in them was measured."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tests.helpers.records import change, content

LENGTHS = {"Couple": 140, "Crossing": 120, "Diving": 215, "Man": 134, "Skiing": 81}
RATE = 6
"""Degrees by which a target of the rotated sequences rotates in a frame."""
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
        **{"task": "track", "experiment": f"tracking/{row}", "preset": "small", "seed": seed},
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
    """Overlaps that fall with time, faster if the target rotates, most between its quarter turns."""
    sequences: dict[str, dict[str, float]] = {}
    by_orientation: dict[int, list[float]] = {}
    by_angle: dict[int, list[float]] = {}
    success_curves, precision_curves = [], []
    loss_rate, dip = (3, 0.35) if rotates else (1.2, 0)
    for name, frames in LENGTHS.items():
        angles = RATE * np.arange(frames) * rotates
        decay = np.exp(-np.arange(frames) / frames * (1 - skill) * loss_rate)
        between = 1 - dip * np.abs(np.sin(np.deg2rad(2 * angles)))
        overlaps = np.clip(0.8 * decay * between + rng.normal(0, 0.05, frames), 0, 1)
        errors = np.abs(60 * (1 - overlaps) ** 2 + rng.normal(0, 3, frames))
        overlaps[0], errors[0] = 1, 0
        success = (overlaps[:, None] > np.linspace(0, 1, 21)).mean(0)
        precision = (errors[:, None] <= np.arange(51)).mean(0)
        success_curves.append(success)
        precision_curves.append(precision)
        sequences[name] = {
            "success": float(success.mean()),
            "precision": float(precision[20]),
            "overlap": float(overlaps.mean()),
            "frames": frames,
        }
        for degrees, overlap in zip(angles, overlaps.tolist(), strict=True):
            index = int(degrees / 15 + 0.5)
            by_orientation.setdefault(15 * (index % 24), []).append(overlap)
            by_angle.setdefault(15 * index, []).append(overlap)
    success, precision = np.mean(success_curves, axis=0), np.mean(precision_curves, axis=0)
    return {
        "success": float(success.mean()),
        "precision": float(precision[20]),
        "precision_auc": float(precision.mean()),
        "normalised_precision": float(rng.uniform(0.2, 0.6)),
        "overlap": float(rng.uniform(0.2, 0.6)),
        "centre_error": float(rng.uniform(10, 60)),
        "orientation_error": float(rng.uniform(20, 80)) if rotates else None,
        "fps": float(rng.uniform(4, 7)),
        "success_curve": success.tolist(),
        "precision_curve": precision.tolist(),
        "sequences": sequences,
        "by_orientation": _bins(by_orientation) if rotates else None,
        "by_angle": _bins(by_angle) if rotates else None,
    }


def _bins(values: dict[int, list[float]]) -> list[list[float]]:
    return [[degrees, float(np.mean(some)), len(some)] for degrees, some in sorted(values.items())]
