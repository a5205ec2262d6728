"""The command ``ien``: every command in its panel."""

from __future__ import annotations

from typing import Annotated

import typer

from . import look, rows, run
from .adapt import adapt
from .commands import Commands
from .data import app as data_app
from .export import export
from .plot import app as plot_app
from .report import report
from .symmetry import symmetry
from .track import track
from .train import train

__all__ = ["app"]

# titles of the panels in which ien --help groups the commands
YOUR_MODEL = "Your model"
DEMO = "Demo"
PAPER = "The paper"

# each line of examples is at most 78 characters long, so that none is broken
app = Commands(
    help="""Make an ordinary convolutional network equivariant, or find out whether it is.

    A first look:    ien demo
    Your model:      ien doctor net.py:build --size 3x224x224
    Your images:     ien train photos/ --group rot4
    A trained model: ien measure net.py:build --weights w.pth --images photos/
    The paper:       ien run rot-mnist/ien-r4, then ien table rot-mnist""",
    epilog="Every command has -h. Shells complete words after: ien --install-completion",
)


def _print_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(f"ien {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


# --help shows the commands in the order of these lines
app.command(rich_help_panel=YOUR_MODEL)(look.doctor)
app.command(rich_help_panel=YOUR_MODEL)(look.measure)
app.command(rich_help_panel=YOUR_MODEL)(report)
app.command(rich_help_panel=YOUR_MODEL)(train)
app.command(rich_help_panel=YOUR_MODEL)(adapt)
app.command(rich_help_panel=YOUR_MODEL)(export)
app.command(rich_help_panel=YOUR_MODEL)(symmetry)

app.command(rich_help_panel=DEMO)(run.demo)

app.command("list", rich_help_panel=PAPER)(rows.list_)
app.command(rich_help_panel=PAPER)(rows.show)
app.command(rich_help_panel=PAPER)(run.run)
app.command(rich_help_panel=PAPER)(run.resume)
app.command(rich_help_panel=PAPER)(run.status)
app.command(rich_help_panel=PAPER)(rows.table)
app.add_typer(plot_app, name="plot", rich_help_panel=PAPER)
app.add_typer(data_app, name="data", rich_help_panel=PAPER)
app.command(rich_help_panel=PAPER)(track)
