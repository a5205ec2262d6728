"""The page of the gallery: an ordinary CNN and an equivariant one of ``ien demo``, side by side: live.html.

The demo takes two minutes on two cores, and none if its runs are there already.
"""

from __future__ import annotations

from pathlib import Path

from ien.experiments.demo import NETWORKS, demo
from ien.report.page.build import write_runs_page

RUNS = Path("runs/demo")
SHOWN = ("ordinary CNN", "equivariant CNN")
IMAGES = 4
"""Few: readers have to download them."""

if __name__ == "__main__":
    demo(out=RUNS)
    folders = [RUNS / NETWORKS[name] / "demo-seed1-embedded" for name in SHOWN]
    write_runs_page(folders, Path(__file__).with_suffix(".html"), measured=100, shown=IMAGES)
