"""The demo: train on upright digits, test on rotated ones; or the rows of the paper's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from .._text import columns
from ..training import Config, Stopped
from .queue import plan, run_all, run_name
from .tables import print_table

__all__ = ["EPOCHS", "NETWORKS", "PAPER_EPOCHS", "PAPER_ROWS", "demo", "paper_demo"]

NETWORKS = {
    "ordinary CNN": "symmetry/digits-upright-cnn",
    "CNN + rotated copies": "symmetry/digits-upright-cnn-aug",
    "equivariant with slack": "symmetry/digits-upright-slack",
    "equivariant CNN": "symmetry/digits-upright-tied",
}
"""What the demo calls each network → its experiment."""
EPOCHS = 5
PAPER_ROWS = ("cnn-aug", "ien-r4", "het-ien", "equivariant")
"""One of each kind: without the loss, with it, with fewer channels, and tied weights."""
PAPER_EPOCHS = 8
QUARTER_TURNS = 4
NEXT = "Next, your own model: ien doctor net.py:build --size 3x224x224"

Record = Mapping[str, Any]


def demo(
    epochs: int = EPOCHS,
    seed: int = 1,
    out: Path = Path("runs/demo"),
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Train four CNNs on upright digits, test them on rotated ones too, and write a page.

    Args:
        epochs: Passes over the training digits.
        seed: Seed of the weights, the order of the digits and the elements drawn.
        out: Where runs, records and the page go; runs that are there are not repeated.
        settings: More ``field=value`` texts, as in ``train_images=500``.
        console: Where to say what happens.
    """
    console = console or Console()
    _say(
        console,
        "Four small CNNs learn from 4,000 upright digits of MNIST. Then 1,000 other digits come upright, "
        f"and rotated by 90°, 180° and 270°. Runs are kept in {out}, and not repeated.",
    )
    configs = plan(list(NETWORKS.values()), "demo", [seed], [f"epochs={epochs}", *settings])
    records = _run(configs, out, console, titles=list(NETWORKS))
    by_name = dict(zip(NETWORKS, records, strict=True))
    console.print()
    for line in columns(_table(by_name)):
        _say(console, line)
    console.print()
    _say(console, _meaning(by_name))
    _write_page(configs, out, out / "report.html", console)
    _say(console, NEXT)


def paper_demo(
    epochs: int = PAPER_EPOCHS,
    seed: int = 1,
    out: Path = Path("runs/demo"),
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Train four rows of the paper's Rot-MNIST table, print the table, and write a page.

    Args:
        epochs: Passes over the training digits.
        seed: Seed of the weights, the order of the digits and the elements drawn.
        out: Where runs, records and the page go; runs that are there are not repeated.
        settings: More ``field=value`` texts, as in ``train_images=500``.
        console: Where to say what happens.
    """
    console = console or Console()
    _say(
        console,
        "4,000 MNIST digits to train on and 1,000 to test, each rotated by a random angle. A small CNN sees "
        "them and their quarter turns: without the equivariance loss (cnn-aug), with it (ien-r4), and with "
        "it and a third fewer channels (het-ien). With weights that ien.make_equivariant ties, it sees the "
        "digits alone, and is equivariant from the first step to the last (equivariant). "
        f"Runs are kept in {out}, and not repeated.",
    )
    rows = [f"rot-mnist/{row}" for row in PAPER_ROWS]
    configs = plan(rows, "demo", [seed], [f"epochs={epochs}", *settings])
    _run(configs, out, console)
    print_table("rot-mnist", out / "results", console=console)
    _write_page(configs, out, out / "paper.html", console)


def _run(
    configs: Sequence[Config], out: Path, console: Console, titles: Sequence[str] = ()
) -> Sequence[Record]:
    """Train on the digits that come with the package; returns the records."""
    try:
        return run_all(configs, out, out / "results", "embedded", console=console, titles=titles)
    except Stopped:
        raise KeyboardInterrupt from None  # there is no single run to resume: the demo goes on by itself


def _table(records: Mapping[str, Record]) -> list[list[str]]:
    rows = [["", "upright", "rotated", "predictions that change", "training time"]]
    for name, record in records.items():
        rows.append(
            [
                name,
                f"{record['accuracy']:.1%}",
                f"{_rotated(record):.1%}",
                f"{1 - record['agreement']:.1%}",
                f"{record['seconds']:.0f} s",
            ]
        )
    return rows


def _rotated(record: Record) -> float:
    """Return the mean accuracy at 90°, 180° and 270°.

    ``accuracy_under_group`` is the mean over all four quarter turns, so the three others have
    (4 · under group − upright) / 3.
    """
    total = QUARTER_TURNS * record["accuracy_under_group"]
    return float(total - record["accuracy"]) / (QUARTER_TURNS - 1)


def _meaning(records: Mapping[str, Record]) -> str:
    """Say in one sentence what the table means, with the price."""
    ordinary = records["ordinary CNN"]
    equivariant = records["equivariant CNN"]
    slack = records["equivariant with slack"]
    what_it_did = (
        "finds out that these digits have an upright, and gives the symmetry away as far as that helps"
    )
    if not any(slack["slack"].values()):  # too few digits or steps
        what_it_did = "did not hear enough in this short run, and kept the symmetry"
    lost = max(0.0, 100 * (ordinary["accuracy"] - equivariant["accuracy"]))
    return (
        "The equivariant CNN (ien.make_equivariant) never saw a rotated digit, and gives the same answer at "
        f"every quarter turn. Its price is {lost:.1f} points on upright digits, since it cannot see which "
        f'way is up: a 6 is nearly a 9. With slack="auto" it {what_it_did}: {slack["accuracy"]:.1%} upright, '
        f"{_rotated(slack):.1%} rotated."
    )


def _write_page(configs: Sequence[Config], out: Path, path: Path, console: Console) -> None:
    """Write the page of the runs, and print its address on a line of its own."""
    from ..report.page.build import write_runs_page

    folders = [out / run_name(config, "embedded") for config in configs]
    try:
        with console.status("writing the page") as status:
            page = write_runs_page(folders, path, measured=100, progress=status.update)
    except ModuleNotFoundError as error:  # plots are an extra; everything else is done
        _say(console, f"No page was written: {error}")
        return
    _say(console, "Open this page, and rotate the digits:")
    # a terminal finds the address only if it is not broken
    console.print(page.absolute().as_uri(), highlight=False, markup=False, soft_wrap=True)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)
