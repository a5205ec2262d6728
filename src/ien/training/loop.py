"""The training loop: from a configuration and a data set to trained weights, a line of metrics an epoch.

It is the same for all tasks: a :class:`Task` says what a batch is and what is lost on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .._files import seed_of
from ..data import Dataset
from ..tracking.data.sets import Clips
from ..tracking.training import task as tracking_task
from . import classify as image_task
from . import run_folder as run_folder
from .config import Config
from .distributed import Processes
from .network import Forward
from .schedule import learning_rate

__all__ = ["Diverged", "Status", "Stopped", "Task", "Trained", "take_step", "train"]

_DIVERGED_TASK, _DIVERGED_TERM = 1e4, 1e8  # no run that learns comes near; a term may start large


class Stopped(Exception):
    """Training was asked to stop; the checkpoint holds everything done so far."""


class Diverged(Exception):
    """A loss became NaN, infinite or absurdly large."""


class Task(Protocol):
    """What the loop trains: a classifier (:mod:`.image_task`) or a tracker (:mod:`.tracking_task`)."""

    @property
    def config(self) -> Config: ...
    @property
    def processes(self) -> Processes: ...
    @property
    def network(self) -> nn.Module: ...
    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    @property
    def steps(self) -> int: ...
    @property
    def items(self) -> int:
        """Images, or pairs, in an epoch, copies not counted."""

    @property
    def views(self) -> int:
        """How often the network sees an item in a step: as it is, and each copy of it."""

    @property
    def unit(self) -> str:
        """What an item is called, in the plural."""

    @property
    def losses(self) -> list[str]:
        """Names of the parts of a forward pass."""

    def batches(self, epoch: int, step: int) -> Generator[Any, None, None]:
        """The rest of the run, from that step on, a batch a step."""

    def forward(self, batch: Any, epoch: int, step: int) -> Forward: ...


@dataclass(frozen=True)
class Status:
    """Where a run stands, after a step; ``metrics`` is there after the last one of an epoch."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float
    losses: dict[str, float]
    """Of the step: the task loss and the term of each layer."""
    metrics: dict[str, Any] | None = None
    unit: str = "images"
    """What is counted by the second."""


class Trained(NamedTuple):
    """What training gives."""

    network: nn.Module
    seconds: float
    """That it took, also before it was interrupted."""
    images_seen: int
    """Views of all items in all steps: images with their copies."""


def train(
    folder: Path,
    config: Config,
    dataset: Dataset | Clips,
    processes: Processes,
    report: Callable[[Status], None] = lambda status: None,
) -> Trained:
    """Train, or go on from the folder's checkpoint."""
    task: Task
    if isinstance(dataset, Clips):
        task = tracking_task.prepare(config, dataset, processes)
    else:
        task = image_task.prepare(config, dataset, processes)
    network, optimizer, steps = task.network, task.optimizer, task.steps
    epoch, step, sums, seconds_before = _restore(folder, task)
    pace = _Pace(task.items * (config.epochs - epoch) - task.items * step // steps)

    def save(metrics: dict[str, Any] | None = None) -> None:
        _check_weights(network, f"step {step or steps} of epoch {epoch + (step > 0)}", folder)
        if processes.first:
            if metrics is not None:
                run_folder.append_metrics(folder, metrics)
            state: dict[str, Any] = {"epoch": epoch, "step": step, "sums": sums, "config": _digest(config)}
            state |= {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            run_folder.save_checkpoint(folder, state | {"seconds": seconds_before + pace.seconds})

    with _stop_requests() as stop, closing(task.batches(epoch, step)) as batches:
        while epoch < config.epochs:
            while step < steps:
                values = processes.sum(take_step(task, next(batches), epoch, step))
                sums = values if sums is None else sums + values
                step += 1
                losses = _check_losses(task, values, f"step {step} of epoch {epoch + 1}", folder)
                pace.seen += int(values[-1])
                if step < steps:
                    report(Status(epoch + 1, config.epochs, step, steps, *pace(), losses, None, task.unit))
                    if processes.any(bool(stop)):
                        save()
                        raise Stopped(folder)
            assert sums is not None
            metrics = _metrics(task, epoch + 1, sums)
            epoch, step, sums = epoch + 1, 0, None
            save(metrics)
            report(Status(epoch, config.epochs, steps, steps, *pace(), losses, metrics, task.unit))
            if processes.any(bool(stop)):
                raise Stopped(folder)
    return Trained(network, seconds_before + pace.seconds, config.epochs * task.items * task.views)


def take_step(task: Task, batch: Any, epoch: int, step: int) -> Tensor:
    """One step on this process's share of the batch.

    Returns float64 sums over its items: the task loss, the terms of the equivariance loss, the originals
    that are right, and the items.
    """
    config, processes = task.config, task.processes
    for parameters in task.optimizer.param_groups:
        parameters["lr"] = learning_rate(config, epoch * task.steps + step, task.steps)
    torch.manual_seed(seed_of(config.seed, "noise", epoch, step, processes.rank))  # dropout
    loss, parts, hits, count, total = task.forward(batch, epoch, step)
    # the gradients are averaged over the processes, whose shares may differ by an item
    (loss if processes.count == 1 else loss * (count * processes.count / total)).backward()
    task.optimizer.step()
    task.optimizer.zero_grad()
    with torch.no_grad():
        sums = torch.stack(parts).cpu().double() * count
        return torch.cat([sums, torch.tensor([hits, count], dtype=torch.float64)])


def _check_losses(task: Task, values: Tensor, place: str, folder: Path) -> dict[str, float]:
    """The losses of a step by name, after a look whether they are sane."""
    losses = _means(task, values)
    for name, loss in losses.items():
        if not math.isfinite(loss) or loss > (_DIVERGED_TASK if name == "task_loss" else _DIVERGED_TERM):
            what = "task loss" if name == "task_loss" else f"equivariance loss of {name}"
            raise Diverged(_diverged(f"the {what}", loss, place, folder))
    return losses


def _check_weights(network: nn.Module, place: str, folder: Path) -> None:
    """No checkpoint holds weights that a last, finite loss has spoilt."""
    for name, weight in network.state_dict().items():
        if not weight.isfinite().all():
            raise Diverged(_diverged(f"the weight {name}", math.nan, place, folder))


def _diverged(what: str, value: float, place: str, folder: Path) -> str:
    kept = "holds the last good state" if (folder / "last.pt").exists() else "was not written yet"
    return (
        f"{what} became {value:g} in {place}; {folder / 'last.pt'} {kept}. "
        f"A lower max_lr or beta may help: ien run … --set max_lr=1e-3"
    )


def _means(task: Task, sums: Tensor) -> dict[str, float]:
    *losses, _, count = sums.tolist()
    return {name: loss / count for name, loss in zip(task.losses, losses, strict=True)}


def _metrics(task: Task, epoch: int, sums: Tensor) -> dict[str, Any]:
    means = _means(task, sums)
    return {
        "epoch": epoch,
        "learning_rate": task.optimizer.param_groups[0]["lr"],
        "task_loss": means.pop("task_loss"),
        "train_accuracy": float(sums[-2] / sums[-1]),
        "terms": means,
    }


def _restore(folder: Path, task: Task) -> tuple[int, int, Tensor | None, float]:
    """Epochs done, steps done of the next one, its sums so far, and the seconds it all took."""
    state = task.processes.from_first(lambda: run_folder.load_checkpoint(folder))
    if state is not None:
        path = folder / "last.pt"
        if state["config"] != _digest(task.config):
            raise ValueError(
                f"{path} belongs to another run: restore this one's, or delete it to train from the start"
            )
        try:
            task.network.load_state_dict(state["model"])
            task.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} does not fit this network ({reason}): delete it to train from the start"
            ) from None
    if task.processes.first:
        run_folder.cut_metrics(folder, state["epoch"] if state else 0)
    return (state["epoch"], state["step"], state["sums"], state["seconds"]) if state else (0, 0, None, 0.0)


def _digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()


class _Pace:
    """Items per second and seconds left, by the items that this process has seen of those to come."""

    def __init__(self, items: int) -> None:
        self.items, self.seen, self.start = items, 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def __call__(self) -> tuple[float, float]:
        rate = self.seen / self.seconds
        return rate, max(0, self.items - self.seen) / rate


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that Ctrl-C or a polite kill makes non-empty; a second Ctrl-C interrupts at once."""
    requests: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield requests
        return
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
