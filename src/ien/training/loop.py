"""The training loop: from a configuration and a data set to trained weights, a line of metrics an epoch."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._loss import full_precision
from ..data import Dataset, to_float
from . import folder as run_folder
from .augmentation import augmented
from .config import Config
from .distributed import Processes
from .draws import generator, seed_of
from .schedule import learning_rate
from .setup import Setup, prepare

__all__ = ["Diverged", "Status", "Stopped", "take_step", "train"]

_DIVERGED_TASK, _DIVERGED_TERM = 1e4, 1e8  # no run that learns comes near; a term may start large


class Stopped(Exception):
    """Training was asked to stop; the checkpoint holds everything done so far."""


class Diverged(Exception):
    """A loss became NaN, infinite or absurdly large."""


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


def train(
    folder: Path,
    config: Config,
    dataset: Dataset,
    processes: Processes,
    report: Callable[[Status], None] = lambda status: None,
) -> tuple[nn.Module, float]:
    """Train, or go on from the folder's checkpoint; returns the trained network, and the seconds it took."""
    setup = prepare(config, dataset, processes)
    network, optimizer, steps = setup.network, setup.optimizer, setup.steps
    epoch, step, sums, seconds_before = _restore(folder, setup)
    pace = _Pace(len(setup.x) * (config.epochs - epoch) - step * config.batch_size)

    def save(metrics: dict[str, Any] | None = None) -> None:
        _check_weights(network, f"step {step or steps} of epoch {epoch + (step > 0)}", folder)
        if processes.first:
            if metrics is not None:
                run_folder.append_metrics(folder, metrics)
            state: dict[str, Any] = {"epoch": epoch, "step": step, "sums": sums, "config": _digest(config)}
            state |= {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            run_folder.save_checkpoint(folder, state | {"seconds": seconds_before + pace.seconds})

    with _stop_requests() as stop:
        while epoch < config.epochs:
            order = torch.randperm(len(setup.x), generator=generator(config.seed, "order", epoch))
            # as even as possible: no last batch too small for its statistics
            batches = order.tensor_split(steps)
            while step < steps:
                values = processes.sum(take_step(setup, batches[step], epoch, step))
                sums = values if sums is None else sums + values
                step += 1
                losses = _check_losses(setup, values, f"step {step} of epoch {epoch + 1}", folder)
                pace.seen += len(batches[step - 1])
                if step < steps:
                    report(Status(epoch + 1, config.epochs, step, steps, *pace(), losses))
                    if processes.any(bool(stop)):
                        save()
                        raise Stopped(folder)
            assert sums is not None
            metrics = _metrics(setup, epoch + 1, sums)
            epoch, step, sums = epoch + 1, 0, None
            save(metrics)
            report(Status(epoch, config.epochs, steps, steps, *pace(), losses, metrics))
            if processes.any(bool(stop)):
                raise Stopped(folder)
    return network, seconds_before + pace.seconds


def take_step(setup: Setup, batch: Tensor, epoch: int, step: int) -> Tensor:
    """One step on this process's share of the batch.

    Returns float64 sums over its images: the task loss, the terms of the equivariance loss, the originals
    classified rightly, and the images.
    """
    config, processes = setup.config, setup.processes
    for parameters in setup.optimizer.param_groups:
        parameters["lr"] = learning_rate(config, epoch * setup.steps + step, setup.steps)
    share = processes.share(len(batch))
    count = share.stop - share.start
    if count == 0:  # fewer images than processes: take part, with a weight of 0
        share = slice(0, 1)
    chosen = batch[share].to(setup.x.device)
    x, y = to_float(setup.x[chosen]), setup.y[chosen]
    x = augmented(config, x, len(batch), share, (epoch, step), setup.colour)
    if config.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    torch.manual_seed(seed_of(config.seed, "noise", epoch, step, processes.rank))  # dropout
    terms: list[Tensor] = []
    with torch.autocast(x.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        if setup.objective is None:
            output = setup.model(x)
            loss = task_loss = F.cross_entropy(full_precision(output), y)
        else:
            # drawn for the whole batch, so that the number of processes does not change an image's element
            g = setup.objective.sample(len(batch), generator(config.seed, "elements", epoch, step))
            out = setup.objective(setup.model, x, g=g.view(-1, len(batch))[:, share].flatten())
            output, terms = out.output, list(out.terms.values())
            task_loss = F.cross_entropy(full_precision(output), out.repeat(y))
            loss = task_loss + out.loss
    # the gradients are averaged over the processes, whose shares may differ by an image
    (loss if processes.count == 1 else loss * (count * processes.count / len(batch))).backward()
    setup.optimizer.step()
    setup.optimizer.zero_grad()
    with torch.no_grad():
        hits = (output[: len(y)].argmax(1) == y).sum() if count else 0
        sums = torch.stack([task_loss, *terms]).cpu().double() * count
        return torch.cat([sums, torch.tensor([hits, count], dtype=torch.float64)])


def _check_losses(setup: Setup, values: Tensor, place: str, folder: Path) -> dict[str, float]:
    """The losses of a step by name, after a look whether they are sane."""
    losses = _means(setup, values)
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


def _means(setup: Setup, sums: Tensor) -> dict[str, float]:
    *losses, _, count = sums.tolist()
    return {name: loss / count for name, loss in zip(setup.losses, losses, strict=True)}


def _metrics(setup: Setup, epoch: int, sums: Tensor) -> dict[str, Any]:
    means = _means(setup, sums)
    return {
        "epoch": epoch,
        "learning_rate": setup.optimizer.param_groups[0]["lr"],
        "task_loss": means.pop("task_loss"),
        "train_accuracy": float(sums[-2] / sums[-1]),
        "terms": means,
    }


def _restore(folder: Path, setup: Setup) -> tuple[int, int, Tensor | None, float]:
    """Epochs done, steps done of the next one, its sums so far, and the seconds it all took."""
    state = setup.processes.from_first(lambda: run_folder.load_checkpoint(folder))
    if state is not None:
        path = folder / "last.pt"
        if state["config"] != _digest(setup.config):
            raise ValueError(
                f"{path} belongs to another run: restore this one's, or delete it to train from the start"
            )
        try:
            setup.network.load_state_dict(state["model"])
            setup.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} does not fit this network ({reason}): delete it to train from the start"
            ) from None
    if setup.processes.first:
        run_folder.cut_metrics(folder, state["epoch"] if state else 0)
    return (state["epoch"], state["step"], state["sums"], state["seconds"]) if state else (0, 0, None, 0.0)


def _digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()


class _Pace:
    """Images per second and seconds left, by the images that this process has seen of those to come."""

    def __init__(self, images: int) -> None:
        self.images, self.seen, self.start = images, 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def __call__(self) -> tuple[float, float]:
        rate = self.seen / self.seconds
        return rate, max(0, self.images - self.seen) / rate


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
