"""One .safetensors file in place of a run folder: its header holds the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..adapting.canonicalize import KEY
from ..exporting.write import read_header
from . import run_folder
from .config import Config
from .task import config_from_json

__all__ = ["Single", "about_run", "config_in", "read_single"]

RUN = "run"
"""Where a header says what trained the weights."""


class Single(NamedTuple):
    """What is in a file."""

    weights: dict[str, Tensor]
    config: Config | None
    """Of the run that trained the weights; None if the file does not say."""
    measured_by: dict[str, Any]
    """Layers of a network of the user's own → their feature groups."""


def about_run(folder: Path) -> dict[str, Any]:
    """Return what the header of an export says about the run in a folder."""
    config = run_folder.read_config(folder)
    record = run_folder.read_result(folder) or {}
    run: dict[str, Any] = {"format": run_folder.FORMAT, "config": config.to_json()}
    if "measured_by" in record:
        run["measured_by"] = record["measured_by"]
    names = record.get("data", {}).get("class_names")
    if names:
        run["class_names"] = names
    return {RUN: run}


def config_in(header: dict[str, Any], path: Path) -> Config | None:
    """Return the configuration in the header of an export; None if it has none.

    Args:
        header: What the file says about itself.
        path: The file, for messages.

    Raises:
        ValueError: Something is there, and is not a configuration.
    """
    run = header.get(RUN)
    if run is None:
        return None
    try:
        if run["format"] != run_folder.FORMAT:
            raise ValueError(f"format {run['format']!r}, and this version of ien reads {run_folder.FORMAT}")
        return config_from_json(run["config"])
    except run_folder.DAMAGE as error:
        reason = run_folder.reason_of(error)
        raise ValueError(
            f"the header of {path} has no configuration that can be read ({reason}): export it again"
        ) from None


def read_single(path: Path) -> Single:
    """Read a .safetensors file; nothing in it is executed.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is something else, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    if path.suffix.lower() != ".safetensors":
        remedy = {
            ".onnx": f'ien.exporting.OnnxModel("{path}") runs it',
            ".pt2": f'torch.export.load("{path}").module() runs it',
        }.get(path.suffix.lower(), "weights alone go into a model of yours with load_state_dict")
        raise ValueError(f"ien.load reads a run folder or a .safetensors file; got {path}: {remedy}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            weights = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): export it again") from None
    if KEY in (metadata or {}):
        raise ValueError(
            f"{path} holds what ien.Canonicalize learnt about orientations, and no model: read it with "
            f'ien.Canonicalize.load(model, "{path}")'
        )
    header = read_header(metadata)
    run = header.get(RUN) or {}
    measured_by = run.get("measured_by", {}) if isinstance(run, dict) else {}
    return Single(weights, config_in(header, path), measured_by)
