"""The commands that look at a model: measure and doctor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import fail, one_line_errors
from .options import (
    AsJson,
    Layers,
    MovedData,
    Number,
    OwnModel,
    Quiet,
    Size,
    Target,
    Weights,
    folder_of,
    group_option,
    is_run,
    layer_names,
    own_model,
    print_json,
    read_size,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..measuring.report import Report

__all__ = ["doctor", "measure"]


def measure(
    target: Target,
    weights: Weights = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", callback=folder_of, help="A folder of images.", show_default="the run's test set"
        ),
    ] = None,
    group: Annotated[str | None, group_option("the run's, or rot4")] = None,
    layers: Layers = None,
    feature_groups: Annotated[
        str | None,
        typer.Option(
            metavar="4|4-2-1", help="Channels in each feature group.", show_default="the run's, or 1"
        ),
    ] = None,
    size: Size = None,
    number: Number = 1000,
    data: MovedData = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json, report.md and report.html here.")
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(metavar="X", help="Exit with 1 if a layer's relative error is above X; for use in CI."),
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Let --fail-above judge a model without weights.")
    ] = False,
    model: OwnModel = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how equivariant a model is, layer by layer. Works on any torch model.

    A relative error of 0 means equivariant, about 2 means unrelated. The floor is the error that
    the pixel grid and resampling cause on their own.

    Example: ien measure net.py:build --weights w.pth --images photos --group rot8

    Example: ien measure net.py:build --weights w.pth --images photos --json

    Example: ien measure runs/rot-mnist/ien-r4/small-seed1 --fail-above 0.05
    """
    # someone else's model may raise these
    with one_line_errors(TypeError, RuntimeError), own_model(model, [Path(target)]):
        from ..measuring.measure import measure as measure_model

        # checked before the model runs, which can take minutes
        _check_json(as_json, quiet)
        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"--out should name a folder; {out} is a file")
        if fail_above is not None and not math.isfinite(fail_above):
            raise ValueError(f"--fail-above should be a number such as 0.05; got {fail_above}")

        notes: tuple[str, ...] = ()
        if is_run(target, weights):
            arguments = _arguments_of_run(target, images, group, size, number, data)
        else:
            gate = fail_above is not None and not random_weights
            arguments, notes = _arguments_of_code(target, weights, images, size, number, data, gate)
        # what the user asks for comes before what the run says
        options = {"group": group, "layers": layer_names(layers), "feature_groups": feature_groups}
        for name, value in options.items():
            if value is not None:
                arguments[name] = value
        arguments.setdefault("group", "rot4")

        measured = measure_model(**arguments, progress=True)
        for note in notes:
            typer.echo(note, err=True)
        if as_json:
            print_json(measured.to_dict())
        else:
            typer.echo(str(measured))
        if out is not None:
            typer.echo(f"{measured.save(out)}: report.json, report.md, report.html", err=as_json)
    if fail_above is not None:  # after the report is printed and saved
        _fail_above(fail_above, measured)


def doctor(
    target: Target,
    size: Size = None,
    data: MovedData = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the model is not exact.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find layers that cannot be equivariant to quarter turns and flips, and input sizes that help.

    Only shapes are followed through the model, so it takes seconds and weights do not matter.

    Example: ien doctor net.py:build --size 3x224x224

    Example: ien doctor torchvision.models:resnet50 --size 224

    Example: ien doctor net.py:build --size 224 --strict --quiet
    """
    with one_line_errors(TypeError, RuntimeError):
        from ..geometry.doctor import doctor as diagnose

        _check_json(as_json, quiet)
        input_size: tuple[int, ...] | None = read_size(size)
        notes: list[str] = []
        if Path(target).is_dir():
            from ..training import load

            model = load(target)
            if input_size is None:  # that of its test images
                from ..report.opened import open_run

                images = open_run(target, data, count=2).images
                _, *image_size = images.shape
                input_size = tuple(image_size)
        else:
            from .model_file import build_model, uncompiled

            model, notes = uncompiled(build_model(target), target)
            if input_size is None:
                raise ValueError("say how large the images are: --size 3x224x224")
        diagnosis = diagnose(model, input_size)
        for note in notes:
            typer.echo(note, err=True)
        if as_json:
            print_json(asdict(diagnosis))
        else:
            typer.echo(str(diagnosis))
    if strict and not diagnosis.exact:
        raise typer.Exit(1)


def _check_json(as_json: bool, quiet: bool) -> None:
    if as_json and quiet:
        raise ValueError("--json prints and --quiet does not: drop one (messages are on standard error)")


def _arguments_of_run(
    target: str,
    images: Path | None,
    group: str | None,
    size: str | None,
    number: int,
    data: str | None,
) -> dict[str, Any]:
    """What to call ``ien.measure`` with: the run's own model, test set, group and layers."""
    from ..report.opened import open_run

    opened = open_run(target, data, number)
    arguments: dict[str, Any] = {
        "model": opened.model,
        "images": opened.images,
        "group": opened.group,
        "layers": opened.layers,
        "feature_groups": opened.feature_groups,
        "labels": opened.labels,
    }
    if images is not None:
        # by default they are scaled to the size of the test set, which the network was trained on
        _, *image_size = opened.images.shape
        arguments["images"] = _batches(images, read_size(size) or tuple(image_size), number)
        arguments["labels"] = None  # those of the test set do not fit
    elif size is not None:
        raise ValueError("--size rescales the images of --images; a run's test set has its own size")
    if group is None:
        _mention_other_groups(Path(target))
    return arguments


def _arguments_of_code(
    target: str,
    weights: Path | None,
    images: Path | None,
    size: str | None,
    number: int,
    data: str | None,
    gate: bool,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What to call ``ien.measure`` with: the model that the code makes, and a folder of images.

    Also returns what there is to say about its weights. With ``gate``, random ones are refused.
    """
    from .model_file import build_with_weights

    if data is not None:
        raise ValueError("--data is for a run; give a model from code a folder of images: --images DIR")
    if images is None:
        raise ValueError("a model from code needs images: --images DIR")
    batches = _batches(images, read_size(size), number)  # names a missing folder before the code runs
    built = build_with_weights(target, weights)
    if built.random and gate:
        raise ValueError(
            f"--fail-above is about a trained model, and the weights of {target} are random: "
            f"give --weights FILE, or --random-weights if that is what you mean"
        )
    return {"model": built.model, "images": batches}, built.notes


def _batches(folder: Path, size: Any, number: int) -> Iterator[Tensor]:
    from ..measuring.image_folder import evenly, find_images, image_batches

    return image_batches(evenly(find_images(folder), number), size)


def _mention_other_groups(folder: Path) -> None:
    """A run may be trained for several groups, and one measurement takes one."""
    from ..training.run_folder import read_config

    first, *others = read_config(folder).objective.measured_groups
    for other in others:
        typer.echo(f"measured under {first}; for {other} give --group {other}", err=True)


def _fail_above(limit: float, measured: Report) -> None:
    """Exit with 1 if the relative error of a layer is above the limit."""
    failed = []
    for name, layer in measured.layers.items():
        # NaN must fail too; and a constant layer is equivariant without having learnt anything
        passed = layer.relative <= limit and not layer.constant
        if not passed:
            failed.append(f"{name or 'the model'} {layer.relative:.3g}")
    if failed:
        fail(f"above {limit:g}, or constant: {', '.join(failed)}", 1)
