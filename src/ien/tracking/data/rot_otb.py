"""Rot-OTB: a clip whose frames rotate, made on the fly or written as a folder in OTB's layout.

Rot-OTB itself was never published; the paper only says "rotated at a rate of 0.5 frames per
second". Here that is half a turn a second at 30 frames a second, 6° a frame, counter-clockwise
about the middle of the frame, on a square canvas that loses no corner, filled with the mean colour
of the frame. The box is the upright box around the rotated box.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ..._files import whole_or_nothing
from ..._text import nearest
from .boxes import centres
from .clip import Array, Clip

__all__ = ["cos_sin", "rotated", "upright_sides", "write"]

Point = tuple[float, float]
BoxRule = Literal["hull", "ellipse"]


def rotated(
    clip: Clip,
    turns_per_second: float = 0.5,
    fps: float = 30,
    direction: Literal["counter-clockwise", "clockwise"] = "counter-clockwise",
    canvas: Literal["diagonal", "same"] = "diagonal",
    box: BoxRule = "hull",
) -> Clip:
    """Return the clip with frame i rotated by ``360 * turns_per_second * i / fps`` degrees.

    Frames are rotated about their middle when they are asked for, bilinearly and once; quarter
    turns only move pixels. To rotate images for training use a :class:`ien.Group` instead.

    Args:
        clip: Its frames must have one size. Its angles, if any, are added to those of the result.
        turns_per_second: The rate, 0 or more.
        fps: Frames that make a second.
        direction: ``counter-clockwise`` or ``clockwise``, as seen.
        canvas: ``diagonal``, a square as wide as the frame's diagonal, from which nothing is cut
            off; or ``same``, the size of the frame: a target that leaves it has no box.
        box: ``hull``, the upright box around the rotated box; or ``ellipse``, the one around the
            rotated ellipse that fills the box.

    Returns:
        A clip with angles, which grow beyond 360°.

    >>> from ien.tracking.data.synthetic import synthetic
    >>> rotated(synthetic(0, frames=3, turning=False)).angles.tolist()
    [0.0, 6.0, 12.0]
    """
    rate = 360 * turns_per_second
    if not (math.isfinite(rate) and rate >= 0 and math.isfinite(fps) and fps > 0):
        raise ValueError(
            f"turns_per_second must be 0 or more and fps above 0; got {turns_per_second} and {fps} "
            f'(to rotate the other way, direction="clockwise")'
        )
    _check_choice("direction", direction, ("counter-clockwise", "clockwise"))
    _check_choice("canvas", canvas, ("diagonal", "same"))
    if direction == "clockwise":
        rate = -rate
    degrees = rate * np.arange(len(clip)) / fps

    size = clip.size
    rows, columns = size
    pivot = ((columns - 1) / 2, (rows - 1) / 2)
    if canvas == "same":
        frames = _RotatedFrames(clip, degrees, size, size, pivot, pivot)
    else:
        side, pivot = _square_canvas(size, pivot)
        middle = ((side - 1) / 2, (side - 1) / 2)
        frames = _RotatedFrames(clip, degrees, size, (side, side), pivot, middle)

    boxes = frames.boxes(box)
    width_height = np.array(frames.canvas[::-1])
    after_end = boxes[:, :2] > width_height - 0.5
    before_start = boxes[:, :2] + boxes[:, 2:] < 0.5
    boxes[(after_end | before_start).any(1)] = np.nan  # less than half a pixel of it is in view
    angles = degrees if clip.angles is None else clip.angles + degrees
    return Clip(clip.name, frames, boxes, clip.visible, angles)


def upright_sides(sides: Array, degrees: Array, box: BoxRule = "hull") -> Array:
    """Return the sides (T, 2) of the upright box around a rotated box, or the ellipse in it.

        hull:     W = w |cos| + h |sin|,        H = w |sin| + h |cos|
        ellipse:  W = √(w² cos² + h² sin²),     H = √(w² sin² + h² cos²)

    Args:
        sides: Width and height before, (T, 2).
        degrees: Angles (T,).
        box: ``hull`` or ``ellipse``.

    >>> upright_sides(np.array([[30.0, 40.0], [30.0, 40.0]]), np.array([90.0, 0.0]))
    array([[40., 30.],
           [30., 40.]])
    """
    _check_choice("box", box, ("hull", "ellipse"))
    cos, sin = cos_sin(degrees)
    from_width = sides[:, :1] * np.abs(np.stack([cos, sin], 1))  # (T, 2)
    from_height = sides[:, 1:] * np.abs(np.stack([sin, cos], 1))  # (T, 2)
    if box == "hull":
        return from_width + from_height
    return np.hypot(from_width, from_height)


def cos_sin(degrees: Array | float) -> tuple[Array, Array]:
    """Return cosine and sine, exact for quarter turns.

    >>> cos_sin(np.array([90.0, -180.0]))
    (array([ 0., -1.]), array([1., 0.]))
    """
    degrees = np.asarray(degrees, np.float64)
    cos = np.cos(np.deg2rad(degrees))
    sin = np.sin(np.deg2rad(degrees))
    quarters = np.round(degrees / 90)
    is_quarter = degrees == 90 * quarters
    index = quarters.astype(np.int64) % 4
    exact_cos = np.array([1.0, 0, -1, 0])
    exact_sin = np.array([0.0, 1, 0, -1])
    return np.where(is_quarter, exact_cos[index], cos), np.where(is_quarter, exact_sin[index], sin)


def write(
    clip: Clip,
    folder: str | os.PathLike[str],
    suffix: Literal[".jpg", ".png"] = ".jpg",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a clip as the sequence ``folder/<name>`` in OTB's layout, completely or not at all.

    Boxes have four decimals and are counted from 1; unknown ones are NaN. Angles, if any, go to
    ``angles.txt``, one on each line, and :func:`ien.tracking.data.clips.otb` reads them. The layout
    cannot say where a target is not visible: do not use it to keep clips of GOT-10k.

    Args:
        clip: Any clip; its name becomes the name of the folder.
        folder: Where the sequence's folder goes.
        suffix: ``.jpg``, of quality 95, as other tools read OTB; or ``.png``, which keeps every
            pixel.
        progress: Called as ``progress(frames_done, frames_total)`` after each frame.

    Returns:
        The folder of the sequence.

    Raises:
        FileExistsError: The folder exists already.
    """
    place = Path(folder).expanduser() / clip.name
    if clip.name in ("", ".", "..") or Path(clip.name).name != clip.name:
        raise ValueError(f"the clip's name must be usable as the name of a folder; got {clip.name!r}")
    _check_choice("suffix", suffix, (".jpg", ".png"))
    if place.exists():
        raise FileExistsError(f"{place} exists already: move or delete it, or write to another folder")

    digits = max(4, len(str(len(clip))))
    with whole_or_nothing(place) as part:
        images = part / "img"
        images.mkdir(parents=True)
        for index in range(len(clip)):
            _save(clip.frame(index), images / f"{index + 1:0{digits}d}{suffix}")
            if progress:
                progress(index + 1, len(clip))
        with open(part / "groundtruth_rect.txt", "w") as file:
            for x, y, width, height in clip.boxes.tolist():
                file.write(f"{x + 1:.4f},{y + 1:.4f},{width:.4f},{height:.4f}\n")
        if clip.angles is not None:
            with open(part / "angles.txt", "w") as file:
                for angle in clip.angles.tolist():
                    file.write(f"{angle!r}\n")
    return place


@dataclass(frozen=True, eq=False)
class _RotatedFrames:
    """Frames of a clip, rotated so that ``pivot`` comes to lie at ``target`` on a canvas."""

    source: Clip
    degrees: Array
    size: tuple[int, int]
    """Rows and columns of the frames."""
    canvas: tuple[int, int]
    """Rows and columns of the result."""
    pivot: Point
    target: Point

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Array:
        image = self.source.frame(index)
        rows, columns = image.shape[:2]
        if (rows, columns) != self.size:
            raise ValueError(
                f"{self.source.name}: frame {index} has {columns}×{rows} pixels and the first "
                f"{self.size[1]}×{self.size[0]}; only frames of one size can be rotated"
            )
        fill = _rounded_mean(image)
        degrees = float(self.degrees[index])
        corner = self.corner(degrees)
        if corner is None:
            return self.resampled(image, fill, degrees)
        return _paste(np.rot90(image, round(degrees / 90)), fill, self.canvas, *corner)

    def boxes(self, box: BoxRule) -> Array:
        """Return boxes (T, 4) whose centres rotate with the frame and whose sides are upright."""
        before = self.source.boxes
        sides = upright_sides(before[:, 2:], self.degrees, box)
        middles = self.moved(centres(before), self.degrees)
        return np.concatenate([middles - (sides - 1) / 2, sides], 1)

    def moved(self, points: Array, degrees: Array) -> Array:
        """Return where points (T, 2) of the frame lie on the canvas.

        target + R (point - pivot), where R = [[cos, sin], [-sin, cos]], as y points down
        """
        cos, sin = cos_sin(degrees)
        x, y = (points - np.array(self.pivot)).T
        return np.stack([cos * x + sin * y, cos * y - sin * x], 1) + np.array(self.target)

    def corner(self, degrees: float) -> tuple[int, int] | None:
        """Return where the first pixel of the rotated frame lies, or None if it must be resampled.

        It need not be where its pixels lie on those of the canvas, after quarter turns.
        """
        if degrees % 90:
            return None
        rows, columns = self.size
        ends = np.array([[0.0, 0.0], [columns - 1.0, rows - 1.0]])
        x, y = self.moved(ends, np.full(2, degrees)).min(0).tolist()
        if x != round(x) or y != round(y):
            return None
        return round(x), round(y)

    def resampled(self, image: Array, fill: Array, degrees: float) -> Array:
        """Read each pixel of the canvas from the image at pivot + R⁻¹ (pixel - target)."""
        rows, columns = self.size
        height, width = self.canvas
        cos, sin = map(float, cos_sin(degrees))
        x = torch.arange(width, dtype=torch.float64) - self.target[0]  # (width,)
        y = torch.arange(height, dtype=torch.float64)[:, None] - self.target[1]  # (height, 1)
        # grid_sample counts in sides of length 2; summing in float64 leaves no drift
        across, down = 2 / columns, 2 / rows
        shift_x = across * (self.pivot[0] + 0.5) - 1
        shift_y = down * (self.pivot[1] + 0.5) - 1
        grid = torch.empty(1, height, width, 2)
        torch.add(cos * across * x + shift_x, -sin * across * y, out=grid[0, ..., 0])
        torch.add(sin * down * x + shift_y, cos * down * y, out=grid[0, ..., 1])

        # Pillow takes as long, and truncates instead of rounding, which darkens
        colour = torch.from_numpy(fill).float()[:, None, None]  # (3, 1, 1)
        pixels = torch.from_numpy(image).permute(2, 0, 1).float()  # (3, rows, columns)
        pixels = pixels - colour  # what lies outside is then 0
        result = F.grid_sample(pixels[None], grid, align_corners=False)[0]
        # the conversion to integers truncates: 0.5 makes it round
        result = result.add_(colour + 0.5).clamp_(0, 255).to(torch.uint8)
        return result.permute(1, 2, 0).contiguous().numpy()  # (height, width, 3)


def _square_canvas(size: tuple[int, int], middle: Point) -> tuple[int, Point]:
    """Return the side of the canvas, and the pivot: the point of the frame put at its middle.

    For quarter turns to move pixels onto pixels, both coordinates of the pivot must be whole
    numbers on a canvas of odd side, or both halves on one of even side. The nearer to ``middle`` of
    the two is taken.
    """
    rows, columns = size
    choices: list[tuple[float, int, Point]] = []
    for parity in (0, 1):
        # the nearest point with whole coordinates, or with halves
        half = 0.0 if parity else 0.5
        x = math.floor(middle[0] + 0.5 - half) + half
        y = math.floor(middle[1] + 0.5 - half) + half
        farthest_corner = math.hypot(max(x + 0.5, columns - 0.5 - x), max(y + 0.5, rows - 0.5 - y))
        side = math.ceil(2 * farthest_corner)
        if side % 2 != parity:
            side += 1
        away = math.hypot(x - middle[0], y - middle[1])
        choices.append((away, side, (x, y)))
    _, side, pivot = min(choices)
    return side, pivot


def _rounded_mean(image: Array) -> Array:
    """Return the mean colour (3,) as uint8."""
    row_sums = image.reshape(len(image), -1, 3).sum(0, dtype=np.uint32)  # (columns, 3)
    sums = row_sums.sum(0, dtype=np.uint64)  # (3,)
    return np.round(sums / (image.size // 3)).astype(np.uint8)


def _paste(image: Array, fill: Array, canvas: tuple[int, int], x: int, y: int) -> Array:
    """Return a canvas with the image at column x and row y; parts outside of it are cut off."""
    height, width = canvas
    result = np.empty((height, width, 3), np.uint8)
    result.reshape(height, -1)[:] = np.tile(fill, width)  # by rows: much faster than by pixels
    top, left = max(0, -y), max(0, -x)
    bottom = min(image.shape[0], height - y)
    right = min(image.shape[1], width - x)
    if bottom > top and right > left:
        result[y + top : y + bottom, x + left : x + right] = image[top:bottom, left:right]
    return result


def _save(image: Array, path: Path) -> None:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError('writing frames needs pillow: pip install "ien[track]"') from None
    try:
        Image.fromarray(image).save(path, quality=95, subsampling=0)
    except OSError as error:
        raise OSError(f"cannot write {path} ({error.strerror or error})") from None


def _check_choice(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}; got {given!r}; {nearest(given, known)}")
