"""The command that makes one file of a trained model, for other programs: export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .errors import one_line_errors
from .options import (
    AsJson,
    GroupName,
    MovedData,
    OwnModel,
    Quiet,
    Size,
    Target,
    Weights,
    folder_of,
    is_run,
    own_model,
    print_json,
    read_size,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..exporting.result import Exported
    from ..groups.group import Group

__all__ = ["export"]

CALIBRATION_IMAGES = 128
"""For --int8, besides those of the table."""
RANDOM_IMAGES = 8
"""How many pictures of random numbers stand in for images."""
DEFAULT_GROUP = "rot4"


class _Subject(NamedTuple):
    """What is exported, and what it is checked with."""

    model: nn.Module
    images: Tensor
    labels: Tensor | None
    group: Group | str
    any_size: bool
    about: dict[str, Any]
    """For the header of the file."""
    notes: list[str]
    """What there is to say."""


def export(
    target: Target,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The file: net.onnx, net.pt2 or net.safetensors."),
    ],
    weights: Weights = None,
    size: Size = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=folder_of,
            help="Images to check with.",
            show_default="the run's test set; for CODE random numbers",
        ),
    ] = None,
    group: GroupName = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in int8, calibrated with the images; ONNX only.")
    ] = False,
    number: Annotated[
        int, typer.Option("--number", min=1, metavar="N", help="Check with at most N images.")
    ] = 200,
    any_size: Annotated[
        bool, typer.Option("--any-size", help="Let height and width of the images change, too.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(metavar="X", help="Accept differences up to this share of the largest output."),
    ] = 1e-4,
    opset: Annotated[
        int | None,
        typer.Option(metavar="N", help="Version of ONNX's operators.", show_default="torch's choice"),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="How what it returns changes with the image: scores, invariant, map, boxes, points, vectors "
            "or angles; or by key, as in boxes=boxes,scores=scores.",
            show_default="map for (B, C, H, W), else invariant",
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For the model card: mit, cc-by-4.0, …", show_default="unknown"),
    ] = None,
    data: MovedData = None,
    model: OwnModel = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make one file of a trained model, check it in its own runtime, and write a model card.

    The file does not need ien to run. It is compared with the model on images and on random
    numbers, under every element of the group, and kept only if both do the same. A .safetensors
    file of a run is read by ien.load, without the folder.

    Example: ien export runs/rot-mnist/ien-r4/small-seed1 -o net.onnx

    Example: ien export net.py:build --weights w.pth --size 3x64x64 -o net.onnx

    Example: ien export net.py:build --images photos -o net.onnx --int8
    """
    with one_line_errors(TypeError, RuntimeError), own_model(model, [Path(target)]):
        from ..exporting.card import card_beside, is_our_card
        from ..exporting.export import export as export_model
        from ..exporting.formats import check_packages, check_place, format_of

        # checked before the model runs, which can take minutes
        check_packages(format_of(out))
        check_place(out)
        card = card_beside(out)
        if not is_our_card(card):
            raise ValueError(f"{card} would be replaced by the model card: rename it, or choose another -o")
        if is_run(target, weights):
            subject = _of_run(Path(target), size, images, group, number, data, int8)
        else:
            if data is not None:
                raise ValueError(
                    "--data is for a run; give a model from code a folder of images: --images DIR"
                )
            subject = _of_code(target, weights, size, images, group, number, int8)
        for note in subject.notes:
            typer.echo(note, err=True)
        checked, labels, calibration = _split(subject, number, int8)
        exported = export_model(
            subject.model,
            out,
            checked,
            subject.group,
            labels=labels,
            int8=calibration,
            any_size=any_size or subject.any_size,
            tolerance=tolerance,
            opset=opset,
            outputs=_read_outputs(outputs),
            about=subject.about,
        )
        exported = replace(exported, notes=_notes_for_card(subject, weights))
        _write_card(card, target, exported, licence)
        if as_json:
            print_json(exported.to_dict())
        else:
            typer.echo(str(exported))
            typer.echo(f"model card: {card}")


def _notes_for_card(subject: _Subject, weights: Path | None) -> tuple[str, ...]:
    """Return what a reader of the card should know about weights and images."""
    notes = list(subject.notes)
    if weights is not None:
        notes.append(f"weights of {weights.name}")
    return tuple(notes)


def _read_outputs(text: str | None) -> Any:
    """Read ``map``, a kind for all tensors, or ``boxes=boxes,scores=scores``, one for each key."""
    if text is None:
        return "auto"
    if "=" not in text:
        return text.strip()
    kinds = {}
    for part in text.split(","):
        key, _, kind = part.partition("=")
        kinds[key.strip()] = kind.strip()
    return kinds


def _of_run(
    folder: Path,
    size: str | None,
    images: Path | None,
    group: str | None,
    number: int,
    data: str | None,
    int8: bool,
) -> _Subject:
    """Return the network of a run, with its test set, a folder of images or random numbers."""
    from ..report.opened import open_run
    from ..training import kind_of, load
    from ..training.run_folder import read_config
    from ..training.single_file import about_run

    config = read_config(folder)
    labels = None
    notes: list[str] = []
    if images is not None or size is not None:  # the data of the run need not be here
        network = load(folder)
        x, notes = _images(images, size, number, int8)
    else:
        try:
            opened = open_run(folder, data, _needed(number, int8))
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}; or check with other images, --images DIR, or with random numbers, --size 3x64x64"
            ) from None
        network, x, labels = opened.model, opened.images, opened.labels
    return _Subject(
        model=network,
        images=x,
        labels=labels,
        group=group or next(iter(config.objective.groups)),
        any_size=kind_of(config).any_size,
        about=about_run(folder),
        notes=notes,
    )


def _of_code(
    target: str,
    weights: Path | None,
    size: str | None,
    images: Path | None,
    group: str | None,
    number: int,
    int8: bool,
) -> _Subject:
    """Return the model that the code makes, with a folder of images or random numbers."""
    from .model_file import build_with_weights

    if images is None and size is None:
        raise ValueError("say how large the images are, --size 3x64x64, or where some are, --images DIR")
    x, notes = _images(images, size, number, int8)
    built = build_with_weights(target, weights)
    return _Subject(
        model=built.model,
        images=x,
        labels=None,
        group=group or DEFAULT_GROUP,
        any_size=False,
        about={"code": Path(target).name},
        notes=[*built.notes, *notes],
    )


def _images(folder: Path | None, size: str | None, number: int, int8: bool) -> tuple[Tensor, list[str]]:
    """Return images of a folder, or random numbers of a size, and what there is to say."""
    import torch

    from .._files import seeded
    from ..measuring.image_folder import evenly, find_images, image_batches

    asked = read_size(size)
    if folder is not None:
        paths = evenly(find_images(folder), _needed(number, int8))
        if int8:
            # those of the table come first; they and the others are from all over the folder
            of_table = evenly(paths, _in_table(len(paths), number))
            paths = of_table + [path for path in paths if path not in of_table]
        return torch.cat(list(image_batches(paths, asked))), []
    if int8:
        raise ValueError("--int8 is calibrated with images as the model will see them: add --images DIR")
    assert asked is not None  # one of both is given
    x = torch.rand(RANDOM_IMAGES, *asked, generator=seeded(0))
    return x, ["no --images: checked on random numbers in [0, 1]"]


def _needed(number: int, int8: bool) -> int:
    if int8:
        return number + CALIBRATION_IMAGES
    return number


def _split(subject: _Subject, number: int, int8: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the images of the table, their labels, and others to calibrate with."""
    count = min(number, len(subject.images))
    calibration = None
    if int8:
        if len(subject.images) < 2:
            raise ValueError("--int8 needs two images or more: some to calibrate with, others for the table")
        count = _in_table(len(subject.images), number)
        calibration = subject.images[count:]
    labels = None
    if subject.labels is not None:
        labels = subject.labels[:count]
    return subject.images[:count], labels, calibration


def _in_table(total: int, number: int) -> int:
    """How many of the images are for the table if others are to calibrate with."""
    # few images are split in halves
    return min(number, max(total - CALIBRATION_IMAGES, total // 2))


def _write_card(card: Path, target: str, exported: Exported, licence: str | None) -> None:
    """Write the model card beside the file."""
    from ..exporting.card import UNKNOWN_LICENCE, card_text, licence_in, write_card

    title = Path(target).name
    sections: dict[str, str] = {}
    known = licence or licence_in(card)
    if Path(target).is_dir():
        from ..training.card import CARD, run_sections, run_title
        from ..training.run_folder import read_config, read_result

        config = read_config(Path(target))
        title = run_title(config)
        record = read_result(Path(target))
        if record is not None:
            sections = run_sections(config, record)
        if known == UNKNOWN_LICENCE:
            known = licence_in(Path(target) / CARD)
    sections = {"The file": exported.to_markdown(), **sections}
    write_card(card, card_text(title, known, sections))
