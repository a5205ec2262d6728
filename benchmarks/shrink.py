"""Shrunk networks beside hand-set Het ones of as many operations: writes benchmarks/shrink.json, or --out.

    python benchmarks/shrink.py --data DIR --sets rot-mnist eurosat --seeds 1 2 3

A network with feature groups of 4 is trained, shrunk to the operations of the hand-set R4-2-1, and
fine-tuned. R4-2-1 with the loss, and the same network without it (CNN-aug), are trained for as many steps
in all. With --new-weights so is the shrunk mix: what the choice is worth without what was learned before.
With --validation nothing touches the test images: the last training images are held out and tested.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import compared, take_turns
from torch import Tensor, nn

import ien
from ien.data import load as load_data
from ien.data.dataset import to_float
from ien.training.config import Config
from ien.training.network import optimizer_of
from ien.training.schedule import learning_rate

ROOT = Path(__file__).parents[1]
HAND_SET = "4-2-1"
AGREEMENT_IMAGES = 5000
SCORED_IMAGES = 600
ROUNDS = {1: 400, 64: 60}
"""Batch size → rounds in which the networks take turns to be timed."""


@dataclass(frozen=True)
class Setup:
    """A data set, its network and how long it is trained."""

    model: str
    dataset: str
    settings: dict[str, Any]
    batch_size: int
    beta: float
    train_epochs: int
    """Of the network that is shrunk; the others have those of fine-tuning besides."""
    tune_epochs: int
    width: float
    held_out: int
    """Training images that --validation tests on."""

    def network(self, feature_groups: str | int, classes: int, channels: int) -> nn.Module:
        return ien.models.create(
            self.model,
            feature_groups=feature_groups,
            width=self.width,
            num_classes=classes,
            in_channels=channels,
        )


SETS = {
    "rot-mnist": Setup("cnn6", "rot-mnist", {}, 64, 1.0, 6, 4, 1 / 8, 2000),
    "eurosat": Setup("resnet18", "eurosat", {"image_size": 33}, 32, 0.1, 12, 8, 1 / 8, 400),
}


@dataclass
class Images:
    """What is trained and tested on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


def load(setup: Setup, data: Path, validation: bool) -> Images:
    dataset = load_data(setup.dataset, str(data), 0, **setup.settings)
    x, y = to_float(dataset.train_x), dataset.train_y
    test_x, test_y = dataset.test_x, dataset.test_y
    if validation:
        kept = len(x) - setup.held_out
        x, y, test_x, test_y = x[:kept], y[:kept], x[kept:], y[kept:]
    return Images(x, y, to_float(test_x), test_y, dataset.classes)


def train(net: nn.Module, images: Images, setup: Setup, epochs: int, beta: float, seed: int) -> None:
    """Train, or fine-tune, with the recipe of small: Adam, one cycle over four fifths of the epochs."""
    cycle = epochs * 4 // 5
    changes = {"batch_size": setup.batch_size, "epochs": epochs, "cycle_epochs": cycle}
    config = Config.of("rot-mnist/ien-r4", "small", **changes)
    objective = ien.EquivarianceLoss("rot4", dict.fromkeys(net.taps, beta), net.feature_groups)
    optimizer = optimizer_of(config, net)
    draws = torch.Generator().manual_seed(seed)
    steps = -(-len(images.x) // setup.batch_size)
    step = 0
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(images.x), generator=draws)
        for batch in order.tensor_split(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step, steps)
            out = objective(net, images.x[batch], generator=draws)
            loss = F.cross_entropy(out.output, out.repeat(images.y[batch])) + out.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    net.eval()


@torch.inference_mode()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    net.eval()
    hits = 0
    for some, labels in zip(x.split(500), y.split(500), strict=True):
        hits += int((net(some).argmax(1) == labels).sum())
    return hits / len(x)


def result(net: nn.Module, images: Images, seconds: float, feature_groups: Any) -> dict[str, Any]:
    """Test a network; seconds are those of a CPU that it was trained for."""
    some = images.test_x[:AGREEMENT_IMAGES]
    agreement = ien.compare({"it": net}, some, "rot4", batch_size=500).versions["it"].all_agree
    counted = ien.shrink(net, images.x[:8], feature_groups, keep=1)  # changes nothing
    return {
        "accuracy": accuracy(net, images.test_x, images.test_y),
        "agreement": agreement,
        "channels": counted.channels[0],
        "parameters": counted.parameters[0],
        "operations": counted.operations[0],
        "seconds": round(seconds, 1),
    }


def shrunk_to(net: nn.Module, images: Images, operations: int, seed: int) -> ien.Shrunk:
    """Shrink a network to this many operations, by the loss on training images."""
    chosen = torch.randperm(len(images.x), generator=torch.Generator().manual_seed(seed))[:SCORED_IMAGES]
    x, y = images.x[chosen], images.y[chosen]
    keep = operations / ien.shrink(net, x[:8], 4, keep=1).operations[0]
    return ien.shrink(net, x, 4, keep, y, budget="operations")


def reset(net: nn.Module) -> None:
    """Draw all weights again."""
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def run(
    setup: Setup, images: Images, seed: int, new_weights: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, nn.Module]]:
    """Train all networks of a seed; return their results and themselves."""
    results: dict[str, dict[str, Any]] = {}
    nets: dict[str, nn.Module] = {}
    in_channels = images.x.shape[1]
    total = setup.train_epochs + setup.tune_epochs

    def trained(
        name: str, net: nn.Module, epochs: int, beta: float, feature_groups: Any, before: float = 0.0
    ) -> None:
        start = time.process_time()
        train(net, images, setup, epochs, beta, seed)
        results[name] = result(net, images, before + time.process_time() - start, feature_groups)
        nets[name] = net
        print(f"seed {seed} {name}: {results[name]}", flush=True)

    torch.manual_seed(seed)
    trained("het", setup.network(HAND_SET, images.classes, in_channels), total, setup.beta, HAND_SET)
    torch.manual_seed(seed)
    net = setup.network(4, images.classes, in_channels)
    trained("homogeneous", net, setup.train_epochs, setup.beta, 4)

    start = time.process_time()
    shrunk = shrunk_to(net, images, results["het"]["operations"], seed)
    print(shrunk, flush=True)
    seconds = results["homogeneous"]["seconds"] + time.process_time() - start
    untuned = accuracy(shrunk.model, images.test_x, images.test_y)
    again = copy.deepcopy(shrunk.model)
    trained("shrunk", shrunk.model, setup.tune_epochs, setup.beta, shrunk.feature_groups, seconds)
    results["shrunk"]["before_tuning"] = untuned
    results["shrunk"]["mix"] = {name: layer.sizes for name, layer in shrunk.layers.items()}
    torch.manual_seed(seed)
    trained("cnn-aug", setup.network(HAND_SET, images.classes, in_channels), total, 0.0, HAND_SET)
    if new_weights:
        torch.manual_seed(seed)
        reset(again)
        trained("shrunk mix, new weights", again, total, setup.beta, shrunk.feature_groups)
    return results, nets


def latency(nets: dict[str, nn.Module], images: Images) -> dict[str, dict[str, Any]]:
    """Let networks take turns; return milliseconds, and the ratio to the hand-set mix, by batch size."""
    found: dict[str, dict[str, Any]] = {}
    for size, rounds in ROUNDS.items():
        x = images.test_x[:size].contiguous()
        runs = {name: partial(net, x) for name, net in nets.items()}
        with torch.inference_mode():
            seconds = take_turns(runs, rounds)
        for name, taken in seconds.items():
            ratio = compared(taken, seconds["het"])
            found.setdefault(name, {})[f"batch {size}"] = {
                "milliseconds": round(statistics.median(taken) * 1e3, 3),
                "of het": [round(value, 3) for value in (ratio.low, ratio.value, ratio.high)],
            }
    return found


def summary(name: str, seeds: dict[str, Any]) -> str:
    lines = [f"{name}: accuracy % and milliseconds relative to het at batch 1 and 64"]
    for row in next(iter(seeds.values())):
        accuracies = [100 * each[row]["accuracy"] for each in seeds.values()]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        times = []
        for size in ROUNDS:
            ratios = [each[row]["latency"][f"batch {size}"]["of het"][1] for each in seeds.values()]
            times.append(f"{statistics.mean(ratios):.2f}")
        lines.append(f"  {row}: {statistics.mean(accuracies):.2f} ± {spread:.2f}  {' '.join(times)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist and eurosat")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--validation", action="store_true", help="test on held-out training images")
    parser.add_argument("--new-weights", action="store_true", help="train the shrunk mix anew as well")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "shrink.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    written: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}",
        "tested on": "validation" if options.validation else "test",
        "sets": {},
    }
    if options.out.exists():  # sets that do not run now stay
        written["sets"] = json.loads(options.out.read_text())["sets"]
    for name in options.sets:
        setup = SETS[name]
        images = load(setup, options.data, options.validation)
        seeds: dict[str, Any] = {}
        for seed in options.seeds:
            results, nets = run(setup, images, seed, options.new_weights)
            for row, times in latency(nets, images).items():
                results[row]["latency"] = times
            seeds[str(seed)] = results
            written["sets"][name] = seeds
            options.out.write_text(json.dumps(written, indent=1) + "\n")
        print(summary(name, seeds), flush=True)


if __name__ == "__main__":
    main()
