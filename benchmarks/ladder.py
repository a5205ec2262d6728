"""What ``ien symmetry`` says of data from exact symmetry to none: writes benchmarks/ladder.json, or --out.

    python benchmarks/ladder.py DATA --seeds 1

Every data set of the symmetry study, with the group that it is studied under: digits in all orientations,
within a range and upright, pictures from above, through a microscope and of rolled steel, and photographs.
Then wrong groups, and the same data with their labels shuffled, which break no symmetry. Training images
alone are looked at. What is in the file is not run again; the table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ien
from ien.data import load, to_float

ROOT = Path(__file__).parents[1]
DIGITS = 2000
"""How many digits or photographs are looked at; of the other sets, all training images."""


@dataclass(frozen=True)
class Rung:
    """Images with labels, and a group to ask about."""

    title: str
    dataset: str
    group: str
    max_angle: float = 180.0
    shuffled: bool = False


LADDER = (
    Rung("Digits in all orientations", "rot-mnist", "rot4"),
    Rung("Digits within ±90°", "rot-mnist", "rot4", max_angle=90),
    Rung("Digits within ±60°", "rot-mnist", "rot4", max_angle=60),
    Rung("Digits within ±30°", "rot-mnist", "rot4", max_angle=30),
    Rung("Upright digits", "rot-mnist", "rot4", max_angle=0),
    Rung("EuroSAT, satellite tiles", "eurosat", "rot4xflip"),
    Rung("UC Merced, aerial photographs", "uc-merced", "rot4xflip"),
    Rung("PBC, blood cells", "pbc-blood-cells", "rot4xflip"),
    Rung("NEU, rolled steel", "neu-steel", "rot2xflip"),
    Rung("Tiny ImageNet, upright photographs", "tiny-imagenet", "rot4"),
    Rung("Digits in all orientations: the wrong group", "rot-mnist", "flip"),
    Rung("NEU, rolled steel: the wrong group", "neu-steel", "rot4"),
    Rung("Upright digits, labels shuffled", "rot-mnist", "rot4", max_angle=0, shuffled=True),
    Rung("EuroSAT, labels shuffled", "eurosat", "rot4xflip", shuffled=True),
)


def look(rung: Rung, data: Path, seed: int) -> dict[str, Any]:
    """Ask about one rung; return what the table needs."""
    settings: dict[str, Any] = {"image_size": 32}
    if rung.dataset == "rot-mnist":
        settings = {"max_angle": rung.max_angle}
    elif rung.dataset == "tiny-imagenet":
        settings["classes"] = 20
    loaded = load(rung.dataset, str(data), 0, **settings)
    x, y = to_float(loaded.train_x), loaded.train_y
    if rung.dataset in ("rot-mnist", "tiny-imagenet"):
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:DIGITS]
        x, y = x[chosen], y[chosen]
    if rung.shuffled:
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    start = time.process_time()
    result = ien.symmetry(x, y, rung.group, seed=seed)
    assert result.held_out is not None  # it was not quick
    worst, best = result.held_out.interval
    layers = {name: round(heard.certainty, 2) for name, heard in result.layers.items()}
    return {
        "images": len(x),
        "group": rung.group,
        "certainty": round(result.certainty, 2),
        "of layers": layers,
        "difference": round(100 * result.held_out.difference, 2),
        "interval": [round(100 * worst, 2), round(100 * best, 2)],
        "verdict": result.verdict,
        "advice": result.advice,
        "seconds": round(time.process_time() - start),
    }


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table, a run each; rungs that were not run are left out."""
    lines = [
        "| images | group | certainty | tied − ordinary, points (95 %) | verdict |",
        "|---|---|---:|---:|---|",
    ]
    for rung in LADDER:
        for run in found.get(rung.title, {}).values():
            worst, best = (f"{bound:+.1f}" for bound in run["interval"])
            difference = f"{run['difference']:+.1f} ({worst} … {best})".replace("-", "−")
            cells = [
                rung.title,
                f"`{rung.group}`",
                f"{run['certainty']:.1f}".replace("-", "−"),
                difference,
                run["verdict"],
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "ladder.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    found: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        found = json.loads(options.out.read_text())
    for seed in options.seeds:
        for rung in LADDER:
            runs = found.setdefault(rung.title, {})
            if str(seed) in runs:
                continue
            runs[str(seed)] = {**look(rung, options.data, seed), "commit": commit.stdout.strip()}
            print(rung.title, seed, runs[str(seed)], flush=True)
            options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
