"""A program, or the weights of a module → a file, with a header that says what is in it.

The header is JSON under the key ``ien``: in the metadata of an ONNX or a .safetensors file, and in
an extra file ``ien.json`` inside a .pt2.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import ConstantArgument

from .program import DIMS, does_not_export, quiet_torch

__all__ = ["HEADER", "HEADER_FILE", "read_header", "write_onnx", "write_program", "write_weights"]

HEADER = "ien"
HEADER_FILE = "ien.json"


def write_onnx(
    program: torch.export.ExportedProgram,
    model: nn.Module,
    path: Path,
    header: Mapping[str, Any],
    opset: int | None,
    any_size: bool,
) -> int:
    """Write a program as ONNX.

    Args:
        program: The program.
        model: The module that it was made of, to name layers in errors.
        path: The file.
        header: What the file says about itself.
        opset: The version of ONNX's operators; None for torch's own choice.
        any_size: Whether height and width may change.

    Returns:
        The opset of the file.
    """
    _check_returns(program)
    named = {0: DIMS[0]}
    if any_size:
        named = DIMS
    try:
        with quiet_torch():
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                dynamic_shapes=({dim: torch.export.Dim(name) for dim, name in named.items()},),
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:  # torch raises errors of many kinds here
        raise does_not_export(model, error) from error
    assert converted is not None  # dynamo=True returns a program
    converted.model.metadata_props[HEADER] = json.dumps(header)
    with _one_line_if_full(path):
        converted.save(str(path))
    return int(converted.model.opset_imports[""])


def _check_returns(program: torch.export.ExportedProgram) -> None:
    """Raise a ValueError if a program returns numbers or words that an ONNX file cannot."""
    for output in program.graph_signature.output_specs:
        if isinstance(output.arg, ConstantArgument) and output.arg.value is not None:
            raise ValueError(
                f"the model returns {output.arg.value!r} beside tensors, and an ONNX file returns tensors "
                f"alone: wrap it in a module that leaves this out, or name the file .pt2"
            )


def write_program(program: torch.export.ExportedProgram, path: Path, header: Mapping[str, Any]) -> None:
    """Write a program as torch.export saves it."""
    # by way of memory: on a full disk, torch's own writer would end the process
    written = io.BytesIO()
    with quiet_torch():
        torch.export.save(program, written, extra_files={HEADER_FILE: json.dumps(header)})
    with _one_line_if_full(path):
        path.write_bytes(written.getbuffer())


def write_weights(model: nn.Module, path: Path, header: Mapping[str, Any]) -> None:
    """Write the weights of a module as .safetensors."""
    from safetensors.torch import save_file

    # copies: safetensors refuses layers that share a tensor, and layouts such as channels_last
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = tensor.detach().contiguous().clone()
    with _one_line_if_full(path):
        save_file(tensors, path, {HEADER: json.dumps(header)})


@contextmanager
def _one_line_if_full(path: Path) -> Iterator[None]:
    """Turn whatever a writer raises about a full disk into an OSError of one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch reports a full disk as the second
        reason = str(error).splitlines()[0]
        raise OSError(
            f"{path} could not be written ({reason}): files are made and checked there before they are "
            f"put in place; make space, or choose another folder by the variable TMPDIR"
        ) from error


def read_header(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the header in the metadata of a file; an empty one if :func:`ien.export` wrote none.

    >>> read_header({"ien": '{"size": [3, 64, 64]}'}), read_header({"ien": "?"}), read_header(None)
    ({'size': [3, 64, 64]}, {}, {})
    """
    try:
        header = json.loads((metadata or {}).get(HEADER, "{}"))
    except ValueError:
        return {}
    if not isinstance(header, dict):
        return {}
    return header
