"""Other ways to hold a remainder small than ``slack="auto"``, on validation digits.

    python benchmarks/slack_alternatives.py DATA [SEED …] > trials.jsonl

Trains the six-conv net, an eighth as wide as the paper's, for six epochs on 3,000 digits: in all
orientations, within ±60°, and upright. A line of JSON for each run: its accuracy on 2,000 other
training digits, and ‖r‖ / ‖P W‖ of the layer that has left the symmetry furthest. The table is in
docs/study.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import ien
from ien.data import load, to_float
from ien.models.cnn6 import cnn6
from ien.tying.listening import Listener
from ien.tying.slack import Remainder, relative_size

TRAIN, VALIDATION, BATCH, EPOCHS, MAX_LR = 3000, 2000, 64, 6, 5e-3
MAX_ANGLES = (180, 60, 0)


@dataclass(frozen=True)
class Way:
    """How remainders are held."""

    opens: str = "together"
    """When they may learn: all "together", each layer "alone", or from the "start"."""
    slack: float = 1.0
    """s at the start; the penalty is ‖r‖² / (s ‖P W‖²)."""
    last_slack: float | None = None
    """s at the end, if it changes: by equal factors, from step to step."""
    rate: float = 0.1
    """Their learning rate, as a share of the others'."""
    lasso: float = 0.0
    """A group lasso in place of the penalty: λ Σ √p ‖r‖, with the p numbers of each layer."""


WAYS: dict[str, Way | None] = {
    "tied": Way(opens="never"),
    "auto": Way(),
    "auto, rate 0.3": Way(rate=0.3),
    "auto, s = 0.3": Way(slack=0.3),
    "auto, s = 3": Way(slack=3.0),
    "auto, each layer alone": Way(opens="alone"),
    "s = 1 from the start": Way(opens="start"),
    "s from 10 to 0.1": Way(opens="start", slack=10.0, last_slack=0.1),
    "s from 0.01 to 1": Way(opens="start", slack=0.01, last_slack=1.0),
    "group lasso 0.1": Way(opens="start", lasso=0.1),
    "group lasso 0.3": Way(opens="start", lasso=0.3),
    "free": None,
}


def main(folder: str, seeds: list[int]) -> None:
    for seed in seeds:
        for max_angle in MAX_ANGLES:
            data = load("rot-mnist", folder, 0, max_angle=max_angle)
            for name, way in WAYS.items():
                accuracy, slack = run(way, to_float(data.train_x), data.train_y, seed)
                line = {"angle": max_angle, "seed": seed, "way": name, "accuracy": accuracy, "slack": slack}
                print(json.dumps(line), flush=True)


def run(way: Way | None, images: Tensor, labels: Tensor, seed: int) -> tuple[float, float]:
    """Train a network, and return its accuracy on validation images and its largest slack."""
    torch.manual_seed(seed)
    net = cnn6(4, width=1 / 8)
    x, y = images[:TRAIN], labels[:TRAIN]
    tied = None
    remainders: dict[str, Remainder] = {}
    groups = [{"params": list(net.parameters()), "rate": 1.0}]
    if way is not None:
        tied = ien.make_equivariant(net, "rot4", x[:16], 4, slack="auto")
        remainders = tied.remainders
        others, slow = tied.parameter_groups(MAX_LR)
        groups = [{**others, "rate": 1.0}, {**slow, "rate": way.rate}]
    listeners = list(listeners_of(way, remainders))
    optimizer = torch.optim.Adam(groups, lr=MAX_LR, weight_decay=1e-7)
    steps = -(-TRAIN // BATCH)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD([torch.zeros(1)], MAX_LR), MAX_LR, total_steps=EPOCHS * steps + 1
    )
    for epoch in range(EPOCHS):
        for step, batch in enumerate(torch.randperm(TRAIN).tensor_split(steps)):
            (lr,) = cycle.get_last_lr()
            for group in optimizer.param_groups:
                group["lr"] = lr * group["rate"]
            loss = F.cross_entropy(net(x[batch]), y[batch])
            if tied is not None and way is not None and not way.lasso:
                slack = slack_at(way, (epoch * steps + step) / (EPOCHS * steps))
                for held in tied._with_slack.values():
                    loss = loss + relative_size(held) / slack
            loss.backward()
            for listener in listeners:
                if not listener.opened:
                    listener.hear({name: remainders[name].free.grad for name in listener.remainders}, epoch)
            optimizer.step()
            optimizer.zero_grad()
            if way is not None and way.lasso:
                shrink(remainders, lr * way.rate * way.lasso)
            cycle.optimizer.step()
            cycle.step()
    net.eval()
    with torch.no_grad():
        chosen = slice(-VALIDATION, None)
        right = net(images[chosen]).argmax(1) == labels[chosen]
    slack = max(tied.slack().values()) if tied is not None else float("nan")
    return float(right.float().mean()), slack


def listeners_of(way: Way | None, remainders: dict[str, Remainder]) -> Iterator[Listener]:
    """Yield what decides when remainders open; open them if nothing does."""
    if way is None or way.opens == "never":
        return
    if way.opens == "together":
        yield Listener(remainders)
    for name, remainder in remainders.items():
        if way.opens == "alone":
            yield Listener({name: remainder})
        if way.opens == "start":
            remainder.open()


def slack_at(way: Way, share: float) -> float:
    """Return s after a share of all steps."""
    if way.last_slack is None:
        return way.slack
    return way.slack * (way.last_slack / way.slack) ** share


@torch.no_grad()
def shrink(remainders: dict[str, Remainder], amount: float) -> None:
    """Take a proximal step of the group lasso: each remainder loses some of its norm, or all."""
    for remainder in remainders.values():
        norm = float(remainder.value().norm())
        lost = amount * remainder.free.numel() ** 0.5
        remainder.free.mul_(max(0.0, 1 - lost / max(norm, 1e-12)))


if __name__ == "__main__":
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]] or [1, 2])
