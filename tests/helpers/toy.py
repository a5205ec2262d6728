"""A toy run: a tiny net on random images, in this process or in others that can be cut off at any point."""

import io
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer loads: here once for all processes
import torch.utils.flop_counter
from rich.console import Console
from torch import nn

import ien.cli.app
import ien.data
from ien.data import Dataset
from ien.training import ALONE, Config, checkpoint, loop, run, run_folder
from ien.training.classify import CLASSIFY, ClassifyTask


def dataset(seed: int = 0) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (136, 1, 28, 28), generator=rng).to(torch.uint8)
    y = torch.randint(10, (136,), generator=rng)
    return Dataset("toy", "random", x[:96], y[:96], x[96:], y[96:], classes=10)


DATASETS = {"toy": ien.data.Loader(lambda folder, seed: dataset(seed), dataset)}


def config(**changes: Any) -> Config:
    """Three epochs of six steps; the name is that of a true experiment, for the sake of ``ien resume``."""
    settings: dict[str, Any] = {"dataset": "toy", "width": 1 / 32, "batch_size": 16, "device": "cpu"}
    settings |= {"epochs": 3, "cycle_epochs": 2, "threads": 1} | changes
    return Config.of("rot-mnist/ien-r4", "smoke", **settings)


def task(data: Dataset | None = None, **changes: Any) -> ClassifyTask:
    """The task of a toy run."""
    return CLASSIFY.prepare(config(**changes), data or dataset(), ALONE)


def trained(folder: Path, data: Dataset | None = None, **changes: Any) -> loop.Trained:
    """A toy run without its test, or the rest of one."""
    folder.mkdir(exist_ok=True)
    return loop.train(folder, task(data, **changes))


def run_in(folder: Path, **changes: Any) -> dict[str, Any]:
    """The record of a toy run, which goes on in silence."""
    return run(folder, config(**changes), "embedded", console=Console(file=io.StringIO()))


def assert_same(weights: nn.Module, others: nn.Module) -> None:
    """All weights and statistics are equal, bit for bit."""
    expected = others.state_dict()
    for name, weight in weights.state_dict().items():
        assert torch.equal(weight, expected[name]), name


def start(function: Callable[..., None], *arguments: Any) -> Any:
    """``function`` in a process of its own, which has torch loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.toy"])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def finish(process: Any) -> int:
    """The exit code of the process; minus the signal that ended it."""
    process.join()
    return process.exitcode


def train(folder: Path, point: str = "", changes: dict[str, Any] | None = None) -> None:
    """A run in a child process; ``point`` is where it is cut off."""
    ien.data.DATASETS |= DATASETS
    if point:
        cut(*POINTS[point])
    run_in(folder, **changes or {})


def command(folder: Path, arguments: list[str], step: int = 0, signals: Sequence[int] = ()) -> None:
    """``ien`` with these arguments in a child process that sends itself signals in a step."""

    def send(*arguments: object) -> None:
        for name in signals:
            os.kill(os.getpid(), name)

    ien.data.DATASETS |= DATASETS
    at_call(step, loop, "take_step", send)
    with open(folder / "output.txt", "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    ien.cli.app(arguments)


def at_call(number: int, owner: Any, name: str, first: Callable[..., object]) -> None:
    """Let the ``number``-th call of ``owner.name`` call ``first`` with the function and its arguments."""
    original, calls = getattr(owner, name), itertools.count(1)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            first(original, *arguments, **options)
        return original(*arguments, **options)

    setattr(owner, name, wrapped)


def cut(number: int, owner: Any, name: str, last: Callable[..., object]) -> None:
    """Kill this process in the ``number``-th call of ``owner.name``, after a last thing done."""

    def end(*arguments: Any, **options: Any) -> None:
        last(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    at_call(number, owner, name, end)


def _nothing(function: Callable[..., object], *arguments: Any) -> None:
    pass


def _all(function: Callable[..., object], *arguments: Any) -> None:
    function(*arguments)


def _half_a_checkpoint(save: Callable[..., object], state: dict[str, Any], path: Path) -> None:
    save(state, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _half_a_line(append: Callable[..., object], folder: Path, metrics: dict[str, Any]) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(str(metrics)[:40])


POINTS: dict[str, tuple[int, Any, str, Callable[..., object]]] = {
    "before config.json is renamed": (1, os, "replace", _nothing),
    "in a step of the first epoch": (3, loop, "take_step", _nothing),
    "before the first checkpoint is renamed": (2, os, "replace", _nothing),
    "in a step of the second epoch": (9, loop, "take_step", _all),
    "in the middle of a line of metrics": (2, run_folder, "append_metrics", _half_a_line),
    "between metrics and checkpoint": (2, run_folder, "append_metrics", _all),
    "in the middle of writing a checkpoint": (2, torch, "save", _half_a_checkpoint),
    "before a checkpoint is renamed": (3, os, "replace", _nothing),
    "after the last checkpoint": (3, checkpoint, "save_checkpoint", _all),
    "before the weights are renamed": (5, os, "replace", _nothing),
    "before the result is renamed": (6, os, "replace", _nothing),
}
