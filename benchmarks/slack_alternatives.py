"""Other ways to hold a remainder small than ``slack="auto"``, on validation digits.

    python benchmarks/slack_alternatives.py DATA [SEED …] > trials.jsonl

Trains the six-conv net, an eighth as wide as the paper's, for six epochs on 3,000 digits: in all
orientations, within ±60°, and upright. A line of JSON for each run: its accuracy on 2,000 other
training digits, and ‖r‖ / ‖P W‖ of the layer that has left the symmetry furthest. The table is in
docs/study.md. Beside variants of ours there are three published ideas, in the form that fits here: a
penalty on the projection alone (arXiv:2601.05028), a constraint held by a multiplier for each layer
(arXiv:2505.13631), and relaxation that each layer modulates (after arXiv:2602.02853).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien._text import without_nan
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
    """When they may learn: all "together" or each layer "alone", as soon as training gradients ask for
    it; from the "start"; or only while gradients of training and of "held-out" images agree."""
    slack: float = 1.0
    """s at the start; the penalty is ‖r‖² / (s ‖P W‖²)."""
    last_slack: float | None = None
    """s at the end, if it changes: by equal factors, from step to step."""
    rate: float = 0.1
    """Their learning rate, as a share of the others'."""
    lasso: float = 0.0
    """A group lasso in place of the penalty: λ Σ √p ‖r‖, with the p numbers of each layer."""
    projection: float = 0.0
    """The squared distance from the tied weights in place of the penalty: λ Σ ‖r‖²."""
    at_most: float | None = None
    """A bound on ‖r‖² / ‖P W‖² in place of s: 1 / s of each layer grows while it is above, by dual ascent."""
    modulated: bool = False
    """Whether each layer learns by its own agreement on held-out images, at rate · agreement."""


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
    "held-out images agree": Way(opens="held-out", rate=0.3),
    "held-out images modulate each layer": Way(opens="held-out", rate=0.3, modulated=True),
    "projection penalty 0.1": Way(opens="start", rate=1.0, projection=0.1),
    "projection penalty 1": Way(opens="start", rate=1.0, projection=1.0),
    "multipliers hold ‖r‖ / ‖P W‖ to 0.1": Way(opens="start", at_most=0.01),
    "multipliers hold ‖r‖ / ‖P W‖ to 0.03": Way(opens="start", at_most=0.001),
    "free": None,
}
HELD_OUT = 300
"""Training images that decide, in the ways that hold some out; the others learn without them."""
HELD_OUT_EVERY = 3
"""Steps between two looks at held-out images."""
MEMORY = 0.95
"""How much of the running mean of gradients stays at each look."""
MIN_AGREEMENT = 0.1
"""The cosine of the two running means above which remainders learn."""
DUAL_RATE = 0.1
"""How fast multipliers grow, for each step and each multiple of the bound."""


def main(folder: str, seeds: list[int]) -> None:
    for seed in seeds:
        for max_angle in MAX_ANGLES:
            data = load("rot-mnist", folder, 0, max_angle=max_angle)
            for name, way in WAYS.items():
                accuracy, slack = run(way, to_float(data.train_x), data.train_y, seed)
                line = {"angle": max_angle, "seed": seed, "way": name}
                line |= {"accuracy": round(accuracy, 4), "slack": without_nan(round(slack, 4))}
                print(json.dumps(line, ensure_ascii=False), flush=True)


def run(way: Way | None, images: Tensor, labels: Tensor, seed: int) -> tuple[float, float]:
    """Train a network, and return its accuracy on validation images and its largest slack."""
    torch.manual_seed(seed)
    net = cnn6(4, width=1 / 8)
    x, y = images[:TRAIN], labels[:TRAIN]
    remainders: dict[str, Remainder] = {}
    others = list(net.parameters())
    tied = None
    if way is not None:
        tied = ien.make_equivariant(net, "rot4", x[:16], 4, slack="auto")
        remainders = tied.remainders
        others = tied.parameter_groups(MAX_LR)[0]["params"]
    held = Held(way, tied) if tied is not None and way is not None else None
    listeners = list(listeners_of(way, remainders))
    agreement = None
    learnt = TRAIN
    if way is not None and way.opens == "held-out":
        learnt = TRAIN - HELD_OUT
        agreement = Agreement(net, remainders, x[learnt:], y[learnt:])
    groups: list[dict[str, Any]] = [{"params": others, "rate": 1.0}]
    if way is not None:
        for remainder in remainders.values():
            groups.append({"params": [remainder.free], "rate": way.rate})
    optimizer = torch.optim.Adam(groups, lr=MAX_LR, weight_decay=1e-7)
    steps = -(-learnt // BATCH)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD([torch.zeros(1)], MAX_LR), MAX_LR, total_steps=EPOCHS * steps + 1
    )
    for epoch in range(EPOCHS):
        for step, batch in enumerate(torch.randperm(learnt).tensor_split(steps)):
            (lr,) = cycle.get_last_lr()
            for group in optimizer.param_groups:
                group["lr"] = lr * group["rate"]
            if agreement is not None and step % HELD_OUT_EVERY == 0:
                agreement.look_at_held_out()
            task = F.cross_entropy(net(x[batch]), y[batch])
            if agreement is not None:
                agreement.hear_training(task)
            loss = task
            if held is not None:
                loss = loss + held.penalty((epoch * steps + step) / (EPOCHS * steps))
            loss.backward()
            for listener in listeners:
                if not listener.opened:
                    listener.hear({name: remainders[name].free.grad for name in listener.remainders}, epoch)
            if agreement is not None and way is not None:
                agreement.decide(
                    way.modulated, dict(zip(remainders, optimizer.param_groups[1:], strict=True))
                )
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


class Held:
    """What holds remainders small: the penalty of a way, step by step."""

    def __init__(self, way: Way, tied: ien.Tied) -> None:
        self.way = way
        self.tied = tied
        self.multipliers = dict.fromkeys(tied.remainders, 1.0)
        """1 / s of each layer, if dual ascent sets it."""

    def penalty(self, share: float) -> Tensor:
        """What is added to the loss, after a share of all steps."""
        total = torch.zeros(())
        if self.way.lasso:
            return total  # shrink() takes its place
        if self.way.projection:
            for remainder in self.tied.remainders.values():
                total = total + self.way.projection * remainder.value().square().sum()
            return total
        for name, parametrizations in self.tied._with_slack.items():
            size = relative_size(parametrizations)
            if self.way.at_most is None:
                total = total + size / slack_at(self.way, share)
                continue
            total = total + self.multipliers[name] * size
            excess = float(size.detach()) / self.way.at_most - 1
            self.multipliers[name] = max(0.0, self.multipliers[name] + DUAL_RATE * excess)
        return total


class Agreement:
    """Running means of the task's gradient in the remainders, on training and on held-out images."""

    def __init__(self, net: nn.Module, remainders: dict[str, Remainder], x: Tensor, y: Tensor) -> None:
        self.net, self.x, self.y = net, x, y
        self.free = {name: remainder.free for name, remainder in remainders.items()}
        self.training = {name: torch.zeros_like(free) for name, free in self.free.items()}
        self.held_out = {name: torch.zeros_like(free) for name, free in self.free.items()}
        self.convolutions = [name for name, free in self.free.items() if free.ndim == 4]

    def look_at_held_out(self) -> None:
        """Add the gradient of a batch of held-out images."""
        batch = torch.randperm(len(self.x))[:BATCH]
        self._add(self.held_out, F.cross_entropy(self.net(self.x[batch]), self.y[batch]))

    def hear_training(self, task: Tensor) -> None:
        """Add the gradient of a training batch."""
        self._add(self.training, task, keep=True)

    def decide(self, modulated: bool, groups: dict[str, dict[str, Any]]) -> None:
        """Let remainders of convolutions learn if the means agree, each at its own rate if modulated."""
        cosines = {}
        for name in self.convolutions:
            pair = self.training[name].flatten(), self.held_out[name].flatten()
            cosines[name] = float(F.cosine_similarity(*pair, dim=0))
        mean = sum(cosines.values()) / len(cosines)
        for name, free in self.free.items():
            agreement = cosines.get(name, 0.0) if modulated else mean
            if name not in cosines or agreement <= MIN_AGREEMENT:
                free.grad = None  # the optimizer leaves it alone
            elif modulated:
                groups[name]["lr"] *= agreement

    def _add(self, means: dict[str, Tensor], loss: Tensor, keep: bool = False) -> None:
        gradients = torch.autograd.grad(loss, list(self.free.values()), retain_graph=keep)
        for name, gradient in zip(self.free, gradients, strict=True):
            means[name].mul_(MEMORY).add_(gradient, alpha=1 - MEMORY)


def listeners_of(way: Way | None, remainders: dict[str, Remainder]) -> Iterator[Listener]:
    """Yield what decides when remainders open; open them if nothing does."""
    if way is None or way.opens == "never":
        return
    if way.opens == "together":
        yield Listener(remainders)
    for name, remainder in remainders.items():
        if way.opens == "alone":
            yield Listener({name: remainder})
        if way.opens in ("start", "held-out"):
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
