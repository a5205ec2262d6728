"""A module → torch.export's program, for any number of images; what does not export is named."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from .._text import MODEL_ITSELF
from ..loss.modules import hooked

__all__ = ["DIMS", "does_not_export", "exported_program", "quiet_torch"]

MAX_REASON_LENGTH = 200
"""Characters of torch's own message that are repeated in ours."""
DIMS = {0: "batch", 2: "height", 3: "width"}
"""What the dims of images (B, C, H, W) that may change are called."""
FIXED_DIM = re.compile(r"Constraints violated \(L\['\w+'\]\.size\(\)\[(\d)\]")
"""How torch says that a module works for one value of a dim only."""


def exported_program(model: nn.Module, x: Tensor, any_size: bool) -> torch.export.ExportedProgram:
    """Export a module in eval mode, for any number of images.

    Args:
        model: The module, on the CPU.
        x: Two images (2, C, H, W): of a single one torch would fix the number.
        any_size: Whether height and width may change too.

    Raises:
        ValueError: An operation does not export; the message names its layer.
    """
    dynamic: dict[int, Any] = {0: torch.export.Dim.DYNAMIC}
    if any_size:
        dynamic |= {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    try:
        with quiet_torch(), torch.no_grad():
            return torch.export.export(model, (x,), dynamic_shapes=(dynamic,))
    except Exception as error:  # torch raises errors of many kinds here, and so does the model
        fixed = FIXED_DIM.search(str(error))
        if fixed is not None and int(fixed[1]) in DIMS:
            raise _fixes_a_dim(model, x, int(fixed[1])) from error
        raise does_not_export(model, error) from error


def _fixes_a_dim(model: nn.Module, x: Tensor, dim: int) -> ValueError:
    """Return an error that says which layer works for one number, or size, of images only."""
    sizes = list(x.shape)
    sizes[dim] += 1
    layer = _fails_on(model, x.new_zeros(sizes))
    works_for = f"batches of {x.shape[dim]} images"
    remedy = "compute sizes from those of its input, as in x.reshape(len(x), -1)"
    if dim != 0:
        works_for = f"images of {DIMS[dim]} {x.shape[dim]}"
        remedy = "leave any_size out, or pool to one size before it"
    return ValueError(
        f"layer {layer or MODEL_ITSELF!r} ({_class_of(model, layer)}) only works for {works_for}, "
        f"and the file should take any: {remedy}"
    )


def _fails_on(model: nn.Module, x: Tensor) -> str:
    """Return the layer that raises an error, or returns something for other than all images."""
    found = []

    def leave(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(output, Tensor) and len(output) != len(x):
            found.append(name)

    modules = dict(model.named_modules())
    try:
        with torch.no_grad(), hooked(modules, after=leave):
            model(x)
    except Exception as error:  # whatever the layer raises
        found.append(_layer_of(model, error.__traceback__))
    return found[0] if found else ""


def does_not_export(model: nn.Module, error: BaseException) -> ValueError:
    """Return an error that says in one line which layer of a model does not export, and why."""
    while error.__cause__ is not None:  # the innermost one names the operation
        error = error.__cause__
    layer = _layer_of(model, error.__traceback__)
    lines = re.sub(r"\x1b\[\d+m", "", str(error)).strip().splitlines()  # without colours
    reason = type(error).__name__
    if lines:
        reason = f"{reason}: {lines[0]}"
    return ValueError(
        f"layer {layer or MODEL_ITSELF!r} ({_class_of(model, layer)}) does not export "
        f"({reason[:MAX_REASON_LENGTH]}): write it without branches on values of tensors and with operations "
        f"that the format has, or export only the layers before it"
    )


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep back what torch and onnxruntime say about themselves while they export."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # packages that are not needed
    try:
        # torch prints graphs of failed exports, and warns of names that it is going to change
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _layer_of(model: nn.Module, trace: TracebackType | None) -> str:
    """Return the innermost layer that ran when an error was raised; "" for the model itself."""
    names = {id(module): name for name, module in model.named_modules()}
    layer = ""
    while trace is not None:
        inside = trace.tb_frame.f_locals
        running = inside.get("self")
        if isinstance(running, nn.Module) and id(running) in names:
            layer = names[id(running)]
        # while a program becomes ONNX no layer runs, but each operation knows where it was
        node = inside.get("node")
        if isinstance(node, torch.fx.Node) and node.meta.get("nn_module_stack"):
            *_, (path, _) = node.meta["nn_module_stack"].values()
            layer = str(path)
        trace = trace.tb_next
    return layer


def _class_of(model: nn.Module, layer: str) -> str:
    try:
        return type(model.get_submodule(layer)).__name__
    except AttributeError:  # torch writes layers of lists in its own way
        return "a layer"
