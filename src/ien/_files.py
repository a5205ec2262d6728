"""Files: written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name, flush to disk, rename: whatever happens, ``path`` is whole."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise OSError(
            f"{path} could not be written ({error}); the earlier one, if any, is untouched"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
