"""The checkpoint, last.pt: everything that it takes to go on, and the checks before anyone does.

A file may be damaged, edited, or come from someone else. So nothing in it is executed, it is read
only if it is no larger than it looks, and every number in it must be one that this run could have
come to. The optimizer's moments matter most: its fused kernels trust their shapes, and would write
past the end of a tensor that is too small.
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._files import check_regular, digest, replace_file
from . import run_folder
from .config import Config
from .memory import is_out_of_memory
from .task import Task

__all__ = ["Progress", "load_checkpoint", "restore", "save", "save_checkpoint"]

FIELDS = {"model", "optimizer", "epoch", "step", "sums", "config", "seconds"}
"""What a file must have to be taken for one of ours."""
MOMENTS = {
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}
"""What an optimizer keeps of a parameter that has had a gradient."""
LATER_FIELDS = {
    "data": ("turn", "colour", "pretrain_epochs", "pretrain_clips"),
    "network": ("features", "templates"),
    "objective": ("target", "slack", "interpolation", "corners"),
}
"""Section → fields that checkpoints may be older than: at their default they do not count."""
REMEDY = "delete it to train from the start, or restore it"


class Progress(NamedTuple):
    """How far a run is."""

    epoch: int
    """Epochs done."""
    step: int
    """Steps done of the next one."""
    sums: Tensor | None
    """Its sums so far, as ``take_step`` returns them."""
    seconds: float
    """The time that all of it took."""


class _Unfit(ValueError):
    """A checkpoint holds what this run could not have saved; says what."""


def save(folder: Path, task: Task, progress: Progress) -> None:
    """Write everything that it takes to go on."""
    state = {
        **progress._asdict(),
        "config": _config_digests(folder, task.config)[0],
        "model": task.network.state_dict(),
        "optimizer": task.optimizer.state_dict(),
        "multipliers": _multipliers(task),
        "slack": _slack(task),
    }
    save_checkpoint(folder, state)


def restore(folder: Path, task: Task) -> Progress:
    """Load the checkpoint into the task, if there is one, and say how far the run is.

    Raises:
        ValueError: It is damaged, or of another run; nothing in the folder is changed.
    """
    # only the first process looks into the folder
    state, wanted = task.processes.from_first(
        lambda: (load_checkpoint(folder), _config_digests(folder, task.config))
    )
    progress = Progress(0, 0, None, 0.0)
    if state is not None:
        path = folder / "last.pt"
        if state["config"] not in wanted:
            raise ValueError(
                f"{path} belongs to another run: restore the right one, or delete it to train from the start"
            )
        try:
            progress = _read_progress(task, state)
            _load_network(task, state)
            if task.objective is not None:
                # checkpoints of runs without targets may be older than multipliers
                found, new = state.get("multipliers", {}), task.objective.state_dict()
                task.objective.load_state_dict(found)
                _check_like("multipliers", found, new)
            if task.tied is not None:
                found, new = state.get("slack", {}), task.tied.state_dict()
                task.tied.load_state_dict(found)
                # which sums there are depends on the step: load_state_dict has checked them
                if new:
                    new |= {"sums": ..., "window": ...}
                _check_like("slack", found, new)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
            raise ValueError(f"{path} does not fit this run ({reason}): {REMEDY}") from None
    # lines after the checkpoint are of epochs that come again
    if task.processes.first:
        run_folder.cut_metrics(folder, progress.epoch)
    return progress


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a state to last.pt."""
    replace_file(folder / "last.pt", lambda temporary: torch.save(state, temporary))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read what :func:`save_checkpoint` wrote; None before the first one.

    Code in the file is refused: a checkpoint may come from someone else.
    """
    path = folder / "last.pt"
    if not path.exists():
        return None
    check_regular(path)
    try:
        _check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds something other than tensors and numbers, and was not loaded: {REMEDY}"
        ) from None
    except OSError:
        raise  # it may be whole, but cannot be read: by this user, or from this drive
    except Exception as error:  # a damaged file can provoke anything
        if is_out_of_memory(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is truncated or damaged ({reason}): {REMEDY}") from None
    if not isinstance(state, dict) or not FIELDS <= set(state):
        raise ValueError(f"{path} is not a checkpoint of ien: {REMEDY}")
    return state


def _check_archive(path: Path) -> None:
    """Refuse an archive that is larger inside than outside, or has a wrong checksum."""
    with zipfile.ZipFile(path) as archive:
        total = 0
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{member.filename} is compressed")  # torch never does
            total += member.file_size
        if total > path.stat().st_size:
            raise zipfile.BadZipFile("its parts are larger than the whole")
        # torch reads a file with a wrong bit without a word: the checksums of the archive tell
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def _read_progress(task: Task, state: Mapping[str, Any]) -> Progress:
    """Read how far a run is, which must be a place in this run."""
    epochs = task.config.schedule.epochs
    epoch, step, sums, seconds = (state[name] for name in Progress._fields)
    _check_whole("epoch", epoch, epochs)
    last = task.steps - 1
    if epoch == epochs:
        last = 0
    _check_whole("step", step, last)
    if type(seconds) is not float or not 0 <= seconds < math.inf:
        raise _Unfit(f"seconds must be a time; got {_described(seconds)}")
    if step == 0:
        if sums is not None:
            raise _Unfit("there are sums, but no step of the epoch is done")
        return Progress(epoch, step, None, seconds)
    # the losses, the originals that are right, and the number of items
    _check_like("sums", sums, torch.zeros(len(task.losses) + 2, dtype=torch.float64))
    if not 0 < sums[-1] <= task.items:
        raise _Unfit(f"the sums are those of {sums[-1]:g} of the {task.items} items in an epoch")
    return Progress(epoch, step, sums.clone(), seconds)


def _check_whole(name: str, found: Any, highest: int) -> None:
    if type(found) is not int or not 0 <= found <= highest:  # bool is an int, but not here
        raise _Unfit(f"{name} must be a whole number from 0 to {highest}; got {_described(found)}")


def _load_network(task: Task, state: Mapping[str, Any]) -> None:
    """Load the weights and the moments of the optimizer, if all are built as in this run."""
    optimizer = task.optimizer
    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    _check_like("model", state["model"], task.network.state_dict())
    _check_like("optimizer", state["optimizer"], {"state": ..., "param_groups": ...})
    # lr, betas …: keys and types are checked, and the values are those of the configuration
    groups = optimizer.state_dict()["param_groups"]
    _check_like("optimizer.param_groups", state["optimizer"]["param_groups"], groups)
    taken = state["epoch"] * task.steps + state["step"]
    moments = _read_moments(optimizer, parameters, state["optimizer"]["state"], taken)
    # whatever has no moments never had a gradient, so it must be as it began
    begun = {}
    for index, parameter in enumerate(parameters):
        if index not in moments:
            begun[index] = parameter.detach().clone()
    task.network.load_state_dict(state["model"])
    for index, first in begun.items():
        if not torch.equal(first, parameters[index]):
            raise _Unfit(f"the optimizer's state of parameter {index}, which has been trained, is missing")
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _read_moments(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], found: Any, taken: int
) -> dict[int, dict[str, Tensor]]:
    """Read what the optimizer keeps of each parameter: tensors built like it, and a count."""
    if not isinstance(found, Mapping):
        raise _Unfit(f"optimizer.state must be a dictionary; got {_described(found)}")
    wanted: dict[str, Any] = dict.fromkeys(MOMENTS[type(optimizer)], ...)
    moments: dict[int, dict[str, Tensor]] = {}
    for index, kept in found.items():
        _check_whole("a key of optimizer.state", index, len(parameters) - 1)
        _check_like(f"optimizer.state.{index}", kept, wanted)
        moments[index] = {}
        for name, value in kept.items():
            called = f"optimizer.state.{index}.{name}"
            if name == "step":
                _check_like(called, value, torch.zeros((), dtype=torch.float32))
                if not 1 <= value <= taken:
                    raise _Unfit(f"{called} must be 1 to {taken}; got {value:g}")
                moments[index][name] = value
                continue
            parameter = parameters[index].detach()
            _check_like(called, value, parameter)
            # a copy in the parameter's memory layout: fused kernels go by the order in memory, and
            # a tensor with strides of 0 has less memory than its shape says
            moments[index][name] = torch.empty_like(parameter, device="cpu").copy_(value)
    return moments


def _check_like(name: str, found: Any, wanted: Any) -> None:
    """Raise unless ``found`` is built like ``wanted``: keys, lengths, types, shapes; and is finite.

    An ellipsis in ``wanted`` stands for anything.
    """
    if wanted is ...:
        return
    if isinstance(wanted, Tensor):
        fits = isinstance(found, Tensor) and _is_plain(found)
        if not fits or found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise _Unfit(f"{name} must be {_described(wanted)}; got {_described(found)}")
        if not found.isfinite().all():
            raise _Unfit(f"{name} is not finite")
    elif isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            raise _Unfit(f"{name} must be a dictionary; got {_described(found)}")
        odd = sorted(map(str, found.keys() ^ wanted.keys()))
        if odd:
            raise _Unfit(f"{name} has other keys than it should: {', '.join(odd[:3])}")
        for key, value in wanted.items():
            _check_like(f"{name}.{key}", found[key], value)
    elif isinstance(wanted, list | tuple):
        if type(found) is not type(wanted) or len(found) != len(wanted):
            raise _Unfit(f"{name} must be {len(wanted)} values; got {_described(found)}")
        for index, value in enumerate(wanted):
            _check_like(f"{name}.{index}", found[index], value)
    elif type(wanted) in (int, float):
        # 1 is as good as 1.0; NaN, infinity and numbers with 400 digits are not
        if type(found) not in (int, float) or not abs(found) < 1e300:
            raise _Unfit(f"{name} must be a number; got {_described(found)}")
    elif type(found) is not type(wanted):
        raise _Unfit(f"{name} must be {_described(wanted)}; got {_described(found)}")


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds one number after the other; others may be in a file too."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a tensor {tuple(value.shape)} of {kind}"
    if isinstance(value, int | float | bool | None):
        return repr(value)[:40]
    return f"a {type(value).__name__}"


def _multipliers(task: Task) -> dict[str, Any]:
    """Return those of the equivariance loss for a checkpoint; empty without targets."""
    if task.objective is None:
        return {}
    return task.objective.state_dict()


def _slack(task: Task) -> dict[str, Any]:
    """Return what a network with slack has heard, for a checkpoint; empty for any other."""
    if task.tied is None:
        return {}
    return task.tied.state_dict()


def _config_digests(folder: Path, config: Config) -> list[str]:
    """Return the digests that this run's checkpoints may have: of where it began, and of now."""
    device = config.machine.device
    return [_config_digest(config, run_folder.begun_on(folder) or device), _config_digest(config, device)]


def _config_digest(config: Config, device: str) -> str:
    """Return a digest of everything that the numbers of a run depend on."""
    content = config.to_json()
    content["machine"]["device"] = device
    del content["machine"]["checkpoint_minutes"]
    # so that checkpoints from before there was a field go on
    for section, names in LATER_FIELDS.items():
        values = content[section]
        for each in fields(getattr(config, section)):
            if each.name in names and values[each.name] == each.default:
                del values[each.name]
    return digest(json.dumps(content, sort_keys=True).encode())
