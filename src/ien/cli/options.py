"""Arguments and options that several commands share, and how their text is read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import complete_presets
from .errors import no_model

__all__ = [
    "AsJson",
    "GroupName",
    "Layers",
    "MovedData",
    "Number",
    "OnlyPreset",
    "OwnModel",
    "Preset",
    "Quiet",
    "Runs",
    "Settings",
    "Size",
    "Target",
    "Weights",
    "folder_of",
    "group_option",
    "is_run",
    "layer_names",
    "own_model",
    "print_json",
    "read_size",
    "run_folder_of",
    "run_folders_of",
]

# a typing error such as 2240224 would ask for more memory than there is
MAX_SIDE = 8192
"""The largest height or width that a size may ask for, in pixels."""


def folder_of(path: Path | None) -> Path | None:
    """Return a folder as it is; for a file, the folder that it is in, and say so."""
    if path is None or not path.is_file():
        return path
    typer.echo(f"{path} is a file: using the folder {path.parent}", err=True)
    return path.parent


def run_folder_of(path: Path | None) -> Path | None:
    """Return a path as it is; for a file of a run, such as ``result.json``, the run folder.

    Other files are left alone: ``net.py`` is code, and an error says what to write for it.
    """
    if path is None or not (path.parent / "config.json").is_file():
        return path
    return folder_of(path)


def run_folders_of(paths: list[Path] | None) -> list[Path] | None:
    """Return the run folder of each path; see :func:`run_folder_of`."""
    if paths is None:
        return None
    folders = []
    for path in paths:
        folder = run_folder_of(path)
        assert folder is not None
        folders.append(folder)
    return folders


def _run_or_code(target: str) -> str:
    """Return the run folder if a file in one was given."""
    return str(run_folder_of(Path(target)))


def group_option(unless_given: str) -> Any:
    """Return the option ``--group``, saying which group it is unless one is given."""
    return typer.Option(
        "--group",
        metavar="GROUP",
        help="The group, such as rot4 (C4), rot8, rot4xflip (D4) or scale0.7,0.84.",
        show_default=unless_given,
    )


@contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _be_quiet(context: typer.Context, asked: bool) -> bool:
    if asked:
        context.with_resource(_silence())  # until the command ends; errors are printed after that
    return asked


Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", callback=_be_quiet, is_eager=True, help="Print nothing but errors."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for other programs; messages go to standard error.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CODE",
        callback=_run_or_code,
        help="A run folder, or a function that makes a model: path/to/code.py:build.",
    ),
]
Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", callback=run_folders_of, help="Run folders of finished runs."),
]
MovedData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where the run's data are now, if you moved them.",
        show_default="where they were when the run began",
    ),
]
GroupName = Annotated[str | None, group_option("the run's")]
Layers = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="A,B",
        help="Layers, by their dotted names.",
        show_default="the run's, or the model's direct children",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="CxHxW",
        help="Image size: 1x28x28, 3x224x224, or 224, short for 3x224x224. Images are scaled to it; "
        "for a square, the largest square in their middle.",
    ),
]
Number = Annotated[int, typer.Option("--number", min=2, metavar="N", help="Use at most N images.")]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights", metavar="FILE", help="Weights for CODE: .safetensors, a state_dict or a checkpoint."
    ),
]
OwnModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="CODE", help="For a run of ien train with a model of your own: net.py:build again."
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        autocompletion=complete_presets,
        help="Size: paper (for a GPU), medium (trackers: 20 minutes on two cores), small (minutes), demo, or "
        "smoke (seconds).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a setting, as in --set beta=0.3; repeat for more. ien show lists them all.",
    ),
]
OnlyPreset = Annotated[
    str | None,
    typer.Option("--preset", autocompletion=complete_presets, help="Only rows of this preset."),
]


def is_run(target: str, weights: Path | None) -> bool:
    """Whether a target is a run folder; if not, it names a function that makes a model.

    Args:
        target: What the user gave.
        weights: A file of weights that was given with it, if any.

    Raises:
        ValueError: It is neither, or it is a run and there is a file of weights too.
    """
    if Path(target).is_dir():
        if weights is not None:
            raise ValueError(f"--weights is for a model from code; {target} is a run and has its own")
        return True
    if ":" not in target:
        raise no_model(target)
    return False


@contextmanager
def own_model(target: str | None, runs: Sequence[Path]) -> Iterator[None]:
    """Let runs of a model of the user's own be loaded, if ``--model`` says where its code is."""
    with ExitStack() as stack:
        if target is not None:
            from .model_file import given_model

            for run in runs:
                stack.enter_context(given_model(target, run))
        yield


def layer_names(text: str | None) -> list[str] | None:
    """Split ``--layers A,B``; None if it names no layer.

    >>> layer_names("conv1, conv2"), layer_names(None)
    (['conv1', 'conv2'], None)
    """
    from .._text import MODEL_ITSELF

    names = []
    for part in (text or "").split(","):
        name = part.strip()
        if name:
            names.append(name.replace(MODEL_ITSELF, ""))  # torch calls the model itself ""
    return names or None


def read_size(text: str | None) -> tuple[int, int, int] | None:
    """Read ``--size``: channels, height and width, or one number for three channels and a square.

    >>> read_size("1x28x32"), read_size("224")
    ((1, 28, 32), (3, 224, 224))
    """
    if text is None:
        return None
    parts = re.split("[x×]", text.strip().lower())  # our own tables print ×
    numbers = [int(part) for part in parts if re.fullmatch("[0-9]+", part)]
    if len(parts) not in (1, 3) or len(numbers) < len(parts) or 0 in numbers:
        raise ValueError(f"write a size as 3x224x224 (channels, height, width) or 224; got {text!r}")
    if max(numbers) > MAX_SIDE:
        raise ValueError(f"a size can have at most {MAX_SIDE} pixels a side; got {text!r}")
    if len(numbers) == 1:
        return 3, numbers[0], numbers[0]
    channels, height, width = numbers
    return channels, height, width


def print_json(content: Any) -> None:
    """Print what JSON can hold, with null for NaN and infinity."""
    from .._text import without_nan

    typer.echo(json.dumps(without_nan(content), indent=1, allow_nan=False, ensure_ascii=False))
