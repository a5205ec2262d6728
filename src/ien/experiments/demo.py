"""The demo: three rows of the Rot-MNIST table on the digits that come with the installation."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .queue import plan, run_all
from .tables import print_table

__all__ = ["ROWS", "demo"]

ROWS = ("cnn-aug", "ien-r4", "het-ien")


def demo(
    epochs: int = 10, seed: int = 1, out: Path = Path("runs/demo"), console: Console | None = None
) -> None:
    """Train the rows one after another, and print the table."""
    console = console or Console()
    console.print(
        "4,000 MNIST digits to train on and 1,000 to test, each rotated by a random angle. A small CNN sees "
        "them and their quarter turns: without the equivariance loss (cnn-aug), with it (ien-r4), and with "
        f"it and a third fewer channels (het-ien). Runs are kept in {out} and not repeated.",
        highlight=False,
        markup=False,
    )
    configs = plan([f"rot-mnist/{row}" for row in ROWS], "demo", [seed], [f"epochs={epochs}"])
    run_all(configs, out, out / "results", "embedded", console=console)
    print_table("rot-mnist", out / "results", console=console)
