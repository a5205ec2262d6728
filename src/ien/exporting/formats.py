"""What a suffix means: .onnx, .pt2 or .safetensors, and which packages it needs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from .._text import to_install

__all__ = ["FORMATS", "ONNX", "PROGRAM", "WEIGHTS", "Format", "check_packages", "check_place", "format_of"]

EXTRA = ("onnx", "onnxscript", "onnxruntime")
"""What the extra ``export`` installs."""


class Format(NamedTuple):
    """A kind of file."""

    name: str
    packages: tuple[str, ...]
    """What it takes to write and to run it, besides torch and safetensors."""


ONNX = Format("ONNX", EXTRA)
PROGRAM = Format("torch.export", ())
WEIGHTS = Format("safetensors", ())
FORMATS = {".onnx": ONNX, ".pt2": PROGRAM, ".safetensors": WEIGHTS}
"""Suffix → the format."""


def format_of(path: Path) -> Format:
    """Return the format that the name of a file asks for.

    Raises:
        ValueError: Its suffix is none of ours.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(
            f"the name of an export ends in {', '.join(FORMATS)}; got {str(path)!r}: "
            f"name it {path.stem or 'net'}.onnx to run it elsewhere"
        )
    return FORMATS[suffix]


def check_place(path: Path) -> None:
    """Raise an OSError if a file cannot be made there, before anything is computed.

    Folders that are missing are made only when the file is checked and complete.
    """
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder: name a file in it, such as {path / f'net{path.suffix}'}"
        )
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: you may not write into {folder}")


def check_packages(wanted: Format) -> None:
    """Raise an error if a package of the format is missing, before anything is computed."""
    missing = []
    for package in wanted.packages:
        if importlib.util.find_spec(package) is None:
            missing.append(package)
    if missing:
        command = to_install("export", *wanted.packages)
        raise ModuleNotFoundError(f"{wanted.name} needs {', '.join(missing)}: {command}")
