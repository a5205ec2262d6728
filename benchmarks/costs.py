"""Measures what each network of the Rot-TIM tables costs, and writes docs/costs.md.

For inference a steerable network is exported; it is then the same plain network as IEN's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ien
from ien.training.network import channels_last
from ien.training.run import processor

PAGE = Path(__file__).parents[1] / "docs" / "costs.md"
NETS = ("resnet18", "vgg")
GROUPS = {"r4": ("rot4", "4-2-1"), "r8": ("rot8", "8-4-2-1"), "r4r": ("rot4xflip", None)}
"""The group, and the mix of feature groups with fewer channels."""
NOTE = """Heterogeneous feature groups save fewer seconds than operations: narrow convolutions run less
efficiently, norms and sums shrink with the channels and not with their products, and with a batch of 1 the
time to call each layer stays the same. The wider the network and the larger the batch, the closer the ratio
comes to that of the MACs.
"""
SIZE = 64
TRAIN_BATCH = 32


@dataclass
class Variant:
    """One network, and those that it is compared with."""

    name: str
    base: str
    twin: str | None
    plain: nn.Module
    trained: nn.Module
    group: str
    beta: float | None
    """None for the base net, which sees one view of each image."""

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.plain.parameters())

    @property
    def macs(self) -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.plain.eval()(torch.zeros(1, 3, SIZE, SIZE))
        return counter.get_total_flops() // 2


def variants(net: str, width: float) -> list[Variant]:
    """The base net, and for each group the steerable net, IEN and heterogeneous IEN."""
    base = ien.models.create(net, feature_groups=1, width=width)
    found = [Variant(f"{net} base", f"{net} base", None, base.eval(), base, "rot4", None)]
    for name, (group, mix) in GROUPS.items():
        size = len(ien.group(group))
        steerable = ien.baselines.create(f"e2cnn-{net}", group=group, width=width)
        twin = f"{net} {name} e2cnn"
        plain = ien.models.create(net, feature_groups=size, width=width)
        found.append(Variant(twin, f"{net} base", twin, steerable.export().eval(), steerable, group, 0.0))
        found.append(Variant(f"{net} {name} ien", f"{net} base", twin, plain, plain, group, 0.1))
        if mix is not None:
            het = ien.models.create(net, feature_groups=mix, width=width)
            found.append(Variant(f"{net} r{mix} het-ien", f"{net} base", twin, het, het, group, 0.1))
    for variant in found:  # as runs train and test them
        for network in (variant.plain, variant.trained):
            channels_last(network)
    return found


def images(count: int) -> Tensor:
    return torch.rand(count, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)


def inference(variant: Variant, batch: int) -> Callable[[], object]:
    x = images(batch)

    def run() -> None:
        with torch.inference_mode():
            variant.plain.eval()(x)

    return run


def step(variant: Variant) -> Callable[[], object]:
    """One training step on a batch and, unless it is the base net, on a view of it."""
    x, y = images(TRAIN_BATCH), torch.randint(100, (TRAIN_BATCH,))
    net = variant.trained
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    objective = None
    if variant.beta is not None:
        layers = dict.fromkeys(net.taps, variant.beta)  # type: ignore[arg-type]
        objective = ien.EquivarianceLoss(variant.group, layers, net.feature_groups)  # type: ignore[arg-type]

    def run() -> None:
        net.train()
        optimizer.zero_grad()
        if objective is None:
            F.cross_entropy(net(x), y).backward()
        else:
            out = objective(net, x)
            (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()
        optimizer.step()

    return run


def measured(found: list[Variant], rounds: int) -> dict[str, dict[str, float]]:
    """Images per second of every variant, all of them in turn in each round; the medians."""
    tasks: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    for variant in found:
        tasks[variant.name, "batch 1"] = inference(variant, 1), 1
        tasks[variant.name, "batch 64"] = inference(variant, 64), 64
        tasks[variant.name, "training"] = step(variant), TRAIN_BATCH
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in tasks}
    for k in track(range(rounds + 1), "rounds", transient=True):
        for key, (run, count) in tasks.items():
            start = time.perf_counter()
            run()
            if k:  # the first round warms up
                seconds[key].append((time.perf_counter() - start) / count)
    speeds: dict[str, dict[str, float]] = {variant.name: {} for variant in found}
    for (name, what), values in seconds.items():
        speeds[name][what] = 1 / statistics.median(values)
    return speeds


def table(found: list[Variant], speeds: dict[str, dict[str, float]]) -> str:
    columns = ["batch 1", "batch 64", "training"]
    header = ["network", "params", "MACs"]
    header += [f"{name}: images/s (of base, of e2cnn)" for name in columns]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for variant in found:
        line = [variant.name, f"{variant.parameters / 1e6:.2f} M", f"{variant.macs / 1e6:,.0f} M"]
        for name in columns:
            speed = speeds[variant.name][name]
            of_base = speed / speeds[variant.base][name]
            of_twin = f", {speed / speeds[variant.twin][name]:.2f}" if variant.twin else ""
            line.append(f"{speed:,.0f} ({of_base:.2f}{of_twin})")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=float, default=0.25, help="factor on the paper's feature groups")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    parts = [
        "# What the networks cost\n",
        f"Written by `python benchmarks/costs.py` on {date.today()}: {processor()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}. Images of {SIZE}×{SIZE}, width "
        f"{arguments.width:g} of the paper's; medians of {arguments.rounds} rounds in which all take turns. "
        "Ratios above 1 are faster. Channels last. Training: a batch of 32 and, but for the base net, a view "
        "of each image.\n",
    ]
    for net in NETS:
        found = variants(net, arguments.width)
        speeds = measured(found, arguments.rounds)
        parts.append(f"## {net}\n\n{table(found, speeds)}\n")
        for name, mix in (("r4", "r4-2-1"), ("r8", "r8-4-2-1")):
            het, whole = speeds[f"{net} {mix} het-ien"], speeds[f"{net} {name} ien"]
            gains = ", ".join(f"{what} {het[what] / whole[what]:.2f}" for what in whole)
            parts.append(f"- {mix} het-ien against {name} ien, images/s: {gains}")
        parts.append("")
    parts.append(NOTE)
    text = "\n".join(parts)
    print(text)
    arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
