"""Builds the model that ``path/to/code.py:build`` names, with the weights of a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._text import type_name
from ..loss.modules import WRAPPERS, unwrapped
from .errors import no_model

__all__ = ["Built", "build_model", "build_with_weights", "given_model", "uncompiled"]

SEED = 0
"""Of weights that the code draws: measured again, a model gives the same numbers."""


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
        raise no_model(target)

    if place.endswith(".py"):
        module = _run_file(Path(place).expanduser())
    else:
        module = _import_module(place)
    if not hasattr(module, name):
        raise ValueError(f"{place} has no {name!r}; it has {_functions_in(module)}")

    found = getattr(module, name)
    if isinstance(found, nn.Module):
        return found
    needed = _needed(found, options)
    if needed:
        raise ValueError(
            f"{target} cannot be called without {', '.join(needed)}: name a function that makes the model "
            f"without arguments"
        )
    # SystemExit too: a script may end itself when it is imported or called
    try:
        model = found(**_taken(found, options))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{target} raised {_describe(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} should return a torch.nn.Module; it returned {type_name(model)}")
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


class Built(NamedTuple):
    """A model from code, and what there is to say about its weights."""

    model: nn.Module
    notes: tuple[str, ...]
    """Lines: that it was compiled, what weights were unwrapped from, that they are random."""
    random: bool


def build_with_weights(target: str, weights: Path | None) -> Built:
    """Build a model and load weights into it.

    Without a file, the weights are those that the code makes, from the same seed every time. Code
    may as well load trained ones: only tensors that another seed would change count as random.

    Args:
        target: As :func:`build_model` has it.
        weights: A .safetensors file, or a state_dict or checkpoint that torch.save wrote.

    Raises:
        ValueError: There is no such model, or the weights do not fit it.
    """
    from ..measuring.weights import load_into, read_weights

    if weights is not None:
        tensors = read_weights(weights)  # names a missing file before the code runs
        model, notes = uncompiled(build_model(target), target)
        taken_off = load_into(model, tensors)
        if taken_off:
            notes.append(f"{weights}: weights {taken_off}")
        return Built(model, tuple(notes), random=False)

    torch.manual_seed(SEED)
    model, notes = uncompiled(build_model(target), target)
    random = _random_tensors(model, target)
    if random:
        total = len(model.state_dict())
        count = "" if random == total else f"{random} of {total} "
        notes.append(f"no --weights: {count}weights of {target} are random (seed {SEED}), not trained")
    return Built(model, tuple(notes), random > 0)


def uncompiled(model: nn.Module, target: str) -> tuple[nn.Module, list[str]]:
    """Return a model as it was before torch.compile, and a line that says so if it was compiled.

    Layers inside a compiled module run without hooks, so nothing could be seen of them.

    Args:
        model: The model, changed in place.
        target: What the line calls it.
    """
    outer = unwrapped(model)
    compiled = outer is not model and not isinstance(model, WRAPPERS)
    for module in list(outer.modules()):
        if module._compiled_call_impl is not None:  # by module.compile()
            module._compiled_call_impl = None
            compiled = True
        for name, child in module.named_children():
            if hasattr(child, "_orig_mod"):  # by torch.compile(child)
                setattr(module, name, unwrapped(child))
                compiled = True
    if not compiled:
        return outer, []
    return outer, [f"{target} returns a compiled model: it is looked at as it was before torch.compile"]


def _random_tensors(model: nn.Module, target: str) -> int:
    """Count the tensors of a model that come out different if it is built from another seed."""
    torch.manual_seed(SEED + 1)
    try:
        with redirect_stdout(io.StringIO()):  # what it prints was printed once
            other = uncompiled(build_model(target), target)[0].state_dict()
    except ValueError:  # it can be built only once: nothing speaks for trained weights
        return len(model.state_dict())
    count = 0
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and not _equal(tensor, other.get(name)):
            count += 1
    return count


def _equal(tensor: Tensor, other: Tensor | None) -> bool:
    if is_lazy(tensor) or other is None:
        return False  # a lazy module draws its weights when it runs
    return torch.equal(tensor, other)


def _taken(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that a function has parameters for."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # not a function, or one that does not say
        return {}
    return {name: value for name, value in options.items() if name in parameters}


def _needed(function: Any, options: dict[str, Any]) -> list[str]:
    """Return the parameters of a function that have no default and are not among the options."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not a function, or one that does not say
        return []
    names = []
    for parameter in parameters:
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and parameter.name not in options:
            names.append(parameter.name)
    return names


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


def _describe(error: BaseException) -> str:
    """Name the error and the line of code that raised it."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = []
    for frame in traceback.extract_tb(error.__traceback__):
        # not of the import system, nor of this file: nobody could mend those
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__):
            frames.append(frame)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} (line {last.lineno} of {Path(last.filename).name})"
