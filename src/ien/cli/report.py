"""The command that writes a page about runs, or about any model: report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from .errors import one_line_errors
from .options import (
    MovedData,
    OwnModel,
    Quiet,
    Size,
    Weights,
    folder_of,
    layer_names,
    own_model,
    read_size,
    run_folder_of,
)

__all__ = ["report"]

REPORT_IMAGES = 200
"""How many images the page of a model from code is about, at most."""
MAX_LISTED_FILES = 3
"""How many unreadable files are named."""


def _runs_or_code(targets: list[str]) -> list[str]:
    """Return the run folder where a file in one was given."""
    return [str(run_folder_of(Path(target))) for target in targets]


def report(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…|CODE",
            callback=_runs_or_code,
            help="Run folders of finished runs, or one function that makes a model: path/to/code.py:build.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page, an .html file.")] = Path(
        "report.html"
    ),
    weights: Weights = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", callback=folder_of, help="A folder of images, for CODE.", show_default=False
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="The group, for CODE.", show_default="rot4"),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="A,B",
            help="Layers of CODE, by their dotted names.",
            show_default="the model's direct children",
        ),
    ] = None,
    size: Size = None,
    number: Annotated[
        int | None,
        typer.Option("--number", min=2, metavar="N", help="Use at most N images.", show_default="200"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="KEY", help="What to look at if CODE returns several things: logits, or 0."
        ),
    ] = None,
    data: MovedData = None,
    model: OwnModel = None,
    quiet: Quiet = False,
) -> None:
    """Write one page: table, plots, findings and an explorer. Works on any torch model.

    The explorer rotates images by any angle and shows what the layers make of them, for runs two
    side by side. It opens on an image whose prediction changes, at the angle where it does.

    Example: ien report runs/rot-mnist/*/small-seed1 --out report.html

    Example: ien report net.py:build --weights w.pth --images photos --size 224
    """
    from rich.console import Console

    code = [target for target in targets if not Path(target).is_dir() and ":" in target]
    notes: list[str] = []
    with Console(stderr=True).status("reading") as status, one_line_errors(TypeError, RuntimeError):
        if out.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"the page is HTML: name it {out.with_suffix('.html')}; got {out}")
        if code:
            if len(targets) > 1:
                raise ValueError(f"a page shows runs, or one model from code: write one for {code[0]} alone")
            if data is not None:
                raise ValueError(
                    "--data is for runs; give a model from code a folder of images: --images DIR"
                )
            path, notes = _model_page(
                code[0], out, weights, images, group, layer_names(layers), size, number, output, status.update
            )
        else:
            options = {
                "--weights": weights,
                "--images": images,
                "--group": group,
                "--layers": layers,
                "--size": size,
                "--number": number,
                "--output": output,
            }
            for name, value in options.items():
                if value is not None:
                    raise ValueError(
                        f"{name} is for a model from code, such as net.py:build; runs have their own"
                    )
            from ..report.page.build import write_runs_page

            with own_model(model, [Path(target) for target in targets]):
                path = write_runs_page(targets, out, data, progress=status.update)
    for note in notes:
        typer.echo(note, err=True)
    megabytes = path.stat().st_size / 1e6
    typer.echo(f"wrote {path} ({megabytes:.1f} MB): open it in a browser")


def _model_page(
    target: str,
    out: Path,
    weights: Path | None,
    images: Path | None,
    group: str | None,
    layers: list[str] | None,
    size: str | None,
    number: int | None,
    output: str | None,
    progress: Callable[[str], None],
) -> tuple[Path, list[str]]:
    """Write the page of a model from code; returns the file, and what there is to say."""
    import torch

    from ..groups.families import group as parse_group
    from ..measuring.image_folder import evenly, find_images, image_batches
    from ..report.page.model import write_model_page
    from .model_file import build_with_weights

    if images is None:
        raise ValueError("a model from code needs images: --images DIR")
    paths = find_images(images)
    unreadable: list[Path] = []
    chosen = parse_group(group or "rot4")
    used = evenly(paths, number or REPORT_IMAGES)
    x = torch.cat(list(image_batches(used, read_size(size), unreadable=unreadable)))
    names = [str(path.relative_to(images)) for path in used if path not in unreadable]
    built = build_with_weights(target, weights)
    notes = [*built.notes, *_left_out(unreadable)]
    settings = {
        "weights": str(weights or ("random" if built.random else "the code's own")),
        "images": f"{len(x):,} of {len(paths):,} in {images}",
    }
    path = write_model_page(
        built.model,
        x,
        out,
        name=target,
        group=chosen,
        layers=layers,
        output=output,
        image_names=names,
        settings=settings,
        notes=notes,
        progress=progress,
    )
    return path, notes


def _left_out(unreadable: list[Path]) -> list[str]:
    """Say which images could not be read, in one line, if any."""
    if not unreadable:
        return []
    named = ", ".join(str(path) for path in unreadable[:MAX_LISTED_FILES])
    if len(unreadable) > MAX_LISTED_FILES:
        named += " …"
    return [f"left out {len(unreadable)} of the images, which cannot be read: {named}"]
