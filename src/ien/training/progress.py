"""How a run is shown: a bar on a terminal, plain lines elsewhere, and TensorBoard."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .._text import SECONDS_BETWEEN_LINES
from .loop import Status

__all__ = ["ignore", "shown"]

Report = Callable[[Status], None]

WIDE = 110
"""A terminal with this many columns has room for a title, a whole bar and what stands behind it."""
BAR_WIDTH = 40
SPACE_BESIDE_TITLE = 48
"""Columns for at least six of the bar, and for what stands behind it."""


@contextmanager
def shown(folder: Path, title: str, console: Console) -> Iterator[Report]:
    """Yield a function that shows each status it is given.

    Args:
        folder: The run folder, in which TensorBoard's files go.
        title: What runs, before each line.
        console: Where to show it.
    """
    if console.is_terminal:
        showing = _bar(title, console)
    else:
        showing = _lines(title, console)  # a log file that is rewritten in place is unreadable
    with showing as show, _tensorboard(folder) as log:

        def report(status: Status) -> None:
            show(status)
            log(status)

        yield report


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Report]:
    """Draw one bar on one line; the terms of the layers, too many for it, are in metrics.jsonl."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        # None: what the texts leave of a narrow terminal
        BarColumn(BAR_WIDTH if console.width >= WIDE else None),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(_shortened(title, console.width - SPACE_BESIDE_TITLE), state="")

        def show(status: Status) -> None:
            bar.update(
                task,
                total=status.epochs * status.steps,
                completed=(status.epoch - 1) * status.steps + status.step,
                state=(
                    f"epoch {status.epoch}/{status.epochs}  loss {_task_loss(status):.3f}  "
                    f"left {_left(status)}"
                ),
            )

        yield show


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
    parts = [
        f"epoch {status.epoch}/{status.epochs} step {status.step}/{status.steps}",
        f"{_rate(status.images_per_second)} {status.unit}/s",
        f"loss {_task_loss(status):.3f}",
    ]
    terms = status.losses
    if status.metrics:  # the means of the epoch instead of the values of its last step
        terms = status.metrics["terms"]
    for name, term in terms.items():
        if name != "task_loss":
            parts.append(f"{name} {term:.1e}")
    parts.append(f"left {_left(status)}")
    return "  ".join(parts)


def _task_loss(status: Status) -> float:
    if status.metrics:  # the mean of the epoch
        return float(status.metrics["task_loss"])
    return status.losses["task_loss"]


def _left(status: Status) -> str:
    return str(timedelta(seconds=round(status.seconds_left)))


def _shortened(title: str, limit: int) -> str:
    """Keep the end of a title that is too long, which tells runs apart.

    >>> _shortened("symmetry/eurosat-cnn-aug small seed 1", 20)
    '…nn-aug small seed 1'
    """
    if len(title) <= limit:
        return title
    return "…" + title[-max(limit - 1, 1) :]


def _rate(per_second: float) -> str:
    if per_second >= 10:
        return f"{per_second:.0f}"
    return f"{per_second:.1f}"  # slow runs change in the first decimal
