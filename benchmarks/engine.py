"""What surrounds the network: imports, the training engine and the loader of pairs."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Compared, Row, Run, compared, in_new_process, ratio, take_turns

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

BATCH = 64
IMAGES = 1920
EPOCHS = 2
USE_ALL_OF_IEN = """if True:
    import ien
    ien.EquivarianceLoss, ien.EquivarianceError, ien.make_equivariant, ien.measure, ien.doctor, ien.adapt"""
"""``import ien`` alone loads nothing: names load when they are first used."""
DOCTOR = """if True:
    import ien, torch
    ien.doctor(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()), (3, 9, 9))"""
IMPORT_TORCH = ("-c", "import torch")
NOTE = """CPU time of a new process, because other programs change the wall time of a second more than what is
measured. The engine: 60 steps with everything that a run does (random draws, sums, checks, checkpoints,
building the net), against the same steps in a bare loop. A smoke run spends most of its time importing torch
and its compiler, which every optimizer of torch imports. So does every tensor without numbers that ``ien
doctor`` runs a network on: torch's FakeTensorMode reads the settings of the compiler.

The loader: for each pair, the workers that a run has by default read and crop two frames of 240×320 pixels
(JPEG files) while nothing else runs; the network trains on the same number of pairs, already loaded, and
on views of them.
"""


def startup(*arguments: str) -> Compared:
    """CPU seconds of a new Python with these arguments, against one that imports torch."""

    def cpu_seconds(run: Run) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    runs = {"this": lambda: in_new_process(*arguments), "torch": lambda: in_new_process(*IMPORT_TORCH)}
    seconds = take_turns(runs, rounds=15, measured=cpu_seconds)
    return compared(seconds["this"], seconds["torch"])


def trainings() -> tuple[Run, Run]:
    """A bare loop of the steps of rot-mnist/ien-r4 at small, and a short run of them in the engine."""
    x, y = torch.randint(256, (IMAGES, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (IMAGES,))
    dataset = Dataset("rot-mnist", "random", x, y, x[:2], y[:2], classes=10)
    config = change(experiments.config("rot-mnist/ien-r4", "small"), [f"epochs={EPOCHS}", "device=cpu"])
    config = changed(config, {"threads": torch.get_num_threads()})

    def engine() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), CLASSIFY.prepare(config, dataset, ALONE))

    def bare() -> None:
        net = ien.models.create("cnn6", width=config.network.width)
        objective = ien.EquivarianceLoss("rot4", net.taps, net.feature_groups)
        optimizer = torch.optim.Adam(net.parameters(), weight_decay=config.optimizer.weight_decay, fused=True)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(x)).split(BATCH):
                out = objective(net, x[batch].float() / 255)
                (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
                optimizer.step()
                optimizer.zero_grad()

    return bare, engine


def pairs(folder: Path, batches: int = 4) -> tuple[Run, Run, int]:
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


def measure() -> Iterator[Row]:
    for what, goal, arguments in (
        ("import ien / import torch, CPU time", "≤ 1.05", ("-c", "import ien, torch")),
        ("import ien and use it / import torch, CPU time", "≤ 1.05", ("-c", USE_ALL_OF_IEN)),
        ("ien --help / import torch, CPU time", "≤ 0.3", ("-m", "ien", "--help")),
        ("ien doctor of a small network / import torch, CPU time", "–", ("-c", DOCTOR)),
    ):
        found = startup(*arguments)
        yield found.row(what, goal, f"{found.slow:.2f} s / {found.fast:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        network, loader, count = pairs(Path(folder))
        found = ratio(network, loader, rounds=5)
    what = "images/s of the loader / of the network, tracking/ien-siamfc at small"
    yield found.row(what, "≥ 1", f"{count / found.fast:.0f} / {count / found.slow:.0f} images/s")
    found = ratio(*trainings(), rounds=5)
    count = EPOCHS * IMAGES
    what = "images/s of the engine / of a bare loop, rot-mnist/ien-r4 at small"
    yield found.row(what, "≥ 0.95", f"{count / found.fast:.0f} / {count / found.slow:.0f} images/s")
    with tempfile.TemporaryDirectory() as folder:
        run = ("-m", "ien", "run", "rot-mnist/ien-r4", "--preset", "smoke", "--data", "embedded", "--out")
        found = ratio(
            lambda: in_new_process(*run, tempfile.mkdtemp(dir=folder)),
            lambda: in_new_process("-c", "import torch; torch.optim.Adam([torch.zeros(1)])"),
            rounds=5,
        )
    what = "ien run --preset smoke, start to end / import torch and make an optimizer"
    yield found.row(what, "–", f"{found.slow:.2f} s / {found.fast:.2f} s")
