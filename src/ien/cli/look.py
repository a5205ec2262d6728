"""The commands that look at models: measure, doctor and report."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..measuring.report import ROOT
from .errors import fail, one_line_errors

__all__ = ["doctor", "measure", "report"]

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CODE", help="A run folder, or a function that makes a model: path/to/code.py:build."
    ),
]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished run folders.")]
Weights = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Weights for CODE: .safetensors, or a state_dict.")
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Where the data of a RUN are now, if they were moved.",
        show_default="where they were when the run began",
    ),
]
GroupName = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP", help="Such as rot4, rot8, rot4xflip, scale0.7,0.84.", show_default="the run's"
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        metavar="A,B", help="Layers by their dotted names.", show_default="the run's, or the direct children"
    ),
]
Size = Annotated[
    str | None,
    typer.Option(metavar="CxHxW", help="Image size: 3x224x224, 1x28x28, or 224 for the first."),
]
Number = Annotated[int, typer.Option(min=2, metavar="N", help="How many images at most.")]


def measure(
    target: Target,
    weights: Weights = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of images.", show_default="the run's test set"),
    ] = None,
    group: GroupName = None,
    layers: Layers = None,
    feature_groups: Annotated[
        str | None,
        typer.Option(metavar="4|4-2-1", help="Members of feature groups.", show_default="the run's, or 1"),
    ] = None,
    size: Size = None,
    number: Number = 1000,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json, report.md and report.html there.")
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(metavar="X", help="Exit with 1 if a layer's relative error is above X: a gate for CI."),
    ] = None,
) -> None:
    """Measure how equivariant a model is, layer by layer: any torch model, trained by ien or not.

    Relative error: 0 is equivariant, about 2 unrelated. Floor: what grid and resampling alone cost.

    Example: ien measure runs/rot-mnist/ien-r4/small-seed1 --group rot72 --out report/

    Example: ien measure net.py:build --weights w.safetensors --images photos/ --group rot8 --size 3x224x224

    Example: ien measure net.py:build --images photos/ --group rot4 --layers layer3,layer4 --fail-above 0.05
    """
    with one_line_errors(TypeError, RuntimeError):
        from ..measuring.measure import measure as measure_

        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file, and --out names a folder")
        if fail_above is not None and not math.isfinite(fail_above):
            raise ValueError(f"--fail-above takes a number such as 0.05; got {fail_above}")
        if _is_run(target):
            if weights is not None:
                raise ValueError(
                    f"--weights are for a model from code, and {target} is a run that has its own"
                )
            arguments = _from_run(Path(target), images, size, number, data)
            if group is None:
                _name_other_groups(Path(target))
        else:
            if data is not None:
                raise ValueError("--data is for a run; a model from code is measured on --images DIR")
            arguments = _from_code(target, weights, images, size, number)
        asked = {"group": group, "layers": names_in(layers), "feature_groups": feature_groups}
        arguments |= {key: value for key, value in asked.items() if value is not None}
        if arguments.get("group") is None:
            raise ValueError("name the group to measure: --group rot4 (or rot8, rot4xflip, scale0.7,0.84)")
        found = measure_(**arguments, progress=True)
        typer.echo(str(found))
        if out is not None:
            typer.echo(f"{found.save(out)}: report.json, report.md, report.html")
    if fail_above is None:
        return
    # written so that NaN fails; a constant layer would pass without having learnt anything
    bad = {n: r.relative for n, r in found.layers.items() if not r.relative <= fail_above or r.constant}
    if bad:
        shown = ", ".join(f"{name or 'the model'} {relative:.3g}" for name, relative in bad.items())
        fail(f"above {fail_above:g}, or constant: {shown}", 1)


def doctor(
    target: Target,
    size: Size = None,
    data: Data = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the model is not exact.")] = False,
) -> None:
    """Find the layers whose geometry breaks quarter turns and flips, and the nearest input sizes that do not.

    Nothing is computed, so that it takes seconds; weights do not matter.

    Example: ien doctor net.py:build --size 3x224x224

    Example: ien doctor torchvision.models:resnet50 --size 224
    """
    with one_line_errors(TypeError, RuntimeError):
        from ..geometry.doctor import doctor as doctor_
        from ..report.opened import build_model, open_run
        from ..training import load

        given = _size(size)
        if _is_run(target):
            model = load(target)
            input_size = given or tuple(open_run(target, data, count=2).images.shape[1:])
        else:
            model = build_model(target)
            if given is None:
                raise ValueError("say for which images: --size 3x224x224")
            input_size = given
        diagnosis = doctor_(model, input_size)
        typer.echo(str(diagnosis))
    if strict and not diagnosis.exact:
        raise typer.Exit(1)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    data: Data = None,
) -> None:
    """Write one self-contained page about runs: table, plots, settings, findings, and an explorer.

    The explorer turns images by any angle and shows the feature maps of two models side by side.

    Example: ien report runs/rot-mnist/cnn-aug/small-seed1 runs/rot-mnist/ien-r4/small-seed1 -o report.html
    """
    with one_line_errors():
        from rich.console import Console

        from ..report.page.build import write_report

        with Console(stderr=True).status("reading runs") as status:
            path = write_report(runs, out, data, progress=status.update)
        typer.echo(f"{path} is written ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")


def _is_run(target: str) -> bool:
    return Path(target).is_dir()


def _name_other_groups(folder: Path) -> None:
    from ..training.run_folder import read_config

    first, *others = read_config(folder).measured_groups
    for other in others:
        typer.echo(f"measured under {first}; for {other} give --group {other}", err=True)


def _from_run(
    folder: Path, images: Path | None, size: str | None, number: int, data: str | None
) -> dict[str, Any]:
    from ..report.opened import open_run

    subject = open_run(folder, data, number)
    arguments: dict[str, Any] = {
        "model": subject.model,
        "images": subject.images,
        "group": subject.group,
        "layers": subject.layers,
        "feature_groups": subject.feature_groups,
        "labels": subject.labels,
    }
    if images is not None:
        shape = _size(size) or tuple(subject.images.shape[1:])
        arguments |= {"images": _images(images, shape, number), "labels": None}
    elif size is not None:
        raise ValueError("--size scales the images of --images; the test set of a run has its own size")
    return arguments


def _from_code(
    target: str, weights: Path | None, images: Path | None, size: str | None, number: int
) -> dict[str, Any]:
    from ..report.opened import build_model, load_weights_into

    if ":" not in target:
        raise ValueError(f"there is no run folder {target}; a model from code is named as in code.py:build")
    if images is None:
        raise ValueError("a model from code needs images to be measured on: --images DIR")
    batches = _images(images, _size(size), number)
    model = build_model(target)
    if weights is not None:
        load_weights_into(model, weights)
    return {"model": model, "images": batches}


def _images(folder: Path, size: tuple[int, ...] | None, number: int) -> Any:
    from ..measuring.image_folder import find_images, image_batches

    return image_batches(find_images(folder)[:number], size)  # type: ignore[arg-type]


def names_in(text: str | None) -> list[str] | None:
    names = [name.strip() for name in (text or "").split(",")]
    return [name.replace(ROOT, "") for name in names if name] or None


def _size(text: str | None) -> tuple[int, int, int] | None:
    """3x224x224, or 224 for three channels and a square."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:(\d+)[x×])?(?:(\d+)[x×])?(\d+)", text.strip().lower())
    if (
        found is None
        or (found[1] and not found[2])
        or 0 in (numbers := [int(n) for n in found.groups() if n])
    ):
        raise ValueError(f"a size is written 3x224x224 (channels, height, width) or 224; got {text!r}")
    if max(numbers) > 8192:
        raise ValueError(f"a size is at most 8192 pixels; got {text!r}")
    return (3, numbers[0], numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2])
