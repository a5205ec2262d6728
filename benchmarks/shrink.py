"""Shrunk networks beside hand-set Het ones of as many operations: writes benchmarks/shrink.json, or --out.

    python benchmarks/shrink.py --data DIR --sets rot-mnist eurosat --seeds 1 2 3

A network with feature groups of 4 is trained, shrunk to the operations of the hand-set R4-2-1, and
fine-tuned (shrunk). R4-2-1 with the loss (het), and the same network without it (cnn-aug), are trained for
as many epochs in all. In the row shrunk-trained, the network had all of these epochs before it was shrunk:
what comes of a network that you have already. het-longer is R4-2-1 with as many epochs as that one had,
those of fine-tuning included. What is in the file is not run again. With --validation the last training
images are held out, and nothing touches the test images: settings were chosen so.
"""

from __future__ import annotations

import argparse
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
ROWS = ("shrunk", "shrunk-trained", "het", "het-longer", "cnn-aug")
BEFORE = {"shrunk": "homogeneous", "shrunk-trained": "homogeneous-trained"}
"""Row → the name of the network that is shrunk."""
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

    def network(self, feature_groups: str | int, images: Images) -> nn.Module:
        return ien.models.create(
            self.model,
            feature_groups=feature_groups,
            width=self.width,
            num_classes=images.classes,
            in_channels=images.x.shape[1],
        )


SETS = {
    "rot-mnist": Setup("cnn6", "rot-mnist", {}, 64, 1.0, 6, 4, 1 / 8, 2000),
    "eurosat": Setup("resnet18", "eurosat", {"image_size": 33}, 32, 0.1, 9, 6, 1 / 8, 400),
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
    """Test a network; seconds are those of the CPU, for shrunk ones with scoring and tests in between."""
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


def run_shrunk(setup: Setup, images: Images, seed: int, row: str) -> dict[str, dict[str, Any]]:
    """Train, shrink and fine-tune; time what comes out beside the hand-set network."""
    before = BEFORE[row]
    epochs = setup.train_epochs
    if row == "shrunk-trained":
        epochs += setup.tune_epochs
    torch.manual_seed(seed)
    large = setup.network(4, images)
    start = time.process_time()
    train(large, images, setup, epochs, setup.beta, seed)
    results = {before: result(large, images, time.process_time() - start, 4)}

    hand_set = setup.network(HAND_SET, images).eval()
    wanted = ien.shrink(hand_set, images.x[:8], HAND_SET, keep=1).operations[0]
    shrunk = shrunk_to(large, images, wanted, seed)
    print(shrunk, flush=True)
    untuned = accuracy(shrunk.model, images.test_x, images.test_y)
    train(shrunk.model, images, setup, setup.tune_epochs, setup.beta, seed)
    results[row] = result(shrunk.model, images, time.process_time() - start, shrunk.feature_groups)
    results[row]["before_tuning"] = untuned
    results[row]["mix"] = {name: layer.sizes for name, layer in shrunk.layers.items()}

    nets = {"het": hand_set, before: large, row: shrunk.model}
    for name, times in latency(nets, images).items():
        results.setdefault(name, {})["latency"] = times
    return results


def run_hand_set(setup: Setup, images: Images, seed: int, row: str) -> dict[str, Any]:
    """Train the hand-set network; the row says whether with the loss, and whether longer."""
    beta = 0.0 if row == "cnn-aug" else setup.beta
    epochs = setup.train_epochs + setup.tune_epochs
    if row == "het-longer":
        epochs += setup.tune_epochs
    torch.manual_seed(seed)
    net = setup.network(HAND_SET, images)
    start = time.process_time()
    train(net, images, setup, epochs, beta, seed)
    return result(net, images, time.process_time() - start, HAND_SET)


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


def summary(seeds: dict[str, Any]) -> list[str]:
    """Lines with the mean accuracy, and its sample standard deviation, of each row."""
    lines = []
    for row in (*BEFORE.values(), *ROWS):
        done = [each[row] for each in seeds.values() if "accuracy" in each.get(row, {})]
        if not done:
            continue
        accuracies = [100 * each["accuracy"] for each in done]
        spread = statistics.stdev(accuracies) if len(done) > 1 else 0.0
        lines.append(f"{row}: {statistics.mean(accuracies):.2f} ± {spread:.2f} ({len(done)} seeds)")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist and eurosat")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--validation", action="store_true", help="test on held-out training images")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "shrink.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    written: dict[str, Any] = {"sets": {}}
    if options.out.exists():
        written = json.loads(options.out.read_text())
    written["machine"] = f"{platform.machine()}, 1 thread, torch {torch.__version__}"
    written["tested on"] = "validation" if options.validation else "test"
    for name in options.sets:
        setup = SETS[name]
        images = load(setup, options.data, options.validation)
        seeds = written["sets"].setdefault(name, {})
        for row in options.rows:
            for seed in options.seeds:
                found = seeds.setdefault(str(seed), {})
                if "accuracy" in found.get(row, {}):
                    continue
                if row in BEFORE:
                    results = run_shrunk(setup, images, seed, row)
                else:
                    results = {row: run_hand_set(setup, images, seed, row)}
                for key, values in results.items():
                    found.setdefault(key, {}).update(values)
                    print(name, seed, key, values, flush=True)
                options.out.write_text(json.dumps(written, indent=1) + "\n")
        print(name, *summary(seeds), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
