"""Cache: tensors that take long to make, kept as one memory-mapped file each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["cache_folder", "cached"]

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def cache_folder() -> Path:
    """``$IEN_CACHE``, else ``$XDG_CACHE_HOME/ien``, else ``~/.cache/ien``."""
    if own := os.environ.get("IEN_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ien"


def cached(
    name: str,
    layout: Layout,
    make: Callable[[], Mapping[str, Tensor]],
    about: Mapping[str, object] | None = None,
) -> dict[str, Tensor]:
    """The tensors kept under ``name``; made and written if they are not there whole, as ``layout`` says.

    Pages are read when they are used; writing to a tensor changes neither the file nor another process.
    What the tensors are, ``about``, is kept in the same file, as JSON.
    """
    path = cache_folder() / f"{name}.safetensors"
    # one text: the order of several would differ from file to file
    metadata = {"about": json.dumps(about)} if about else None
    found = _mapped(path, layout, metadata)
    if found is None:
        _write(path, make(), metadata)
        found = _mapped(path, layout, metadata)
    if found is None:
        raise ValueError(f"{path} does not hold what was written to it: is the disk damaged or full?")
    return found


def _mapped(path: Path, layout: Layout, metadata: dict[str, str] | None) -> dict[str, Tensor] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:  # checks the header against the size of the file
            tensors = {key: file.get_tensor(key) for key in file.keys()}
            described = file.metadata() or None
    except (FileNotFoundError, NotADirectoryError, SafetensorError):
        return None
    found = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    return tensors if found == dict(layout) and described == metadata else None


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # of this process alone: several may make the same file at once, and each puts a whole one in place
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, part, metadata)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"cannot write the cache {path} ({error}): "
            f"set IEN_CACHE to a folder that can be written and has space"
        ) from None
    finally:
        if part.is_file():
            part.unlink()
