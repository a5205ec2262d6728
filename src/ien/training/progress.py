"""Show how a run goes: a live line on a terminal, plain lines elsewhere, TensorBoard where installed."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .loop import Status

__all__ = ["shown"]

_SECONDS_BETWEEN_LINES = 60


@contextmanager
def shown(folder: Path, title: str, console: Console) -> Iterator[Callable[[Status], None]]:
    """A function that shows each status it is given."""
    with _live(title, console) if console.is_terminal else _lines(title, console) as show:
        with _tensorboard(folder) as log:

            def report(status: Status) -> None:
                show(status)
                log(status)

            yield report


@contextmanager
def _live(title: str, console: Console) -> Iterator[Callable[[Status], None]]:
    with Live(console=console, transient=True) as live:
        yield lambda status: live.update(Text(f"{title} {_text(status)}"))


@contextmanager
def _lines(title: str, console: Console) -> Iterator[Callable[[Status], None]]:
    last = time.monotonic()

    def show(status: Status) -> None:
        nonlocal last
        if status.metrics or time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            console.print(f"{title} {_text(status)}", soft_wrap=True, highlight=False)

    yield show


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Callable[[Status], None]]:
    if importlib.util.find_spec("tensorboard") is None:
        yield lambda status: None
        return
    from torch.utils.tensorboard import SummaryWriter

    writers: list[SummaryWriter] = []

    def log(status: Status) -> None:
        if not status.metrics:
            return
        if not writers:  # what a killed process logged after its last checkpoint comes again
            writers.append(SummaryWriter(str(folder / "tensorboard"), purge_step=status.epoch))
        for name in ("learning_rate", "task_loss", "train_accuracy"):
            writers[0].add_scalar(name, status.metrics[name], status.epoch)
        for layer, term in status.metrics["terms"].items():
            writers[0].add_scalar(f"equivariance/{layer}", term, status.epoch)
        writers[0].flush()

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()


def _text(status: Status) -> str:
    losses = status.losses
    if status.metrics:  # the means of the epoch instead of the last step's values
        losses = {"task_loss": status.metrics["task_loss"], **status.metrics["terms"]}
    terms = "".join(f"  {name} {term:.1e}" for name, term in losses.items() if name != "task_loss")
    left = timedelta(seconds=round(status.seconds_left))
    speed = f"{status.images_per_second:.{0 if status.images_per_second >= 10 else 1}f} {status.unit}/s"
    return (
        f"epoch {status.epoch}/{status.epochs} step {status.step}/{status.steps}  "
        f"{speed}  loss {losses['task_loss']:.3f}{terms}  left {left}"
    )
