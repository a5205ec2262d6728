"""Measures what the loss and tied weights cost, as ratios, and writes docs/benchmarks.md.

Machines are noisy, so the two sides of a ratio take turns and their medians are compared.
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import ien
from ien import experiments
from ien.data import Dataset
from ien.tracking.data.clips import otb
from ien.tracking.data.rot_otb import write
from ien.tracking.data.sets import Clips
from ien.tracking.data.synthetic import synthetic
from ien.tracking.training.task import TRACK_TARGETS
from ien.training import ALONE, change, changed
from ien.training.classify import CLASSIFY
from ien.training.loop import take_step, train
from ien.training.network import channels_last
from ien.training.run import processor
from ien.tying import listening

BATCH = 64
R4 = ien.rotation(4)
TIED_NETS = {
    (128, "rot4", "free"): "≤ 1.03",
    (128, "rot4", "smooth"): "≤ 1.03",
    (128, "rot8", "smooth"): "≤ 1.06",
    (16, "rot4", "free"): "≤ 1.05",
    (16, "rot4", "smooth"): "≤ 1.05",
    (16, "rot8", "smooth"): "≤ 1.06",
}
"""First channels, group and kernels of tied networks, and what a step may cost beside a plain one."""
LAYERS = [f"conv{i}" for i in range(1, 7)]
# by default glibc returns large blocks to the system, and each new one costs page faults
USE_ALL_OF_IEN = """if True:
    import ien
    ien.EquivarianceLoss, ien.EquivarianceError, ien.make_equivariant, ien.measure, ien.doctor, ien.adapt"""
"""``import ien`` alone loads nothing: names load when they are first used."""
KEEPING_MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184"
}
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def ratio(slow: Callable[[], object], fast: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Let both take turns; return the median seconds of each and the median of their ratios."""
    slow(), fast()
    pairs = [(_seconds(slow), _seconds(fast)) for _ in range(rounds)]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    return a, b, statistics.median(x / y for x, y in pairs)


def _seconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def steps(channels: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward with the loss on six layers, and with cross-entropy only on the same images."""
    torch.manual_seed(0)
    net = ien.models.create("cnn6", width=channels / 128)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    views = torch.cat([x, R4.act(x, R4.sample(BATCH))])
    objective = ien.EquivarianceLoss(R4, LAYERS, feature_groups=4)

    def with_loss() -> None:
        net.zero_grad()
        out = objective(net, x)
        (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()

    def plain() -> None:
        net.zero_grad()
        F.cross_entropy(net(views), y.repeat(2)).backward()

    return with_loss, plain


def step_of(net: nn.Module, x: Tensor) -> Callable[[], None]:
    """A whole step of training: forward, backward and Adam."""
    y = torch.randint(10, (len(x),))
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net.train()

    def run() -> None:
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def tied_steps(channels: int, group: str, kernels: Any) -> tuple[Callable[[], None], ...]:
    """A step of a tied network, of the same network as it is, and of the steerable twin."""
    torch.manual_seed(0)
    x = torch.rand(BATCH, 1, 28, 28)
    members = len(ien.group(group))
    width = channels / members / 32
    tied, plain = (ien.models.create("cnn6", feature_groups=members, width=width) for _ in range(2))
    ien.make_equivariant(tied, group, x[:4], members, kernels=kernels)
    steerable = ien.baselines.create("e2cnn-cnn6", group=group, width=width)
    return step_of(tied, x), step_of(plain, x), step_of(steerable, x)


def slack_steps(slack: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of a network with slack, which listens if it is automatic, and of the same one tied."""
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    loose, tied = (ien.models.create("cnn6", width=1 / 8) for _ in range(2))
    made = ien.make_equivariant(loose, "rot4", x[:4], 4, slack=slack)
    ien.make_equivariant(tied, "rot4", x[:4], 4)
    optimizer = torch.optim.Adam(made.parameter_groups(1e-3), fused=True)
    loose.train()
    listening.MIN_SIGNAL = math.inf  # the same images again and again: it would open

    def run() -> None:
        (F.cross_entropy(loose(x), y) + made.penalty()).backward()
        if slack == "auto":
            made.listen(0)
        optimizer.step()
        optimizer.zero_grad()

    return run, step_of(tied, x)


def tied_resnet18() -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of a tied ResNet18 on 16 images of 64 pixels, and of the same network as it is."""
    torch.manual_seed(0)
    x = torch.rand(16, 3, 64, 64)
    tied, plain = (ien.models.create("resnet18", feature_groups=4, num_classes=10) for _ in range(2))
    ien.make_equivariant(tied, "rot4", x[:4], 4)
    return step_of(tied, x), step_of(plain, x)


def plain_inferences() -> tuple[Callable[[], None], Callable[[], None]]:
    """64 images through a network that was tied and is plain again, and through one that never was."""
    x = torch.rand(BATCH, 1, 28, 28)
    tied, bare = (ien.models.create("cnn6", feature_groups=4, width=1 / 4).eval() for _ in range(2))
    ien.make_equivariant(tied, "rot4", x[:4], 4)
    ien.make_plain(tied)

    def run(net: nn.Module) -> Callable[[], None]:
        def forward() -> None:
            with torch.inference_mode():
                net(x)

        return forward

    return run(tied), run(bare)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(before, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(before, middle, stride))
            before = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


NO_KERNELS = (
    "detach",
    "_unsafe_view",
    "empty",
    "empty_like",
    "new_empty",
    "lift_fresh",
    "_local_scalar_dense",  # AdamW reads its step counters, which stay on the CPU
    "_record_function_enter_new",
    "_record_function_exit",
)
"""Operations that launch no kernel, besides views."""


class Launches(TorchDispatchMode):
    """Counts the operations that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        launches = not operation.is_view and name not in NO_KERNELS
        self.count += launches
        return result


def launches_of_resnet50(kernels: Any) -> tuple[int, int, float]:
    """Operations that tying ResNet-50 adds to a pass, those of AdamW's step, and seconds to tie it."""
    torch.manual_seed(0)
    net = resnet50()
    x = torch.rand(2, 3, 225, 225)

    def passes() -> int:
        net.train()
        with Launches() as counted:
            net(x).sum().backward()
        return counted.count

    plain = passes()
    seconds = _seconds(lambda: ien.make_equivariant(net, "rot4", x, kernels=kernels))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    added = passes() - plain
    optimizer.step()  # the first makes its state
    passes()
    with Launches() as counted:
        optimizer.step()
    return added, counted.count, seconds


def trainings() -> tuple[Callable[[], None], Callable[[], None]]:
    """A short run of rot-mnist/ien-r4 at small in the engine, and the same steps as a bare loop."""
    x, y = torch.randint(256, (1920, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (1920,))
    dataset = Dataset("rot-mnist", "random", x, y, x[:2], y[:2], classes=10)
    config = change(experiments.config("rot-mnist/ien-r4", "small"), ["epochs=2", "device=cpu"])
    config = changed(config, {"threads": torch.get_num_threads()})

    def engine() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), CLASSIFY.prepare(config, dataset, ALONE))

    def bare() -> None:
        net = ien.models.create("cnn6", width=config.network.width)
        objective = ien.EquivarianceLoss(R4, LAYERS, feature_groups=4)
        optimizer = torch.optim.Adam(net.parameters(), weight_decay=config.optimizer.weight_decay, fused=True)
        for _ in range(config.schedule.epochs):
            for batch in torch.randperm(len(x)).split(BATCH):
                out = objective(net, x[batch].float() / 255)
                (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
                optimizer.step()
                optimizer.zero_grad()

    return bare, engine


def variants(setting: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of rot-mnist/ien-r4 at small with one setting changed, and without."""
    x, y = torch.randint(256, (BATCH, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (BATCH,))
    dataset = Dataset("rot-mnist", "random", x, y, x[:2], y[:2], classes=10)
    usual = change(experiments.config("rot-mnist/ien-r4", "small"), ["device=cpu"])
    setups = [CLASSIFY.prepare(config, dataset, ALONE) for config in (change(usual, [setting]), usual)]
    variant, plain = (partial(take_step, setup, torch.arange(BATCH), 0, 0) for setup in setups)
    return variant, plain


def pairs(folder: Path, batches: int = 4) -> tuple[Callable[[], None], Callable[[], None], int]:
    """Steps of tracking/ien-siamfc at small, reading its pairs from JPEG files, and how many images."""
    for seed in range(8):
        write(synthetic(seed, frames=20), folder)
    config = change(experiments.config("tracking/ien-siamfc", "small"), ["epochs=1", "device=cpu"])
    count = batches * config.schedule.batch_size
    config = changed(config, {"pairs": count, "threads": torch.get_num_threads()})
    clips = Clips(config.data.dataset, "generated", otb(folder), {"otb": []})
    task = TRACK_TARGETS.prepare(config, clips, ALONE)
    batch = next(task.batches(0, 0))

    def network() -> None:
        for step in range(batches):
            take_step(task, batch, 0, step)

    def loader() -> None:
        for _ in task.batches(0, 0):
            pass

    return network, loader, 2 * task.items


def actions() -> tuple[Callable[[], None], Callable[[], None]]:
    """The group action on the pooled features of six layers, image by image and with ``act_on_features``."""
    shapes = zip([32, 48, 64, 64, 96, 128], [24, 24, 12, 12, 6, 2], strict=True)
    maps = [torch.rand(BATCH, groups, size, size, requires_grad=True) for groups, size in shapes]
    g = R4.sample(BATCH)

    def one_by_one(h: Tensor) -> Tensor:
        result = torch.rot90(h[:1], int(g[0]), (-2, -1))
        for i in range(1, BATCH):
            result = torch.cat([result, torch.rot90(h[i : i + 1], int(g[i]), (-2, -1))])
        return result

    def run(act: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def forward_and_backward() -> None:
            for h in maps:
                act(h).sum().backward()
                h.grad = None

        return forward_and_backward

    for h in maps:
        assert torch.equal(one_by_one(h), R4.act_on_features(h, g))
    return run(one_by_one), run(lambda h: R4.act_on_features(h, g))


def inferences(width: float) -> tuple[Callable[[], None], Callable[[], None]]:
    """64 images through the network with feature groups of 4, and through the one with 4-2-1."""
    x = torch.rand(BATCH, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    nets = [ien.models.create("cnn6", feature_groups=spec, width=width).eval() for spec in (4, "4-2-1")]

    def run(net: nn.Module) -> Callable[[], None]:
        channels_last(net)

        def forward() -> None:
            with torch.inference_mode():
                net(x)

        return forward

    return run(nets[0]), run(nets[1])


def peak_memory(step: Callable[[], None]) -> float:
    """Megabytes of tensors alive at the worst moment of a step, beyond those alive before it."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(trace))
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    changes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(accumulate(changes)) / 1e6


def in_new_process(*arguments: str, **variables: str) -> str:
    environment = os.environ | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def startup_ratio(*arguments: str) -> tuple[float, float, float]:
    """CPU seconds of a new Python with these arguments, of one that imports torch, and their ratio.

    CPU time, because other programs change the wall time of a second more than what is measured.
    """

    def seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_new_process(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds(*arguments), seconds("-c", "import torch")  # the first time bytecode is written
    pairs = [(seconds(*arguments), seconds("-c", "import torch")) for _ in range(15)]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    return a, b, statistics.median(x / y for x, y in pairs)


def main() -> None:
    rows: list[tuple[str, str, float, str]] = []

    def report(what: str, goal: str, value: float, detail: str) -> None:
        rows.append((what, goal, value, detail))
        print(f"{what:84} {value:6.3f}  (goal {goal}; {detail})", flush=True)

    a, b, value = startup_ratio("-c", USE_ALL_OF_IEN)
    report("import ien and use it / import torch, CPU time", "≤ 1.05", value, f"{a:.2f} s / {b:.2f} s")
    a, b, value = startup_ratio("-m", "ien", "--help")
    report("ien --help / import torch, CPU time", "≤ 0.3", value, f"{a:.2f} s / {b:.2f} s")
    for channels, goal, rounds in ((128, "≤ 1.05", 9), (32, "≤ 1.08", 60)):
        for allocator, variables in (
            ("default malloc", {}),
            ("malloc that keeps freed memory", KEEPING_MALLOC),
        ):
            a, b, value = json.loads(
                in_new_process(__file__, "step", str(channels), str(rounds), **variables)
            )
            what = f"training step, {channels} first channels, with loss / plain; {allocator}"
            report(what, goal, value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
    for (channels, group, kernels), goal in TIED_NETS.items():
        tied, plain, steerable = tied_steps(channels, group, kernels)
        rounds = 9 if channels == 128 else 40
        what = f"training step, {channels} first channels, tied under {group}, {kernels} kernels"
        a, b, value = ratio(tied, plain, rounds)
        report(f"{what} / plain", goal, value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
        a, b, value = ratio(tied, steerable, rounds)
        report(f"{what} / steerable twin", "≤ 1", value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
    a, b, value = ratio(*tied_resnet18(), rounds=5)
    report(
        "training step, ResNet18 at 64 pixels, tied under rot4 / plain",
        "≤ 1.04",
        value,
        f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms",
    )
    for slack, what in ((1.0, "with slack"), ("auto", "with slack that listens")):
        a, b, value = ratio(*slack_steps(slack), rounds=40)
        name = f"training step, 16 first channels, {what} / tied"
        report(name, "–", value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
    a, b, value = ratio(*plain_inferences(), rounds=40)
    report("inference after make_plain / never tied", "≤ 1.01", value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
    for kernels in ("free", "smooth"):
        added, step, seconds = launches_of_resnet50(kernels)
        what = f"operations in a step of ResNet-50, {kernels} kernels: AdamW's and those that tying adds"
        report(what, "≤ 500", added + step, f"{step} + {added}")
        report(f"seconds to tie ResNet-50 at 225 pixels, {kernels} kernels", "≤ 5", seconds, "2 images")
    a, b, value = ratio(*actions(), rounds=15)
    what = "group action on six layers, loop per image / act_on_features"
    report(what, "≥ 8", value, f"{a * 1e3:.1f} ms / {b * 1e3:.1f} ms")
    for channels in (128, 32):
        a, b = (peak_memory(step) for step in steps(channels))
        what = f"peak memory of the step, {channels} first channels, with loss / plain"
        report(what, "≤ 1.15", a / b, f"{a:.0f} MB / {b:.0f} MB")
    for width in (1.0, 1 / 8):
        a, b, value = ratio(*inferences(width), rounds=25)
        what = f"inference, R4 / R4-2-1, {round(128 * width)} first channels"
        report(what, "–", value, f"{BATCH / a:.0f} / {BATCH / b:.0f} images/s")
    for setting in ("channels_last=true", "precision=bf16"):
        a, b, value = ratio(*variants(setting), rounds=25)
        what = f"training step of rot-mnist/ien-r4 at small, {setting} / as it is"
        report(what, "–", value, f"{a * 1e3:.0f} ms / {b * 1e3:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        network, loader, count = pairs(Path(folder))
        a, b, value = ratio(network, loader, rounds=5)
    what = "images/s of the loader / of the network, tracking/ien-siamfc at small"
    report(what, "≥ 1", value, f"{count / b:.0f} / {count / a:.0f} images/s")
    a, b, value = ratio(*trainings(), rounds=5)
    what = "images/s of the engine / of a bare loop, rot-mnist/ien-r4 at small"
    report(what, "≥ 0.95", value, f"{3840 / b:.0f} / {3840 / a:.0f} images/s")
    with tempfile.TemporaryDirectory() as folder:
        run = ("-m", "ien", "run", "rot-mnist/ien-r4", "--preset", "smoke", "--data", "embedded", "--out")
        a, b, value = ratio(
            lambda: in_new_process(*run, tempfile.mkdtemp(dir=folder)),
            lambda: in_new_process("-c", "import torch; torch.optim.Adam([torch.zeros(1)])"),
            rounds=5,
        )
    what = "ien run --preset smoke, start to end / import torch and make an optimizer"
    report(what, "–", value, f"{a:.2f} s / {b:.2f} s")
    PAGE.write_text(page(rows))
    print(f"wrote {PAGE.name}")


def page(rows: list[tuple[str, str, float, str]]) -> str:
    table = "\n".join(
        f"| {what} | {value:.2f} | {goal}{'' if reached(goal, value) else ' (missed)'} | {detail} |"
        for what, goal, value, detail in rows
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return f"""# Benchmarks

Written by `make bench`: medians of ratios, measured in turns in one run; 64 images, float32. Steps with the
loss, and the plain ones beside them, see two views of each image, all others one.

{processor()}, {torch.get_num_threads()} threads, {capability}, {platform.system()};
Python {platform.python_version()}, torch {torch.__version__}; {date.today()}.

| | ratio | goal | measured |
|---|---:|---:|---|
{table}

The step with the loss: forward and backward of the six-conv Rot-MNIST net with the loss on all six layers,
against the same net on the same images with cross-entropy only. The loss is bound by memory: it reads every
captured map and writes a gradient of its size. By default glibc returns blocks of that size to the system,
and the page faults of new ones cost as much as the arithmetic. An allocator that keeps them speeds up both
sides:
jemalloc, tcmalloc, or `GLIBC_TUNABLES={KEEPING_MALLOC["GLIBC_TUNABLES"]}`.
Peak memory counts the tensors alive, without the parameters.

The tied step: forward, backward and fused Adam of the six-conv net, whose weights are computed from fewer
numbers in every step, against the same net as it is, and against the steerable twin. The operations in a
step of ResNet-50 are those of `AdamW(foreach=True)` and those that tied weights add to forward and backward,
without views, and without the 322 times that AdamW reads its step counters, which stay on the CPU.

The engine: 60 steps with everything that a run does (random draws, sums, checks, checkpoints, building the
net), against the same steps in a bare loop. A smoke run spends most of its time importing torch and its
compiler, which every optimizer of torch imports.

The loader: for each pair, the workers that a run has by default read and crop two frames of 240×320 pixels
(JPEG files) while nothing else runs; the network trains on the same number of pairs, already loaded, and
on views of them.
"""


def reached(goal: str, value: float) -> bool:
    if goal == "–":
        return True
    sign, bound = goal.split()
    return value <= float(bound) if sign == "≤" else value >= float(bound)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["step", channels, rounds]:
            print(json.dumps(ratio(*steps(int(channels)), rounds=int(rounds))))
        case _:
            main()
