"""The page of the gallery is that of ``ien demo``: live.html.

The demo takes two minutes on two cores, and none if its runs are there already.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ien.experiments.demo import demo

RUNS = Path("runs/demo")

if __name__ == "__main__":
    demo(out=RUNS)
    shutil.copy(RUNS / "report.html", Path(__file__).with_suffix(".html"))
