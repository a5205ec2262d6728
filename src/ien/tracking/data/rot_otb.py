"""Rot-OTB: from a clip to the same clip with frames that turn, on the fly or as a folder in OTB's layout.

No maker of Rot-OTB is published, and of its rate, direction, centre, canvas, fill and boxes the paper gives
only "0.5 frames per second". Here that is half a turn a second at 30 frames a second, 6° a frame, counter-
clockwise about the middle of the frame, on a square canvas on which nothing leaves the picture, filled with
the mean colour of the frame; the box is the upright hull of the rotated box. All of them are parameters.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ..._text import nearest
from .clips import Array, Clip

__all__ = ["rotated", "turn", "upright_sides", "write"]

Point = tuple[float, float]
Colour = tuple[int, int, int]


def rotated(
    clip: Clip,
    turns_per_second: float = 0.5,
    fps: float = 30,
    direction: Literal["counter-clockwise", "clockwise"] = "counter-clockwise",
    canvas: Literal["diagonal", "same"] = "diagonal",
    centre: Point | None = None,
    fill: Literal["mean"] | Colour = "mean",
    box: Literal["hull", "ellipse"] = "hull",
) -> Clip:
    """The clip with frame i turned by ``360 * turns_per_second * i / fps`` degrees, when it is asked for.

    ``canvas="diagonal"`` is a square in which the frame can turn without losing a corner: as wide as its
    diagonal when it turns about its middle. ``centre`` (x, y) is then moved by at most half a pixel, to where
    quarter turns only move pixels. ``canvas="same"`` keeps the size of the frame and cuts off what leaves; a
    target of which nothing is in view has no box. ``fill`` is the mean colour of each frame, or a colour.

    ``box="hull"`` is the upright box around the rotated box, ``"ellipse"`` the one around the rotated ellipse
    that fills the box. ``angles`` of the result grow beyond 360°; those of ``clip``, if any, are added.
    Frames are read bilinearly, once.
    """
    rate = 360 * turns_per_second
    if not (math.isfinite(rate) and rate >= 0 and math.isfinite(fps) and fps > 0):
        raise ValueError(
            f"a rate needs turns_per_second of 0 or more and fps above 0; got {turns_per_second} and {fps} "
            f'(the other way round is direction="clockwise")'
        )
    _check("direction", direction, ("counter-clockwise", "clockwise"))
    _check("canvas", canvas, ("diagonal", "same"))
    sign = 1 if direction == "counter-clockwise" else -1
    degrees = sign * rate * np.arange(len(clip)) / fps
    size = clip.size
    middle = _point_in(size, centre)
    frames = _Turned(clip, degrees, size, _colour(fill), size, middle, middle)
    if canvas == "diagonal":
        side, pivot = _square(size, middle)
        frames = _Turned(clip, degrees, size, _colour(fill), (side, side), pivot, ((side - 1) / 2,) * 2)
    boxes = frames.boxes(box)
    far = (boxes[:, :2] > np.array(frames.canvas[::-1]) - 0.5) | (boxes[:, :2] + boxes[:, 2:] < 0.5)
    boxes[far.any(1)] = np.nan  # less than half a pixel of it is in view
    angles = degrees if clip.angles is None else clip.angles + degrees
    return Clip(clip.name, frames, boxes, clip.visible, angles)


def upright_sides(sides: Array, degrees: Array, box: Literal["hull", "ellipse"] = "hull") -> Array:
    """Width and height (T, 2) of the upright box around a turned box, or around the turned ellipse in it.

    >>> upright_sides(np.array([[30.0, 40.0], [30.0, 40.0]]), np.array([90.0, 0.0]))
    array([[40., 30.],
           [30., 40.]])
    """
    _check("box", box, ("hull", "ellipse"))
    cos, sin = turn(degrees)
    along, across = np.abs(np.stack([cos, sin], 1)), np.abs(np.stack([sin, cos], 1))
    width, height = sides[:, :1], sides[:, 1:]
    return width * along + height * across if box == "hull" else np.hypot(width * along, height * across)


def turn(degrees: Array | float) -> tuple[Array, Array]:
    """Cosine and sine, exact for quarter turns.

    >>> turn(np.array([90.0, -180.0]))
    (array([ 0., -1.]), array([1., 0.]))
    """
    degrees = np.asarray(degrees, np.float64)
    quarters = np.round(degrees / 90)
    exact = degrees == 90 * quarters
    at = quarters.astype(np.int64) % 4
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    table = np.array([1.0, 0, -1, 0])
    return np.where(exact, table[at], cos), np.where(exact, table[at - 1], sin)


def write(
    clip: Clip,
    folder: str | os.PathLike[str],
    suffix: Literal[".jpg", ".png"] = ".jpg",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The clip as the sequence ``folder/<name>`` in OTB's layout, there whole or not at all.

    Images are JPEG of quality 95, as other tools read OTB, or PNG, which keeps every pixel. Boxes have four
    decimals and count from 1; those not known are NaN. Angles, if any, are in ``angles.txt``, a line each;
    :func:`ien.tracking.data.clips.otb` reads them. This layout does not say where a target is not visible.
    ``progress(frames_done, frames_total)`` is called after each frame.
    """
    place = Path(folder).expanduser() / clip.name
    if clip.name in ("", ".", "..") or Path(clip.name).name != clip.name:
        raise ValueError(f"the clip's name {clip.name!r} is to be the name of a folder")
    _check("suffix", suffix, (".jpg", ".png"))
    if place.exists():
        raise FileExistsError(f"{place} is there already: move or delete it, or write into another folder")
    part = place.with_name(f".{place.name}.{os.getpid()}.part")  # hidden: no reader takes it for a sequence
    try:
        shutil.rmtree(part, ignore_errors=True)
        (part / "img").mkdir(parents=True)
        digits = max(4, len(str(len(clip))))
        for index in range(len(clip)):
            _save(clip.frame(index), part / "img" / f"{index + 1:0{digits}d}{suffix}")
            if progress:
                progress(index + 1, len(clip))
        lines = [",".join(f"{value:.4f}" for value in row) for row in clip.boxes + np.array([1, 1, 0, 0])]
        (part / "groundtruth_rect.txt").write_text("\n".join(lines) + "\n")
        if clip.angles is not None:
            (part / "angles.txt").write_text("".join(f"{float(angle)!r}\n" for angle in clip.angles))
        os.rename(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


@dataclass(frozen=True, eq=False)
class _Turned:
    """Frames of a clip turned about ``pivot``, which comes to lie at ``target`` on a canvas."""

    source: Clip
    degrees: Array
    size: tuple[int, int]
    fill: Colour | None
    """None: the mean of each frame."""
    canvas: tuple[int, int]
    pivot: Point
    target: Point

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Array:
        image = self.source.frame(index)
        if image.shape[:2] != self.size:
            given, first = ("×".join(map(str, size[::-1])) for size in (image.shape[:2], self.size))
            raise ValueError(
                f"{self.source.name}: frame {index} has {given} pixels and the first {first}; "
                f"a clip that turns needs frames of one size"
            )
        fill = _mean(image) if self.fill is None else np.array(self.fill, np.uint8)
        corner = self.corner(float(self.degrees[index]))
        if corner is None:
            return self.resampled(image, fill, float(self.degrees[index]))
        return _paste(np.rot90(image, round(self.degrees[index] / 90)), fill, self.canvas, *corner)

    def boxes(self, box: Literal["hull", "ellipse"]) -> Array:
        """(T, 4): the middle of each box is turned with the frame; its sides are those of an upright box."""
        before = self.source.boxes
        sides = upright_sides(before[:, 2:], self.degrees, box)
        middles = self.moved(before[:, :2] + (before[:, 2:] - 1) / 2, self.degrees)
        return np.concatenate([middles - (sides - 1) / 2, sides], 1)

    def moved(self, points: Array, degrees: Array) -> Array:
        """Where points (T, 2) of the frame are on the canvas."""
        cos, sin = turn(degrees)
        x, y = (points - np.array(self.pivot)).T
        return np.stack([cos * x + sin * y, cos * y - sin * x], 1) + np.array(self.target)

    def corner(self, degrees: float) -> tuple[int, int] | None:
        """Where the first pixel of the turned frame lies, if its pixels lie on those of the canvas."""
        if degrees % 90:
            return None
        rows, columns = self.size
        ends = self.moved(np.array([[0.0, 0.0], [columns - 1.0, rows - 1.0]]), np.full(2, degrees)).min(0)
        return (round(ends[0]), round(ends[1])) if (ends == np.round(ends)).all() else None

    def resampled(self, image: Array, fill: Array, degrees: float) -> Array:
        (rows, columns), (height, width) = self.size, self.canvas
        cos, sin = map(float, turn(degrees))
        x = torch.arange(width, dtype=torch.float64) - self.target[0]
        y = torch.arange(height, dtype=torch.float64)[:, None] - self.target[1]
        grid = torch.empty(1, height, width, 2)
        # in sides of length 2, as grid_sample counts; summed in float64, which leaves no drift
        across, down = 2 / columns, 2 / rows
        shift = [across * (self.pivot[0] + 0.5) - 1, down * (self.pivot[1] + 0.5) - 1]
        torch.add(cos * across * x + shift[0], -sin * across * y, out=grid[0, ..., 0])
        torch.add(sin * down * x + shift[1], cos * down * y, out=grid[0, ..., 1])
        # pillow takes as long, and cuts off what should be rounded, which darkens
        colour = torch.from_numpy(fill).float()[:, None, None]
        pixels = torch.from_numpy(image).permute(2, 0, 1).float() - colour  # so that what is outside is 0
        turned = F.grid_sample(pixels[None], grid, align_corners=False)[0]
        # 0.5: rounded, as the conversion cuts off
        return turned.add_(colour + 0.5).clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def _square(size: tuple[int, int], centre: Point) -> tuple[int, Point]:
    """Side of the canvas, and the point nearest to ``centre`` that can be its middle, pixel upon pixel."""
    rows, columns = size
    best: list[tuple[float, int, Point]] = []
    for odd in (0, 1):
        x, y = (math.floor(value + 0.5 * odd) + 0.5 * (1 - odd) for value in centre)  # whole, or half, pixels
        far = math.hypot(max(x + 0.5, columns - 0.5 - x), max(y + 0.5, rows - 0.5 - y))
        side = math.ceil(2 * far)
        side += (side - odd) % 2
        best.append((math.hypot(x - centre[0], y - centre[1]), side, (x, y)))
    return min(best)[1:]


def _point_in(size: tuple[int, int], centre: Sequence[float] | None) -> Point:
    rows, columns = size
    if centre is None:
        return (columns - 1) / 2, (rows - 1) / 2
    if len(centre) != 2 or not (-0.5 <= centre[0] <= columns - 0.5 and -0.5 <= centre[1] <= rows - 0.5):
        raise ValueError(f"centre is a point (x, y) in the frame of {columns}×{rows} pixels; got {centre}")
    return float(centre[0]), float(centre[1])


def _colour(fill: str | Sequence[int]) -> Colour | None:
    if isinstance(fill, str) and fill == "mean":
        return None
    if isinstance(fill, str) or len(fill) != 3 or not all(0 <= value <= 255 for value in fill):
        raise ValueError(f'fill is "mean" or a colour (red, green, blue) of 0 to 255; got {fill!r}')
    red, green, blue = fill
    return int(red), int(green), int(blue)


def _mean(image: Array) -> Array:
    sums = image.reshape(len(image), -1, 3).sum(0, dtype=np.uint32).sum(0, dtype=np.uint64)
    return np.round(sums / (image.size // 3)).astype(np.uint8)


def _paste(image: Array, fill: Array, canvas: tuple[int, int], x: int, y: int) -> Array:
    result = np.empty((*canvas, 3), np.uint8)
    result.reshape(len(result), -1)[:] = np.tile(fill, canvas[1])  # by rows: much faster than by pixels
    rows, columns = (min(n, m - at) for n, m, at in zip(image.shape, canvas, (y, x), strict=False))
    top, left = max(0, -y), max(0, -x)
    if rows > top and columns > left:
        result[y + top : y + rows, x + left : x + columns] = image[top:rows, left:columns]
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


def _check(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}; got {given!r}; {nearest(given, known)}")
