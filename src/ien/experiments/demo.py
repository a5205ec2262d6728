"""The demo: four rows of the Rot-MNIST table on the digits that come with the installation."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .queue import plan, run_all, run_name
from .tables import print_table

__all__ = ["DEMO_ROWS", "demo"]

# one of each kind: without the loss, with it, with fewer channels, and tied weights
DEMO_ROWS = ("cnn-aug", "ien-r4", "het-ien", "equivariant")


def demo(
    epochs: int = 8, seed: int = 1, out: Path = Path("runs/demo"), console: Console | None = None
) -> None:
    """Train four rows one after another, print their table, and write a page to explore them.

    Args:
        epochs: Passes over the training digits.
        seed: Seed of the weights, the order of the digits and the elements drawn.
        out: Where runs, records and the page go; runs that are there are not repeated.
        console: Where to say what happens.
    """
    console = console or Console()
    console.print(
        "4,000 MNIST digits to train on and 1,000 to test, each rotated by a random angle. A small CNN sees "
        "them and their quarter turns: without the equivariance loss (cnn-aug), with it (ien-r4), and with "
        "it and a third fewer channels (het-ien). With weights that ien.make_equivariant ties, it sees the "
        "digits alone, and is equivariant from the first step to the last (equivariant). "
        f"Runs are kept in {out} and not repeated.",
        highlight=False,
        markup=False,
    )
    configs = plan([f"rot-mnist/{row}" for row in DEMO_ROWS], "demo", [seed], [f"epochs={epochs}"])
    run_all(configs, out, out / "results", "embedded", console=console)
    print_table("rot-mnist", out / "results", console=console)
    folders = [out / run_name(config, "embedded") for config in configs]
    try:
        from ..report.page.build import write_runs_page

        with console.status("writing the page") as status:
            page = write_runs_page(folders, out / "report.html", measured=100, progress=status.update)
    except ModuleNotFoundError as error:  # plots are an extra; everything else is done
        console.print(f"no page was written: {error}", highlight=False, markup=False)
        return
    console.print(
        f"Open this page in a browser, and rotate the digits: {page.absolute()}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
