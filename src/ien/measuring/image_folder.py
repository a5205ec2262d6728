"""Read a folder of picture files as batches of tensors, one batch in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy
import torch
from torch import Tensor

from .._text import to_install

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "SUFFIXES",
    "common_channels",
    "evenly",
    "find_images",
    "image_batches",
    "opened",
    "read_square",
]

T = TypeVar("T")

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""How the names of picture files end, in lower or upper case."""


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the picture files in a folder and its subfolders, sorted by path, without hidden ones.

    Raises:
        FileNotFoundError: There is no such folder, or no picture in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} with images")
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = path.name.startswith(".")
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            found.append(path)
    if not found:
        raise FileNotFoundError(f"{folder} holds no images: their names must end in {', '.join(SUFFIXES)}")
    return found


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Return at most ``count`` of the items, evenly spaced.

    The first files of a folder of class folders are all of one class, so take them with this.

    >>> evenly("abcdefgh", 3), evenly("ab", 3)
    (['a', 'c', 'f'], ['a', 'b'])
    """
    chosen = []
    count = min(count, len(items))
    for i in range(count):
        chosen.append(items[i * len(items) // count])
    return chosen


def image_batches(
    paths: Sequence[Path],
    size: tuple[int, int, int] | None = None,
    batch_size: int = 64,
    unreadable: list[Path] | None = None,
) -> Iterator[Tensor]:
    """Yield the pictures in batches (B, C, H, W) of float32 in [0, 1].

    Args:
        paths: The files, in order.
        size: (C, H, W) to convert and resize every picture to, with C 1 or 3; for a square, its
            largest square in the middle. By default all must have the same size already; they have
            one channel if all are grey, and three otherwise.
        batch_size: Pictures per batch; the last may have fewer.
        unreadable: A list to which files that cannot be read are added, in place of an error.

    Raises:
        ValueError: A file cannot be read, none can, or pictures differ in size and no ``size`` is
            given.
    """
    channels = common_channels(paths, skip=unreadable is not None) if size is None else size[0]
    if channels not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels; the size asks for {channels}")
    first_shape: torch.Size | None = None
    first_path = paths[0]
    for start in range(0, len(paths), batch_size):
        batch = []
        for path in paths[start : start + batch_size]:
            try:
                image = _read(path, channels, size)
            except ValueError:
                if unreadable is None:
                    raise
                unreadable.append(path)
                continue
            if first_shape is None:
                first_shape, first_path = image.shape, path
            if image.shape != first_shape:
                raise ValueError(_different_sizes(path, image.shape, first_path, first_shape))
            batch.append(image)
        if batch:
            yield torch.stack(batch)  # (B, C, H, W)
    if first_shape is None:
        raise ValueError(f"none of the {len(paths)} files can be read as an image, such as {paths[0]}")


def read_square(path: Path, channels: int) -> Tensor:
    """Read the largest square in the middle of one picture, upright, as (C, n, n) bytes."""
    pixels = _pixels(path, channels)  # (C, H, W)
    height, width = pixels.shape[1:]
    left, top, right, bottom = _middle_square(width, height)
    return pixels[:, top:bottom, left:right]


@contextmanager
def opened(path: str | os.PathLike[str], extra: str = "plots") -> Iterator[Image]:
    """Open a picture file with 8 bits per channel while the block runs.

    Args:
        path: The file.
        extra: The extra of ``ien`` to recommend if pillow is not installed.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read, also if that only shows inside the block.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"reading images needs pillow: {to_install(extra, 'pillow')}") from None
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise ValueError(f"its pixels have mode {file.mode}, but 8 bits are needed")
            yield file
    except Image.DecompressionBombError as error:  # a small file that unpacks to gigabytes
        raise ValueError(f"{os.fspath(path)} is refused ({error}): scale it down or remove it") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"the image {os.fspath(path)} is missing: put it back") from None
    except (OSError, SyntaxError, ValueError) as error:  # pillow reports broken files in all three ways
        raise ValueError(
            f"{os.fspath(path)} cannot be read as an image ({error}): convert, replace or remove it"
        ) from None


def common_channels(paths: Sequence[Path], skip: bool = False) -> int:
    """Return 1 if all pictures are grey, and 3 otherwise; ``skip`` those that cannot be read."""
    for path in paths:
        try:
            with opened(path) as file:
                if file.mode not in ("1", "L"):
                    return 3
        except ValueError:
            if not skip:
                raise
    return 1


def _read(path: Path, channels: int, size: tuple[int, int, int] | None) -> Tensor:
    """Read one picture, upright, as (C, H, W) in [0, 1]."""
    return _pixels(path, channels, size).float().div(255)


def _pixels(path: Path, channels: int, size: tuple[int, int, int] | None = None) -> Tensor:
    """Read one picture, upright, as (C, H, W) bytes."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    mode = "L" if channels == 1 else "RGB"
    with opened(path) as file:
        image = ImageOps.exif_transpose(file).convert(mode)
        if size is not None:
            _, height, width = size
            if height == width:  # rather a part of the picture than all of it squashed
                image = image.crop(_middle_square(*image.size))
            if image.size != (width, height):
                image = image.resize((width, height), Resampling.BILINEAR, reducing_gap=3)
        pixels = torch.from_numpy(numpy.array(image))  # (H, W) if grey, (H, W, 3) if not
    if channels == 1:
        pixels = pixels.unsqueeze(2)  # (H, W, 1)
    return pixels.permute(2, 0, 1)  # (C, H, W)


def _middle_square(width: int, height: int) -> tuple[int, int, int, int]:
    """Return the left, top, right and bottom of the largest square in the middle."""
    side = min(height, width)
    left = (width - side) // 2
    top = (height - side) // 2
    return left, top, left + side, top + side


def _different_sizes(path: Path, shape: torch.Size, first_path: Path, first_shape: torch.Size) -> str:
    channels, height, width = first_shape
    side = min(height, width)  # a square, which quarter turns need
    return (
        f"images must have one size: {path} is {shape[1]}×{shape[2]}, {first_path} is {height}×{width}; "
        f"give a size to scale all to, such as {channels}x{side}x{side} (in the shell: --size)"
    )
