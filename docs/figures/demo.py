"""What the four networks of ``ien demo`` make of rotated digits: demo-features.png, demo-angles.png.

Run ``ien demo`` first: it trains them, into runs/demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from records import save

import ien
from ien.experiments.demo import NETWORKS
from ien.report.opened import OpenedRun, open_runs
from ien.report.plots.angles import plot_angles
from ien.report.plots.features import plot_features

RUNS = Path("runs/demo")
IMAGE = 3
LAYERS = ("conv1", "conv3", "conv5")
ANGLES = 72


def networks() -> list[OpenedRun]:
    """Open the runs, under the names that the demo has for them."""
    folders = []
    for experiment in NETWORKS.values():
        folders.append(RUNS / experiment / "demo-seed1-embedded")
    opened = []
    for run, name in zip(open_runs(folders), NETWORKS, strict=True):
        opened.append(replace(run, name=name))
    return opened


def draw_features(runs: Sequence[OpenedRun]) -> Figure:
    return plot_features(runs, LAYERS, IMAGE)


def draw_angles(runs: Sequence[OpenedRun]) -> Figure:
    reports = {}
    for run in runs:
        reports[run.name] = ien.measure(
            run.model,
            run.images,
            ien.rotation(ANGLES),
            run.layers,
            run.feature_groups,
            labels=run.labels,
            floors=False,
        )
    return plot_angles(reports)


if __name__ == "__main__":
    runs = networks()
    save(draw_features(runs), "demo-features.png")
    save(draw_angles(runs), "demo-angles.png")
