"""The command ``ien``: every command in its panel."""

from __future__ import annotations

from typing import Annotated

import typer

from . import look, run
from .adapt import adapt
from .data import app as data_app
from .errors import OneLineErrors
from .plot import app as plot_app
from .symmetry import symmetry
from .track import track
from .train import train

__all__ = ["app"]

# titles of the panels in which ien --help groups the commands
YOUR_MODEL = "Your model"
DEMO = "Demo"
PAPER = "The paper"

app = typer.Typer(
    help="""Make an ordinary convolutional network equivariant by training it that way.

    Start with ien demo: no data needed, a few minutes.

    For any torch model: ien measure net.py:build --images photos/ --group rot8,
    ien doctor net.py:build --size 3x224x224, ien report net.py:build --images photos/.

    For a folder of images: ien symmetry photos/, ien train photos/.

    For the paper: ien list, ien show rot-mnist/ien-r4, ien run rot-mnist/ien-r4, ien table rot-mnist.

    For tracking: ien track --demo, ien track VIDEO --run RUN --box 40,25,60,80.""",
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,  # two options less in --help
    # locals of a traceback would print whole tensors
    pretty_exceptions_show_locals=False,
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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


# --help shows the commands in the order of these lines
app.command(rich_help_panel=YOUR_MODEL)(look.doctor)
app.command(rich_help_panel=YOUR_MODEL)(look.measure)
app.command(rich_help_panel=YOUR_MODEL)(look.report)
app.command(rich_help_panel=YOUR_MODEL)(symmetry)
app.command(rich_help_panel=YOUR_MODEL)(adapt)
app.command(rich_help_panel=YOUR_MODEL)(train)

app.command(rich_help_panel=DEMO)(run.demo)

app.command("list", rich_help_panel=PAPER)(run.list_)
app.command(rich_help_panel=PAPER)(run.show)
app.command(rich_help_panel=PAPER)(run.run)
app.command(rich_help_panel=PAPER)(run.resume)
app.command(rich_help_panel=PAPER)(run.table)
app.add_typer(plot_app, name="plot", rich_help_panel=PAPER)
app.add_typer(data_app, name="data", rich_help_panel=PAPER)
app.command(rich_help_panel=PAPER)(track)
