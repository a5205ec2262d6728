"""Builds the model that ``path/to/code.py:build`` names, and loads weights into it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["build_model", "given_model", "load_weights_into"]

MAX_REASON = 300
"""Characters of torch's own message that ours quotes."""


def build_model(target: str, **options: Any) -> nn.Module:
    """Return the model that ``path/to/code.py:build`` or ``package.module:build`` names.

    The name may be that of a model, or of a function or class that makes one without arguments, or
    with some of ``options``. The code runs, as by ``import``: do not use it on code that you do not
    trust.

    Args:
        target: A code file or a module, a colon, and the name in it.
        **options: What the function is called with, as far as it has parameters of these names.

    Raises:
        ValueError: The text names no model, or the code raised an error; the message says where.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(
            f"a model is a run folder, or a function in a code file: code.py:build; got {target!r}"
        )

    if place.endswith(".py"):
        module = _run_file(Path(place).expanduser())
    else:
        module = _import_module(place)
    if not hasattr(module, name):
        raise ValueError(f"{place} has no {name!r}; it has {_functions_in(module)}")

    found = getattr(module, name)
    if isinstance(found, nn.Module):
        return found
    # SystemExit too: a script may end itself when it is imported or called
    try:
        model = found(**_taken(found, options))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{target} raised {_describe(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} should return a torch.nn.Module; it returned a {type(model).__name__}")
    return model


@contextmanager
def given_model(target: str, run: Path | None = None) -> Iterator[dict[str, str]]:
    """Let a run build the model that ``path/to/code.py:build`` names, while the block runs.

    Args:
        target: As :func:`build_model` takes it.
        run: A run folder that was begun with the same code, whose file must not have changed since.

    Yields:
        What a configuration says of the model: the fields ``model``, ``code`` and ``code_sha256``.
    """
    from ..training.own_model import OWN, check_code, code_of, given
    from ..training.run_folder import read_config

    code, sha256 = code_of(target)
    if run is not None:
        network: Any = read_config(run).network
        if network.model != OWN:
            raise ValueError(f"{run} trains {network.model}, a network of ien: leave --model out")
        check_code(network, sha256, run)
        code = network.code  # the file may have been moved
    with given(code, partial(build_model, target)):
        yield {"model": OWN, "code": code, "code_sha256": sha256}


def load_weights_into(model: nn.Module, path: Path) -> None:
    """Load a ``state_dict`` from a .safetensors file or from a file that torch.save wrote.

    Code in the file is never executed. Checkpoints that hold the ``state_dict`` under the key
    ``state_dict`` or ``model`` work too.

    Args:
        model: The model, changed in place.
        path: The file.

    Raises:
        ValueError: The file cannot be read, or its weights do not fit the model.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with weights")
    state = _read_weights(path)
    for key in ("state_dict", "model"):  # where training scripts commonly put them
        if isinstance(state.get(key), dict):
            state = state[key]
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        # torch lists every tensor, one a line: the headline and the first of them are enough
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2])[:MAX_REASON]
        raise ValueError(f"{path} does not fit the model ({reason})") from None


def _taken(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that a function has parameters for."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # not a function, or one that does not say
        return {}
    return {name: value for name, value in options.items() if name in parameters}


def _run_file(path: Path) -> ModuleType:
    """Run a code file as a module; it may import the files beside it, as a script may."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no code file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it is a .py file
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # some models look themselves up there

    # only while it runs, so that its imports do not hide ours later
    folder = str(path.parent.absolute())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} raised {_describe(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} cannot be imported: {_describe(error)}") from error


def _functions_in(module: ModuleType) -> str:
    names = []
    for name, value in vars(module).items():
        if callable(value) and not name.startswith("_"):
            names.append(name)
    return ", ".join(names) or "no functions"


def _read_weights(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can provoke anything
        first_line, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(f"{path} cannot be read as weights ({first_line})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} should hold a state_dict; it holds a {type(state).__name__}")
    return state


def _describe(error: BaseException) -> str:
    """Name the error and the line of code that raised it."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} (line {last.lineno} of {Path(last.filename).name})"
