"""The command that makes a trained model equivariant without training it again: adapt."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import one_line_errors
from .options import Quiet, Size, Weights, folder_of, layer_names, read_size

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["adapt"]

HELD_OUT = 5
"""Without --test, every fifth image is kept for the table."""
MAX_TESTED = 400
"""Images in the table, so that it takes minutes."""
BATCH_SIZE = 32


class How(str, Enum):
    """The three ways."""

    average = "average"
    canonicalize = "canonicalize"
    adapt = "adapt"


def adapt(
    target: Annotated[
        str, typer.Argument(metavar="CODE", help="A function that makes the model: path/to/code.py:build.")
    ],
    images: Annotated[
        Path,
        typer.Option(
            "--images",
            metavar="DIR",
            callback=folder_of,
            help="Images in their usual orientation; no labels.",
        ),
    ],
    how: Annotated[
        How, typer.Option("--how", metavar="WAY", help="average, canonicalize or adapt.")
    ] = How.canonicalize,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Rotations and flips.")] = "rot4",
    weights: Weights = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write what was trained: .safetensors."),
    ] = None,
    size: Size = None,
    minutes: Annotated[float, typer.Option(metavar="N", help="How long to adapt.")] = 10.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training to canonicalize.")] = 2000,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="A,B", help="Compare the maps of these layers, too.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Images for the table.", show_default="a fifth of --images"),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Their classes: a line 'file,class_index', then one an image."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Keep a checkpoint here, and go on from it."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Make a trained classifier equivariant, without labels and without training it again.

    average: exact, nothing is trained; costs as many passes as the group has elements.

    canonicalize: exact; a small network rotates each image upright first, at a few per cent.

    adapt: not exact; a copy learns to answer alike, and costs nothing more.

    It ends with a table of before and after.

    Example: ien adapt net.py:build --images photos/ -o upright.safetensors

    Example: ien adapt net.py:build --images photos/ --how adapt -o up.safetensors

    Example: ien adapt net.py:build --images photos/ --how average --test test/
    """
    with one_line_errors(TypeError, RuntimeError):
        from ..adapting.compare import compare
        from ..groups.families import group as named_group
        from ..measuring.image_folder import find_images, image_batches
        from .model_file import build_with_weights

        acting = named_group(group)
        input_size = read_size(size)
        if out is None and how is not How.average:
            raise ValueError(f"say where to write the result: -o {how.value}d.safetensors")
        if labels is not None and test is None:
            raise ValueError("--labels belong to the images of --test: add --test DIR")
        training = find_images(images)
        if test is None:
            tested = training[::HELD_OUT]
            training = [path for i, path in enumerate(training) if i % HELD_OUT]
        else:
            tested = find_images(test)
        classes = None
        if labels is not None:
            tested, classes = _labelled(labels, tested)
        tested = tested[:MAX_TESTED]
        built = build_with_weights(target, weights)
        for note in built.notes:
            typer.echo(note, err=True)

        folder = _Folder(training, input_size, seed)
        versions: dict[str, nn.Module] = {"original": built.model.eval()}
        versions[how.value], use = _made(
            built.model, how, group, folder, out, minutes, steps, layers, resume, seed
        )
        batches = image_batches(tested, input_size, BATCH_SIZE)
        if classes is not None:
            classes = classes[:MAX_TESTED]
        typer.echo(str(compare(versions, batches, acting, classes)))
        typer.echo(use)


def _made(
    model: nn.Module,
    how: How,
    group: str,
    folder: _Folder,
    out: Path | None,
    minutes: float,
    steps: int,
    layers: str | None,
    resume: Path | None,
    seed: int,
) -> tuple[nn.Module, str]:
    """Return the new version of the model, after writing it, and a line on how to use it."""
    from ..adapting.adapt import adapt as adapt_model
    from ..adapting.average import GroupAverage
    from ..adapting.canonicalize import Canonicalize

    if how is How.average:
        return GroupAverage(model, group), f'nothing was trained: use ien.GroupAverage(model, "{group}")'
    assert out is not None  # checked before anything else
    if how is How.canonicalize:
        upright = Canonicalize(model, group).fit(folder, steps, seed)
        upright.save(out)
        return upright, f'wrote {out}: use ien.Canonicalize.load(model, "{out}")'
    from .._files import write_tensors

    named = layer_names(layers) or ()
    adapted = adapt_model(model, folder, group, minutes, layers=named, seed=seed, folder=resume)
    write_tensors(out, adapted.state_dict())
    return adapted, f"wrote {out}: weights for the same model, under the same names"


class _Folder:
    """The images of a folder in batches, in another order each time."""

    def __init__(self, paths: list[Path], size: tuple[int, int, int] | None, seed: int) -> None:
        self.paths = paths
        self.size = size
        self.seed = seed
        self.passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        import torch

        from .._files import generator
        from ..measuring.image_folder import image_batches

        order = torch.randperm(len(self.paths), generator=generator(self.seed, "pass", self.passes))
        self.passes += 1
        return image_batches([self.paths[i] for i in order.tolist()], self.size, BATCH_SIZE)


def _labelled(file: Path, paths: list[Path]) -> tuple[list[Path], Tensor]:
    """Return the images that a table of labels names, and their classes."""
    import torch

    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file} with labels")
    with open(file, newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or "file" not in rows[0] or "class_index" not in rows[0]:
        raise ValueError(f"{file} should begin with the line 'file,class_index'")
    classes: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):
        text = row["class_index"]
        if text is None or not text.strip().isdecimal():
            raise ValueError(
                f"line {number} of {file} should name a class by its number from 0; got {text!r}"
            )
        classes[row["file"]] = int(text)
    named = [path for path in paths if path.name in classes]
    if not named:
        raise ValueError(f"{file} names none of the {len(paths)} images, such as {paths[0].name}")
    return named, torch.tensor([classes[path.name] for path in named])
