"""The command that asks whether labelled images have a symmetry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import one_line_errors

__all__ = ["symmetry"]


def symmetry(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder of images for each class, or train/ with these."),
    ],
    group: Annotated[
        str, typer.Option("--group", metavar="A,B", help="Rotations and flips; several: rot4,flip,rot2.")
    ] = "rot4",
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="How often each image is seen.",
            show_default="3 to 6, by the number of images",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first weights and the order.")] = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take some seconds: compare nothing on held-out images."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdicts alone, without progress.")
    ] = False,
) -> None:
    """Find out whether your images have a symmetry: do labels depend on how images are rotated?

    A small equivariant network learns the labels, and listens: a certainty above 4 means that they
    depend on orientation; about 0 that they do not, as far as these images tell. Then equivariant
    and ordinary networks are compared on held-out images: about two minutes for each group.

    Example: ien symmetry photos/ --group rot4

    Example: ien symmetry photos/ --group rot4,flip,rot2
    """
    with one_line_errors():
        from ..data import to_float
        from ..data.class_folders import class_folders
        from ..groups.families import group as parse_group
        from ..tying.symmetry import SIZE
        from ..tying.symmetry import symmetry as listen

        groups = [parse_group(name) for name in group.split(",")]
        data = class_folders(folder, image_size=SIZE)
        for each in groups:
            x = to_float(data.train_x)
            result = listen(x, data.train_y, each, epochs, seed, quick, progress=not quiet)
            typer.echo(f"{result}\n")
