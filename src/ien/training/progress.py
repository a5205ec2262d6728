"""How a run is shown: a live line on a terminal, plain lines elsewhere, and TensorBoard."""

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

__all__ = ["ignore", "shown"]

Report = Callable[[Status], None]

SECONDS_BETWEEN_LINES = 60
"""Between two lines of one epoch, where there is no terminal; each epoch also ends with one."""


@contextmanager
def shown(folder: Path, title: str, console: Console) -> Iterator[Report]:
    """Yield a function that shows each status it is given.

    Args:
        folder: The run folder, in which TensorBoard's files go.
        title: What runs, before each line.
        console: Where to show it.
    """
    if console.is_terminal:
        showing = _live(title, console)
    else:
        showing = _lines(title, console)  # a log file that is rewritten in place is unreadable
    with showing as show, _tensorboard(folder) as log:

        def report(status: Status) -> None:
            show(status)
            log(status)

        yield report


# A live line instead of a bar: it holds the losses of all layers, and wraps on a narrow terminal.
@contextmanager
def _live(title: str, console: Console) -> Iterator[Report]:
    with Live(console=console, transient=True) as live:
        yield lambda status: live.update(Text(f"{title} {_text(status)}"))


@contextmanager
def _lines(title: str, console: Console) -> Iterator[Report]:
    last = time.monotonic()

    def show(status: Status) -> None:
        nonlocal last
        if status.metrics or time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            console.print(f"{title} {_text(status)}", soft_wrap=True, highlight=False)

    yield show


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Report]:
    if importlib.util.find_spec("tensorboard") is None:
        yield ignore
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
        writers[0].flush()  # to watch a run while it goes on

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()


def ignore(status: Status) -> None:
    """Show and log nothing."""


def _text(status: Status) -> str:
    losses = dict(status.losses)
    if status.metrics:  # the means of the epoch instead of the values of its last step
        losses = {"task_loss": status.metrics["task_loss"], **status.metrics["terms"]}
    parts = [
        f"epoch {status.epoch}/{status.epochs} step {status.step}/{status.steps}",
        f"{_rate(status.images_per_second)} {status.unit}/s",
        f"loss {losses.pop('task_loss'):.3f}",
    ]
    for name, term in losses.items():
        parts.append(f"{name} {term:.1e}")
    parts.append(f"left {timedelta(seconds=round(status.seconds_left))}")
    return "  ".join(parts)


def _rate(per_second: float) -> str:
    if per_second >= 10:
        return f"{per_second:.0f}"
    return f"{per_second:.1f}"  # slow runs change in the first decimal
