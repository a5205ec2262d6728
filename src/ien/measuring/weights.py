"""The weights in a file that somebody saved, whatever they come wrapped in, and loading them.

read_weights    a file -> {name: tensor}: finds the state_dict inside a training checkpoint
load_into       {name: tensor} -> a model: takes off the prefixes that wrappers put before names
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._text import nearest
from ..loss.modules import unwrapped

__all__ = ["Weights", "load_into", "read_weights"]

# where training scripts and libraries put the weights inside a checkpoint, the usual ones first;
# averages over training (EMA) are taken only where there is nothing else
PLACES = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema",
)
COMPILED = "_orig_mod."
"""What torch.compile puts into names."""
WRAPPER_PREFIXES = ("", "module.", "model.")
"""Preferred if weights fit under several: none, DistributedDataParallel's, Lightning's."""
COUNTERS = ("n_averaged", "num_batches_tracked")
"""Last parts of names that count updates during training, and are not needed afterwards."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
"""How names of files with weights usually end."""
MAX_LISTED_NAMES = 4
"""How many names a message lists of each kind of misfit."""
MAX_NESTING = 4
"""How deep inside a checkpoint weights are looked for."""


class Weights(dict[str, Tensor]):
    """Names to tensors, and where they were found.

    Args:
        tensors: The weights.
        file: The file that they were read from, for messages; "" if from none.
        place: The keys that lead to them inside the file, such as ``("state_dict",)``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], file: str = "", place: Sequence[str] = ()) -> None:
        super().__init__(tensors)
        self.file = file
        self.place = tuple(place)


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Read the weights in a .safetensors file, or in one that torch.save wrote.

    They may be a ``state_dict``, or a training checkpoint that holds one under a usual key
    (``state_dict``, ``model``, ``model_state_dict``, …) or as its only one. Code in the file is
    never executed.

    Args:
        path: The file.

    Returns:
        A dict from names, as they are in the file, to tensors on the CPU; see :func:`load_into`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no weights, or more than tensors and plain values.

    Do not use it to go on training: the optimizer's state is left out.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "checkpoint.pt")
    ...     torch.save({"epoch": 3, "state_dict": nn.Linear(2, 1).state_dict()}, path)
    ...     list(read_weights(path))
    ['weight', 'bias']
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file with weights{_files_in(path)}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with weights")
    content = _read(path)
    if not isinstance(content, Mapping):
        raise ValueError(
            f"{path} should hold a state_dict; it holds a {type(content).__name__}: "
            f"write it by torch.save(model.state_dict(), …)"
        )

    place = []
    for _ in range(MAX_NESTING):
        key = _place_in(content)
        if key is None:
            break
        place.append(key)
        content = content[key]
    tensors = {}
    for name, value in content.items():
        # a checkpoint may have numbers beside the weights, such as the epoch
        if isinstance(name, str) and isinstance(value, Tensor):
            tensors[name] = value
    if not tensors:
        keys = _listed(map(str, content))
        raise ValueError(
            f"{path} holds no weights where they are looked for; it has {keys or 'nothing at all'}: "
            f"write it by torch.save(model.state_dict(), …)"
        )
    return Weights(tensors, str(path), place)


def load_into(model: nn.Module, weights: Mapping[str, Tensor]) -> str:
    """Load weights into a model, without the prefixes that wrappers put before names.

    Looked through are ``module.`` (DistributedDataParallel, AveragedModel), ``_orig_mod.``
    (torch.compile), ``model.`` (Lightning), and any other prefix under which the names fit. If all
    parameters of the model are in one child, as in ``nn.Sequential(Normalize(…), net)``, the
    weights of that child alone are enough.

    Args:
        model: The model, changed in place; it may be compiled or wrapped itself.
        weights: Names to tensors, such as :func:`read_weights` returns.

    Returns:
        One line that says what was unwrapped; "" if nothing was.

    Raises:
        ValueError: The weights do not fit; the message names those that are missing, left over or
            of another shape. The model is as before.

    Do not use it to start a larger model from a part of its weights: all of them must be there.

    >>> net = nn.Linear(2, 1)
    >>> load_into(net, {"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)})
    "without the prefix 'module.'"
    """
    model = unwrapped(model)
    given: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        given[name.replace(COMPILED, "")] = tensor
    notes = []
    if isinstance(weights, Weights) and weights.place:
        notes.append(f"from {' / '.join(map(repr, weights.place))}")
    if any(COMPILED in name for name in weights):
        notes.append("of a compiled model")

    best: _Match | None = None
    for inner_name, inner in _holders(model):
        prefix = _best_prefix(given, _own_names(inner))
        match = _Match(inner_name, inner, prefix, given)
        if best is None or match.misfits < best.misfits:
            best = match
    assert best is not None  # the model itself is the first holder
    if best.misfits:
        source = "these weights"
        if isinstance(weights, Weights) and weights.file:
            source = f"the weights in {weights.file}"
        raise ValueError(f"{source} {best.complaint()}")

    if best.prefix:
        left_out = len(given) - len(best.taken)
        others = f" ({left_out} without it left out)" if left_out else ""
        notes.append(f"without the prefix {best.prefix!r}{others}")
    if best.holder_name:
        notes.append(f"into its part {best.holder_name!r}, which has all parameters")
    state = {}
    for name, tensor in best.taken.items():
        if name in best.own:
            state[best.own[name]] = tensor
    # misfits are excluded above; what is not in it, such as counters, stays as it is
    best.holder.load_state_dict(state, strict=False)
    return ", ".join(notes)


class _Match:
    """How well weights fit a module if a prefix is taken off their names."""

    def __init__(self, holder_name: str, holder: nn.Module, prefix: str, given: Mapping[str, Tensor]) -> None:
        self.holder_name = holder_name
        self.holder = holder
        self.prefix = prefix
        self.own = _own_names(holder)
        self.taken = {}
        for name, tensor in given.items():
            if name.startswith(prefix):
                self.taken[name.removeprefix(prefix)] = tensor
        tensors = holder.state_dict()
        self.missing, self.unexpected, self.reshaped = [], [], []
        for name, own_name in self.own.items():
            wanted = tensors[own_name]
            if name not in self.taken:
                if isinstance(wanted, Tensor) and not _is_counter(name):
                    self.missing.append(name)
            elif is_lazy(wanted):
                pass  # a lazy module takes any shape
            elif wanted.shape != self.taken[name].shape:
                shapes = f"{tuple(self.taken[name].shape)} for the model's {tuple(wanted.shape)}"
                self.reshaped.append(f"{name} {shapes}")
        for name in self.taken:
            if name not in self.own and not _is_counter(name):
                self.unexpected.append(name)

    @property
    def misfits(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.reshaped)

    def complaint(self) -> str:
        """Say what does not fit, and what to try."""
        parts = []
        if self.missing:
            parts.append(f"missing {_listed(self.missing)}")
        if self.unexpected:
            parts.append(f"unexpected {_listed(self.unexpected)}")
        if self.reshaped:
            parts.append(f"of another shape {_listed(self.reshaped)}")
        fitting = len(self.own) - len(self.missing) - len(self.reshaped)
        hint = "build the model that they were saved from"
        if self.missing and self.unexpected:
            close = nearest(self.missing[0], self.unexpected, MAX_LISTED_NAMES)
            if close.startswith("did you mean"):
                names = close.removeprefix("did you mean ").removesuffix("?").replace(", ", " or ")
                hint = f"if {self.missing[0]} is {names} in the file, rename it there or in the code"
        return (
            f"do not fit the model: they have {fitting} of its {len(self.own)} tensors; "
            f"{'; '.join(parts)}; {hint}"
        )


def _own_names(module: nn.Module) -> dict[str, str]:
    """Map names of tensors, as they are if nothing inside is compiled, to the module's own."""
    return {name.replace(COMPILED, ""): name for name in module.state_dict()}


def _holders(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the model, its only child with parameters if there is just one, and so on inward."""
    found = [("", model)]
    name, module = "", model
    while not list(module.parameters(recurse=False)):
        with_parameters = []
        for key, child in module.named_children():
            if next(child.parameters(), None) is not None:
                with_parameters.append((key, child))
        if len(with_parameters) != 1:
            break
        key, module = with_parameters[0]
        name = f"{name}.{key}".removeprefix(".")
        found.append((name, module))
    return found


def _best_prefix(given: Mapping[str, Tensor], own: Mapping[str, str]) -> str:
    """Return the prefix, ending in a dot, under which most names of the model are given.

    Raises:
        ValueError: Two fit equally well, and neither is that of a known wrapper.
    """
    hits = dict.fromkeys(WRAPPER_PREFIXES, 0)
    for name in given:
        parts = name.split(".")
        for i in range(len(parts)):
            prefix = "".join(f"{part}." for part in parts[:i])
            hits[prefix] = hits.get(prefix, 0) + (name.removeprefix(prefix) in own)
    most = max(hits.values())
    best = [prefix for prefix, count in hits.items() if count == most]
    if best[0] in WRAPPER_PREFIXES or len(best) == 1:
        return best[0]
    raise ValueError(
        f"the weights fit under {len(best)} prefixes, {_listed(best)}: "
        f"write those of one to a file of their own"
    )


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] in COUNTERS


def _read(path: Path) -> Any:
    """Read the file, in whichever of the two formats it is; a damaged one can provoke anything."""
    with open(path, "rb") as file:
        start = file.read(64)
    if not start:
        raise ValueError(f"{path} is empty: it should hold weights")
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{path} is a Git LFS pointer, not the weights themselves: get them by git lfs pull")
    # eight bytes of length, then JSON
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except Exception as error:
            raise ValueError(f"{path} cannot be read as safetensors ({_first_line(error)})") from None

    if _is_program(path):
        raise ValueError(
            f"{path} is a whole program (TorchScript or torch.export), not weights: "
            f"save model.state_dict() where it was made"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # torch goes on to recommend how to run the code in the file, which nobody should
        if "global" in str(error).lower():  # pickle's word for a class or a function
            raise ValueError(
                f"{path} holds Python objects besides tensors, such as a whole model, and was not loaded: "
                f"save model.state_dict() alone where it was made"
            ) from None
        raise ValueError(_unreadable(path)) from None
    except Exception:
        raise ValueError(_unreadable(path)) from None


def _unreadable(path: Path) -> str:
    return (
        f"{path} cannot be read as weights: it is cut short, damaged or in another format; "
        f"needed is a .safetensors file, or one that torch.save wrote"
    )


def _is_program(path: Path) -> bool:
    """Whether it is an archive that holds code."""
    try:
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError):  # damaged: torch.load will refuse it
        return False
    return any("/code/" in name or "/models/" in name for name in names)


def _place_in(content: Mapping[Any, Any]) -> str | None:
    """Return the key that holds the weights of a checkpoint; None if they are here."""
    for key in PLACES:
        if isinstance(content.get(key), Mapping):
            return key
    if any(isinstance(value, Tensor) for value in content.values()):
        return None
    holders = []
    for key, value in content.items():
        if isinstance(value, Mapping) and any(isinstance(part, Tensor) for part in value.values()):
            holders.append(key)
    if len(holders) == 1:
        return str(holders[0])
    return None


def _listed(names: Iterable[str]) -> str:
    """List names, the first few of them."""
    names = list(names)
    text = ", ".join(names[:MAX_LISTED_NAMES])
    if len(names) > MAX_LISTED_NAMES:
        text += f" and {len(names) - MAX_LISTED_NAMES} more"
    return text


def _files_in(folder: Path) -> str:
    """Name files with weights in a folder, for the end of a message."""
    found = [path.name for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    if not found:
        return ""
    return f": name one in it, such as {_listed(found)}"


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
