"""What each table of the paper costs on a GPU at preset ``paper``: the table in guides/clusters.md.

    operations of a run  =  3 · 2 · MACs of an image · images · views · epochs

The backward pass costs about twice the forward pass, so a step costs three; a multiply-accumulate is
two operations. MACs are counted on the networks themselves, images and views come from the
configurations. How much of its peak a GPU reaches is assumed, not measured.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ien.experiments.catalogue import CATALOGUE, config
from ien.training import Config, kind_of
from ien.training.network import build, count_views, objective_of, plain_of
from ien.training.schedule import epoch_length

PAGE = Path(__file__).parent / "guides" / "clusters.md"
TABLES = ("rot-mnist", "rot-tim", "r2-tim", "scale-mnist", "stl10", "rot-scale-mnist")
GPUS = {"T4": 8.1, "RTX 4090": 82.6, "A100": 19.5, "H100 SXM": 66.9}
"""Peak TFLOP/s in float32 without tensor cores, as their makers publish it."""
ACHIEVED = 0.3
"""The share of the peak that we assume training to reach."""
START, END = "<!-- gpu_hours.py -->", "<!-- end -->"


def macs_of(settings: Config, network: nn.Module) -> int:
    """Count the multiply-accumulates of one image in training, on tensors without values."""
    size = settings.data.image_size
    shape = (settings.data.channels or 3, size, size)
    if settings.data.dataset.endswith("mnist"):  # digits are enlarged inside the network
        shape = (1, 28, 28)
    batch = torch.empty(64, *shape, device="meta")  # kernels made from a basis are made once for it
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(plain_of(network)).to("meta").eval()(batch)
    return counter.get_total_flops() // 2 // len(batch)


def operations(settings: Config) -> float:
    """Estimate the operations of a whole training run; 0 for a row that trains nothing."""
    if settings.weights_of:
        return 0.0
    network = build(settings)
    views = count_views(objective_of(settings, network))
    total = kind_of(settings).epoch_items(settings, None).total
    _, images = epoch_length(settings, total, views, settings.machine.processes)
    return 3.0 * 2 * macs_of(settings, network) * images * views * settings.schedule.epochs


def table() -> str:
    """Return the hours of every table, for one seed of all its rows, as Markdown."""
    lines = ["| table | runs | operations |" + "".join(f" {gpu} |" for gpu in GPUS)]
    lines.append("|---|---:|---:|" + "---:|" * len(GPUS))
    for name in TABLES:
        runs = []
        for row in CATALOGUE[name].rows:
            runs.append(operations(config(f"{name}/{row}", "paper")))
        trained = [run for run in runs if run > 0]
        total = sum(trained)
        cells = [name, f"{len(trained)}", f"{total / 1e18:,.2f} · 10¹⁸"]
        for peak in GPUS.values():
            hours = total / (ACHIEVED * peak * 1e12) / 3600
            cells.append(f"{hours:,.1f} h" if hours < 10 else f"{hours:,.0f} h")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into the page; it takes a few minutes, mostly to build the networks."""
    hours = table()
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{hours}\n\n{END}{after}")
    print(hours)


if __name__ == "__main__":
    main()
