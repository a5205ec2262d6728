"""The training loop: from a prepared task to trained weights, with a line of metrics per epoch.

It is the same for all tasks: a :class:`~ien.training.task.Task` says what a batch is and what its
loss is. Whatever is random depends on the seed and the place in the run alone, so a run that was
stopped ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._files import seed_of
from .._stopping import stop_requests
from . import checkpoint, run_folder
from .checkpoint import Progress
from .network import count_views
from .schedule import learning_rate
from .task import Task

__all__ = ["Diverged", "Status", "Stopped", "Trained", "take_step", "train"]

MAX_TASK_LOSS = 1e4
"""No run that learns comes near it."""
MAX_TERM = 1e8
"""The same for a term of the equivariance loss, which may start large."""


class Stopped(Exception):
    """Training was asked to stop; the checkpoint holds everything done so far."""


class Diverged(Exception):
    """A loss became NaN, infinite or absurdly large."""


@dataclass(frozen=True)
class Status:
    """Where a run stands after a step."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float
    losses: dict[str, float]
    """The task loss and the term of each layer, in this step."""
    metrics: dict[str, Any] | None = None
    """The means of the epoch, after its last step."""
    unit: str = "images"
    """Unit of the throughput, e.g. images per second."""


class Trained(NamedTuple):
    """A trained network."""

    network: nn.Module
    seconds: float
    """Training time, including that before an interruption."""
    images_seen: int
    """Items of all steps, each counted as often as the network sees it."""


def train(folder: Path, task: Task, report: Callable[[Status], None] = lambda status: None) -> Trained:
    """Train, or go on from the checkpoint in the run folder.

    Args:
        folder: The run folder, which gets a checkpoint and a line of metrics after every epoch, and
            further checkpoints every ``checkpoint_minutes``.
        task: What to train.
        report: Called with a status after every step.

    Raises:
        Stopped: Ctrl-C or a polite kill; the checkpoint holds everything done so far.
        Diverged: A loss became NaN, infinite or absurdly large.
    """
    config, processes = task.config, task.processes
    network, steps, epochs = task.network, task.steps, config.schedule.epochs
    epoch, step, sums, seconds_before = checkpoint.restore(folder, task)
    clock = _Clock(config.machine.checkpoint_minutes)
    pace = _Pace(task.items * (epochs - epoch) - task.items * step // steps)

    def save(metrics: dict[str, Any] | None = None) -> None:
        # metrics first: if the checkpoint is not written, its epoch and this line come again
        clock.restart()
        _check_weights(network, f"step {step or steps} of epoch {epoch + (step > 0)}", folder)
        if not processes.first:
            return
        if metrics is not None:
            run_folder.append_metrics(folder, metrics)
        checkpoint.save(folder, task, Progress(epoch, step, sums, seconds_before + pace.seconds))

    # closing() ends the processes that decode frames, also after an error
    with stop_requests() as stop, closing(task.batches(epoch, step)) as batches:
        while epoch < epochs:
            while step < steps:
                values = processes.sum(take_step(task, next(batches), epoch, step))
                if sums is None:
                    sums = values
                else:
                    sums = sums + values
                step += 1
                # in every process, so that all of them end with the same error
                losses = _check_losses(task, values, f"step {step} of epoch {epoch + 1}", folder)
                pace.seen += int(values[-1])
                if step < steps:
                    report(Status(epoch + 1, epochs, step, steps, *pace(), losses, None, task.unit))
                    # a signal reaches one process before another, and so does the time: all of them
                    # save or stop after the same step
                    stopping, due = processes.any_of(bool(stop), clock.due)
                    if stopping or due:
                        save()
                    if stopping:
                        raise Stopped(folder)
            assert sums is not None
            metrics = _metrics(task, epoch + 1, sums)
            epoch, step, sums = epoch + 1, 0, None
            save(metrics)
            report(Status(epoch, epochs, steps, steps, *pace(), losses, metrics, task.unit))
            if processes.any(bool(stop)):
                raise Stopped(folder)
    return Trained(network, seconds_before + pace.seconds, epochs * task.items * task.views)


def take_step(task: Task, batch: Any, epoch: int, step: int) -> Tensor:
    """Take one step on this process's share of the batch.

    Returns:
        Sums over its items, float64: the task loss, the terms of the equivariance loss, the
        originals that are right, and the number of items.
    """
    config, processes = task.config, task.processes
    rate = learning_rate(config, epoch * task.steps + step, task.steps)
    for parameters in task.optimizer.param_groups:
        parameters["lr"] = rate * parameters.get("rate", 1.0)
    # dropout draws from the global generator: seeded by the place, a resumed run draws the same
    torch.manual_seed(seed_of(config.seed, "noise", epoch, step, processes.rank))
    loss, parts, hits, count, total = task.forward(batch, epoch, step)
    if processes.count > 1:
        # gradients are averaged over the processes, whose shares may differ by an item
        loss = loss * (count * processes.count / total)
    if task.tied is not None:
        loss = loss + task.tied.penalty()
    loss.backward()
    if task.tied is not None and task.tied.listens:
        task.tied.listen(task.pass_of(epoch, step), count_views(task.objective))
    task.optimizer.step()
    task.optimizer.zero_grad()
    with torch.no_grad():
        # the one place of a step that waits for a GPU: losses are checked in every step
        numbers = torch.stack([*parts, hits.to(parts[0].dtype)]).cpu()
        # float64, since sums of an epoch are added up step by step
        sums = numbers.double()
        sums[:-1] *= count  # from means; hits are a sum already
        return torch.cat([sums, torch.tensor([count], dtype=torch.float64)])


def _check_losses(task: Task, values: Tensor, place: str, folder: Path) -> dict[str, float]:
    """Return the losses of a step by name, or raise if one of them is absurd."""
    losses = _means(task, values)
    for name, loss in losses.items():
        what, limit = f"the equivariance loss of {name}", MAX_TERM
        if name == "task_loss":
            what, limit = "the task loss", MAX_TASK_LOSS
        if not math.isfinite(loss) or loss > limit:
            raise _diverged(what, loss, place, folder)
    return losses


def _check_weights(network: nn.Module, place: str, folder: Path) -> None:
    """Keep weights out of a checkpoint that a last, finite loss has spoilt."""
    for name, weight in network.state_dict().items():
        if not weight.isfinite().all():
            raise _diverged(f"the weight {name}", math.nan, place, folder)


def _diverged(what: str, value: float, place: str, folder: Path) -> Diverged:
    kept = "was not written yet"
    if (folder / "last.pt").exists():
        kept = "holds the last good state"
    return Diverged(
        f"{what} became {value:g} in {place}; {folder / 'last.pt'} {kept}. "
        f"A lower max_lr or beta may help, as in --set max_lr=1e-3"
    )


def _means(task: Task, sums: Tensor) -> dict[str, float]:
    *totals, _, count = sums.tolist()  # as take_step lays them out
    means = {}
    for name, total in zip(task.losses, totals, strict=True):
        means[name] = total / count
    return means


def _metrics(task: Task, epoch: int, sums: Tensor) -> dict[str, Any]:
    means = _means(task, sums)
    metrics = {
        "epoch": epoch,
        "learning_rate": task.optimizer.param_groups[0]["lr"],
        "task_loss": means.pop("task_loss"),
        "train_accuracy": float(sums[-2] / sums[-1]),
        "terms": means,
    }
    if task.objective is not None and task.objective.multipliers:
        # as the terms are named: those of weight 0 have neither
        metrics["multipliers"] = dict(zip(means, task.objective.multipliers.values(), strict=True))
    if task.tied is not None and task.tied.remainders:
        metrics["slack"] = task.tied.slack()
        if task.tied.listens:
            heard = task.tied.evidence()[""]
            metrics["certainty"], metrics["signal"] = heard.certainty, heard.signal
    return metrics


class _Clock:
    """Says when the next checkpoint is due."""

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self.started = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the minutes are over; never if there are none."""
        return 0 < self.seconds <= time.monotonic() - self.started


class _Pace:
    """Items per second and seconds left, from the items that this process has seen so far."""

    def __init__(self, items: int) -> None:
        self.items, self.seen, self.start = items, 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def __call__(self) -> tuple[float, float]:
        # over the whole run: steady, and right once the first, slow steps are behind
        rate = self.seen / self.seconds
        return rate, max(0, self.items - self.seen) / rate
