"""Images: from a folder of picture files to batches of tensors, without ever holding all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SUFFIXES", "find_images", "image_batches", "opened"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """The picture files in ``folder`` and below, by name; hidden ones are left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} with images")
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file() and path.name[0] != "."
    ]
    if not found:
        raise FileNotFoundError(f"{folder} holds no images: they are files named {', '.join(SUFFIXES)}")
    return found


def image_batches(
    paths: Sequence[Path], size: tuple[int, int, int] | None = None, batch_size: int = 64
) -> Iterator[Tensor]:
    """Batches (B, C, H, W) of float32 in [0, 1], one after another from the files.

    ``size`` (C, H, W) with 1 or 3 channels scales every image to it. Without it all images must have one
    size, and they have three channels unless all are grey.
    """
    channels = size[0] if size is not None else 1 if all(map(_is_grey, paths)) else 3
    if channels not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels; the size asks for {channels}")
    shape: torch.Size | None = None
    for start in range(0, len(paths), batch_size):
        batch = []
        for path in paths[start : start + batch_size]:
            image = _read(path, channels, None if size is None else (size[1], size[2]))
            shape = image.shape if shape is None else shape
            if image.shape != shape:
                raise ValueError(
                    f"images must have one size: {path} is {image.shape[1]}×{image.shape[2]}, {paths[0]} is "
                    f"{shape[1]}×{shape[2]}; give a size to scale all to, such as {'x'.join(map(str, shape))}"
                )
            batch.append(image)
        yield torch.stack(batch)


@contextmanager
def opened(path: str | os.PathLike[str], extra: str = "plots") -> Iterator[Image]:
    """The picture in a file, of 8 bits; ``extra`` is what to install where pillow is not."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'reading images needs pillow: pip install "ien[{extra}]"') from None
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise ValueError(f"its pixels are of mode {file.mode}, and 8 bits are needed")
            yield file
    except FileNotFoundError:
        raise FileNotFoundError(f"the image {os.fspath(path)} is missing: put it back") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)} cannot be read as an image ({error}): convert, replace or remove it"
        ) from None


def _is_grey(path: Path) -> bool:
    with opened(path) as file:
        return file.mode in ("1", "L")


def _read(path: Path, channels: int, size: tuple[int, int] | None) -> Tensor:
    from PIL import ImageOps
    from PIL.Image import Resampling

    with opened(path) as file:
        image = ImageOps.exif_transpose(file).convert("L" if channels == 1 else "RGB")
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Resampling.BILINEAR, reducing_gap=3)
        pixels = numpy.array(image)
    return torch.from_numpy(pixels).view(*pixels.shape[:2], -1).permute(2, 0, 1).float().div(255)
