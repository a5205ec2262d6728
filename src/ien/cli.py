"""The command line: ``ien demo``."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Make an ordinary convolutional network equivariant by training it that way.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def main() -> None:
    pass


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 4,000 training digits.")] = 16,
    beta: Annotated[
        list[float] | None,
        typer.Option(
            min=0, help="Weight β of the loss in every layer; repeat it for several. [default: 0.1 and 1]"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the digits' angles, the initial weights and the batches.")
    ] = 0,
) -> None:
    """Train a small CNN on rotated digits with and without the equivariance loss, and compare the two.

    Uses 5,000 MNIST digits that come with the installation; nothing is downloaded or written.
    """
    from ._demo import BETAS
    from ._demo import demo as run

    try:
        run(epochs=epochs, betas=beta or BETAS, seed=seed)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
