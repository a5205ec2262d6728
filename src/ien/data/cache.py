"""The cache: tensors that take long to make, each set kept as one memory-mapped file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .._files import check_regular, write_tensors

__all__ = ["cache_folder", "cached", "layout_of"]

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Name of a tensor → its dtype and shape."""
DIGEST = "sha256"
"""The key of a file's metadata with the digest of its tensors."""


def cache_folder() -> Path:
    """Return ``$IEN_CACHE``, else ``$XDG_CACHE_HOME/ien``, else ``~/.cache/ien``."""
    if own := os.environ.get("IEN_CACHE"):
        return Path(own).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "ien"


def layout_of(train: int, test: int, image: tuple[int, int, int], dtype: torch.dtype = torch.uint8) -> Layout:
    """Return the layout of a data set with this many images of shape (C, H, W)."""
    return {
        "train_x": (dtype, (train, *image)),
        "train_y": (torch.int64, (train,)),
        "test_x": (dtype, (test, *image)),
        "test_y": (torch.int64, (test,)),
    }


def cached(
    name: str,
    layout: Layout,
    make: Callable[[], Mapping[str, Tensor]],
    about: Mapping[str, object] | None = None,
) -> dict[str, Tensor]:
    """Return the tensors kept under ``name``; make and write them first if they are not there.

    The file holds the SHA-256 of its tensors, which is checked here: damaged ones are made again.
    Writing to a tensor changes neither the file nor another process.

    Args:
        name: The name of the file, which should change with everything that the tensors depend on.
        layout: What the file must hold.
        make: Makes the tensors.
        about: What they are, kept in the same file as JSON.
    """
    path = cache_folder() / f"{name}.safetensors"
    metadata = {}
    if about:
        # one text, since safetensors does not keep the order of several
        metadata = {"about": json.dumps(about)}
    found = _mapped(path, layout, metadata)
    if found is None:
        _write(path, make(), metadata)
        # mapped from the file even now, so that the first run is like all others
        found = _mapped(path, layout, metadata)
    if found is None:
        raise ValueError(f"{path} does not hold what was written to it: is the disk damaged or full?")
    return found


def _mapped(path: Path, layout: Layout, metadata: Mapping[str, str]) -> dict[str, Tensor] | None:
    """Map the file into memory; None if it is missing, damaged or holds something else."""
    from safetensors import SafetensorError, safe_open

    tensors = {}
    found = {}
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:  # checks the header against the size of the file
            for key in file.keys():
                tensor = file.get_tensor(key)
                tensors[key] = tensor
                found[key] = (tensor.dtype, tuple(tensor.shape))
            described = file.metadata() or {}
    except (FileNotFoundError, NotADirectoryError, SafetensorError):
        return None  # missing or damaged: made again
    if found != dict(layout) or described != {**metadata, DIGEST: _digest_of(tensors)}:
        return None
    return tensors


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, {**metadata, DIGEST: _digest_of(tensors)})
    except OSError as error:
        raise OSError(
            f"cannot write the cache {path} ({error}): "
            f"set IEN_CACHE to a folder that is writable and has space"
        ) from None


def _digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the numbers in all tensors, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        # a view of the bytes: nothing is copied
        total.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
