"""The training loop: from a configuration and a data set to trained weights, a line of metrics an epoch."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import signal
import sys
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

from .. import baselines, models
from .._loss import EquivarianceLoss
from ..data import Dataset, to_float
from ..data.rotate import rotate
from . import folder as run_folder
from .config import Config
from .distributed import Processes
from .draws import generator, seed_of
from .schedule import learning_rate

__all__ = [
    "Diverged",
    "Status",
    "Stopped",
    "build",
    "channels_last",
    "images",
    "objective_of",
    "plain_of",
    "train",
]

_DIVERGED = 1e8  # no loss of a run that learns comes near


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
    task_loss: float
    terms: dict[str, float]
    metrics: dict[str, Any] | None = None


def build(config: Config) -> nn.Module:
    """The network of a run with its initial weights."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    if config.model in baselines.BASELINES:
        return baselines.create(config.model, width=config.width, num_classes=config.classes)
    return models.create(
        config.model, feature_groups=config.feature_groups, width=config.width, num_classes=config.classes
    )


def plain_of(network: nn.Module) -> nn.Module:
    """The ordinary network that a built-in equivariant one is exported to; any other as it is."""
    export: Callable[[], nn.Module] | None = getattr(network, "export", None)
    return network if export is None else export()


def channels_last(network: nn.Module) -> None:
    """Put the kernels into the layout in which most CPUs and GPUs convolve faster."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def objective_of(config: Config, model: nn.Module) -> EquivarianceLoss | None:
    """The equivariance loss on all taps, or None for a run without transformed copies."""
    if not config.augment:
        return None
    layers: Any = dict.fromkeys(model.taps, config.beta)  # type: ignore[arg-type]
    return EquivarianceLoss(config.group, layers, model.feature_groups, samples=config.samples)  # type: ignore[arg-type]


def images(config: Config, dataset: Dataset) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What a run trains on and what it is tested on, as (images, labels)."""
    if dataset.classes != config.classes:
        raise ValueError(
            f"{dataset.name} has {dataset.classes} classes; the configuration says {config.classes}"
        )
    train, test = (dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)
    if config.test_on == "validation":
        kept = len(train[0]) - config.validation_images
        if kept < 2:
            raise ValueError(
                f"validation_images ({config.validation_images}) leaves none of {len(train[0])} to train on"
            )
        test = train[0][kept:], train[1][kept:]
        train = train[0][:kept], train[1][:kept]
    for name, asked, there in (
        ("train_images", config.train_images, len(train[0])),
        ("test_images", config.test_images, len(test[0])),
    ):
        if asked is not None and asked > there:
            raise ValueError(f"{name} is {asked}, but {dataset.source} {dataset.name} has {there} of them")
    train = train[0][: config.train_images], train[1][: config.train_images]
    return train, (test[0][: config.test_images], test[1][: config.test_images])


def train(
    folder: Path,
    config: Config,
    dataset: Dataset,
    processes: Processes,
    report: Callable[[Status], None] = lambda status: None,
) -> tuple[nn.Module, float]:
    """Train, or go on from the folder's checkpoint; returns the trained network, and the seconds it took."""
    assert config.threads is not None
    device = torch.device(config.device)
    if processes.count > 1 and device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    (x, y), _ = images(config, dataset)
    x, y = (x.to(device), y.to(device)) if device.type != "cpu" else (x, y)
    network = build(config).to(device)
    if config.channels_last:
        channels_last(network)
    objective = objective_of(config, network)
    optimizer = torch.optim.Adam(
        _parameter_groups(config, network), lr=config.max_lr, fused=device.type in ("cpu", "cuda")
    )
    model = processes.wrap(network, device)
    if config.compile:
        for block in network.children():  # one by one, so that the loss can see between them
            block.compile()
    network.train()

    digest = _digest(config)
    epoch, step, sums, seconds_before = _restore(folder, digest, network, optimizer)
    steps = math.ceil(len(x) / config.batch_size)
    names = ["task_loss", *(objective.layers if objective and config.beta else ())]
    pace = _Pace(config.epochs * steps * config.batch_size, (epoch * steps + step) * config.batch_size)

    def save() -> None:
        state: dict[str, Any] = {"epoch": epoch, "step": step, "sums": sums, "config": digest}
        state |= {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
        state["seconds"] = seconds_before + pace.seconds
        if processes.first:
            run_folder.save_checkpoint(folder, state)

    with _stop_requests() as stop:
        while epoch < config.epochs:
            order = torch.randperm(len(x), generator=generator(config.seed, "order", epoch))
            # as even as possible: no last batch too small for its statistics
            batches = order.tensor_split(steps)
            while step < steps:
                now = epoch * steps + step
                for parameters in optimizer.param_groups:
                    parameters["lr"] = learning_rate(config, now, steps)
                values = _step(
                    config, model, objective, optimizer, x, y, batches[step], processes, epoch, step
                )
                sums = sums + values if sums is not None else values
                step += 1
                measured = _check(names, values, epoch, step, folder)
                pace.count(len(batches[step - 1]))
                if step < steps:
                    report(Status(epoch + 1, config.epochs, step, steps, *pace(), *_split(measured)))
                    if processes.any(bool(stop), device):
                        save()
                        raise Stopped(folder)
            assert sums is not None
            metrics = _metrics(epoch + 1, optimizer, names, processes.sum(sums.to(device)).tolist())
            epoch, step, sums = epoch + 1, 0, None
            if processes.first:
                run_folder.append_metrics(folder, metrics)
            save()
            report(Status(epoch, config.epochs, steps, steps, *pace(), *_split(measured), metrics))
            if processes.any(bool(stop), device) and epoch < config.epochs:
                raise Stopped(folder)
    return network, seconds_before + pace.seconds


def _step(
    config: Config,
    model: nn.Module,
    objective: EquivarianceLoss | None,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    batch: Tensor,
    processes: Processes,
    epoch: int,
    step: int,
) -> Tensor:
    """One step on this process's share of the batch; sums over its images of the losses, hits and counts."""
    place = (epoch, step)
    share = processes.share(len(batch))
    weight = (share.stop - share.start) * processes.count / len(batch)
    if share.start == share.stop:  # fewer images than processes: take part with a weight of 0
        share = slice(0, 1)
    chosen = batch[share].to(x.device)
    xs, ys = to_float(x[chosen]), y[chosen]
    if config.rotate:
        degrees = 360 * torch.rand(len(batch), generator=generator(config.seed, "angles", *place))
        xs = rotate(xs, degrees[share].to(xs.device))
    if config.channels_last:
        xs = xs.contiguous(memory_format=torch.channels_last)
    torch.manual_seed(seed_of(config.seed, "noise", *place, processes.rank))  # dropout
    with torch.autocast(xs.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        if objective is None:
            output, labels, loss, terms = model(xs), ys, torch.zeros((), device=xs.device), {}
        else:
            drawn = objective.sample(len(batch), generator(config.seed, "elements", *place))
            g = drawn.view(-1, len(batch))[:, share].flatten()
            out = objective(model, xs, g=g)
            output, labels, loss, terms = out.output, out.repeat(ys), out.loss, out.terms
    task_loss = F.cross_entropy(output.float(), labels)
    ((task_loss + loss) * weight if processes.count > 1 else task_loss + loss).backward()
    optimizer.step()
    optimizer.zero_grad()
    counted = len(xs) if weight else 0
    with torch.no_grad():
        hits = (output[: len(xs)].argmax(1) == ys).sum()
        values = (
            torch.stack([task_loss.detach(), *(term.detach() for term in terms.values())]).double() * counted
        )
        return torch.cat(
            [values, torch.stack([hits * (weight > 0), torch.tensor(counted, device=hits.device)])]
        ).cpu()


def _check(names: list[str], values: Tensor, epoch: int, step: int, folder: Path) -> dict[str, float]:
    """The losses of a step by name, after a look whether they are sane."""
    count = max(float(values[-1]), 1)
    losses = {name: value / count for name, value in zip(names, values.tolist(), strict=False)}
    for name, loss in losses.items():
        if not math.isfinite(loss) or loss > _DIVERGED:
            what = "task loss" if name == "task_loss" else f"equivariance loss of {name}"
            raise Diverged(
                f"the {what} became {loss:g} in step {step} of epoch {epoch + 1}; {folder / 'last.pt'} "
                f"holds the last good epoch. A lower max_lr or beta may help: ien run … --set max_lr=1e-3"
            )
    return losses


def _metrics(
    epoch: int, optimizer: torch.optim.Optimizer, names: list[str], sums: list[float]
) -> dict[str, Any]:
    *losses, hits, count = sums
    means = {name: loss / count for name, loss in zip(names, losses, strict=True)}
    return {
        "epoch": epoch,
        "learning_rate": optimizer.param_groups[0]["lr"],
        "task_loss": means.pop("task_loss"),
        "train_accuracy": hits / count,
        "terms": means,
    }


def _split(losses: dict[str, float]) -> tuple[float, dict[str, float]]:
    return losses["task_loss"], {name: loss for name, loss in losses.items() if name != "task_loss"}


def _restore(
    folder: Path, digest: str, network: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, int, Tensor | None, float]:
    """Epochs done, steps done of the next one, its sums so far, and the seconds it all took."""
    state = run_folder.load_checkpoint(folder)
    if state is None:
        run_folder.cut_metrics(folder, 0)
        return 0, 0, None, 0.0
    path = folder / "last.pt"
    if state["config"] != digest:
        raise ValueError(
            f"{path} belongs to another run: restore this one's, or delete it to train from the start"
        )
    try:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this network ({reason}): delete it to train from the start"
        ) from None
    run_folder.cut_metrics(folder, state["epoch"])
    return state["epoch"], state["step"], state["sums"], state["seconds"]


def _digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()


def _parameter_groups(config: Config, network: nn.Module) -> list[dict[str, Any]]:
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    undecayed = {
        id(parameter)
        for module in network.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if config.decay_weights_only and (isinstance(module, norms) or name.endswith("bias"))
    }
    parameters = list(network.parameters())
    return [
        {"params": [p for p in parameters if id(p) not in undecayed], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if id(p) in undecayed], "weight_decay": 0.0},
    ]


class _Pace:
    """Images per second and seconds left, over the part of the run that this process has done."""

    def __init__(self, total: int, done: int) -> None:
        self.left = total - done
        self.seen = 0
        self.start = time.perf_counter()

    def count(self, images: int) -> None:
        self.seen += images

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def __call__(self) -> tuple[float, float]:
        rate = self.seen / self.seconds
        return rate, max(0, self.left - self.seen) / rate


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


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks: the page faults of new ones cost up to a tenth of a step."""
    if sys.platform.startswith("linux"):
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):  # another C library
            return
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)
