"""Pictures that show where the target is: a frame with its box drawn in, and strips of frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .._text import to_install
from .data.boxes import Array, as_boxes, centres
from .data.crops import Image, check_image

__all__ = ["WHITE", "annotate", "write_strip"]

Colour = tuple[int, int, int]
YELLOW: Colour = (255, 214, 10)
WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
STRIP_GAP = 4
"""White pixels between two frames of a strip."""


class _Corners(NamedTuple):
    """The first and last column and row of a box, in whole pixels."""

    left: int
    top: int
    right: int
    bottom: int


def annotate(
    frame: Image,
    box: ArrayLike,
    angle: float | None = None,
    label: str = "",
    colour: Colour = YELLOW,
    rotated: ArrayLike | None = None,
) -> Image:
    """Return a copy of the frame with the box, a label and a hand for the angle drawn in.

    Lines have a dark rim, so that they show on any background.

    Args:
        frame: (H, W, 3) uint8 RGB.
        box: x, y, w, h, drawn upright unless ``rotated`` is given.
        angle: Of the hand, in degrees: up at 0, then counter-clockwise; None for no hand.
        label: Text above the box, or below it where there is no room.
        colour: Of lines and text.
        rotated: Corners (4, 2) of the rotated box, to draw in place of the upright one.
    """
    Image, ImageDraw = _pillow()
    check_image(frame)
    where = as_boxes(box, "box")
    if where.shape != (4,) or not np.isfinite(where).all():
        raise ValueError(f"a box to draw must be four finite numbers x, y, w, h; got {where.tolist()}")
    rows, columns = frame.shape[:2]
    corners = _corners(where, columns, rows)
    shorter_side = float(where[2:].min())
    outline = None
    if rotated is not None:
        outline = _outline(np.asarray(rotated, np.float64), columns, rows)
        sides = np.diff(np.asarray(rotated, np.float64)[:3], axis=0)  # (2, 2): of two neighbours
        shorter_side = float(np.hypot(sides[:, 0], sides[:, 1]).min())
    thickness = max(2, round(min(rows, columns) / 160))  # to be seen in large frames too
    picture = Image.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    for line_colour, rim in ((BLACK, 1), (colour, 0)):  # the rim first, then the line on it
        if outline is not None:
            draw.line(outline, fill=line_colour, width=thickness + 2 * rim, joint="curve")
        else:
            first = (corners.left - rim, corners.top - rim)
            last = (corners.right + rim, corners.bottom + rim)
            draw.rectangle([first, last], outline=line_colour, width=thickness + 2 * rim)
        if angle is not None:
            length = 0.42 * shorter_side  # stays inside the box at every angle
            _draw_hand(draw, where, angle, length, thickness, rim, line_colour)
    if label:
        _draw_label(draw, label, corners, (rows, columns), thickness, colour)
    return np.array(picture)


def write_strip(path: Path, frames: Sequence[Image], columns: int = 3) -> Path:
    """Write frames of one size as one PNG file, row by row.

    Args:
        path: The file; it is written completely or not at all.
        frames: Each (H, W, 3) uint8 RGB.
        columns: Frames in a row.
    """
    Image, _ = _pillow()
    for frame in frames:
        check_image(frame)
    height, width = frames[0].shape[:2]
    step_down, step_right = height + STRIP_GAP, width + STRIP_GAP
    num_rows = math.ceil(len(frames) / columns)
    num_columns = min(columns, len(frames))
    sheet_size = (num_rows * step_down - STRIP_GAP, num_columns * step_right - STRIP_GAP, 3)
    sheet = np.full(sheet_size, 255, np.uint8)  # white
    for index, frame in enumerate(frames):
        row, column = divmod(index, columns)
        top, left = row * step_down, column * step_right
        sheet[top : top + height, left : left + width] = frame
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: Image.fromarray(sheet).save(temporary, format="PNG"))
    return path


def _corners(box: Array, columns: int, rows: int) -> _Corners:
    """Return the corners, moved to where Pillow can draw: at most a frame away from the frame."""
    x, y, width, height = box.tolist()
    last_x = x + max(width - 1, 0)
    last_y = y + max(height - 1, 0)
    return _Corners(
        left=_near(x, columns),
        top=_near(y, rows),
        right=_near(last_x, columns),
        bottom=_near(last_y, rows),
    )


def _near(value: float, length: int) -> int:
    """Return the nearest whole number from -length to 2 · length."""
    return round(min(max(value, -length), 2 * length))


def _outline(corners: Array, columns: int, rows: int) -> list[tuple[int, int]]:
    """Return the corners as a closed line, moved to where Pillow can draw."""
    if corners.shape != (4, 2) or not np.isfinite(corners).all():
        raise ValueError(f"a rotated box to draw must be four finite corners x, y; got {corners.tolist()}")
    points = [(_near(x, columns), _near(y, rows)) for x, y in corners.tolist()]
    # one side more than around: the line then has a joint at every corner
    return [*points, points[0], points[1]]


def _draw_hand(
    draw: Any, box: Array, angle: float, length: float, thickness: int, rim: int, colour: Colour
) -> None:
    """Draw a line from the middle of the box, straight up at 0°."""
    x, y = centres(box).tolist()
    radians = math.radians(angle)
    across = length * math.sin(radians)
    up = length * math.cos(radians)
    tip = (x - across, y - up)  # rows count downwards; counter-clockwise from up is to the left
    draw.line([(x, y), tip], fill=colour, width=thickness + 2 * rim)
    radius = thickness + rim
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _draw_label(
    draw: Any, label: str, corners: _Corners, size: tuple[int, int], thickness: int, colour: Colour
) -> None:
    """Write the label above the box, or below it if there is no room, inside the frame."""
    rows, columns = size
    font_size = max(11, round(min(rows, columns) / 22))
    x0, y0, x1, y1 = draw.textbbox((0, 0), label, font_size=font_size)
    padding = max(2, font_size // 5)
    width = x1 - x0 + 2 * padding
    height = y1 - y0 + 2 * padding

    top = corners.top - thickness - height
    if top < 0:  # no room above
        top = corners.bottom + thickness + 1
    top = min(max(top, 0), max(rows - height, 0))
    left = min(max(corners.left, 0), max(columns - width, 0))
    right, bottom = left + width - 1, top + height - 1
    draw.rectangle((left, top, right, bottom), fill=BLACK)
    start = (left + padding - x0, top + padding - y0)  # a text does not start at its origin
    draw.text(start, label, fill=colour, font_size=font_size)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        command = to_install("track", "pillow")
        raise ModuleNotFoundError(f"drawing on frames needs pillow: {command}") from None
    return Image, ImageDraw
