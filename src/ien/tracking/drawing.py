"""Drawing: from frames and where the target is in them to pictures that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .data.boxes import as_boxes
from .data.crops import Image, check_image

__all__ = ["annotate", "write_strip"]

Colour = tuple[int, int, int]
YELLOW: Colour = (255, 214, 10)
BLACK: Colour = (0, 0, 0)


def annotate(
    frame: Image, box: ArrayLike, angle: float | None = None, label: str = "", colour: Colour = YELLOW
) -> Image:
    """A copy of the frame with the upright box, a label, and a hand that points to what was up at first.

    The hand goes from the middle of the box; it is turned by ``angle`` degrees, counter-clockwise, and left
    out where that is None. The lines have a dark rim, so that they show on any ground.
    """
    Image, ImageDraw = _pillow()
    check_image(frame)
    where = as_boxes(box, "box")
    if where.shape != (4,) or not np.isfinite(where).all():
        raise ValueError(f"a box to draw is four finite numbers x, y, w, h; got {where.tolist()}")
    picture = Image.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    thick = max(2, round(min(frame.shape[:2]) / 160))
    corners = _corners(where, frame.shape[1], frame.shape[0])
    x, y = (where[:2] + (where[2:] - 1) / 2).tolist()
    hand: list[tuple[float, float]] = []
    if angle is not None:
        length, radians = 0.42 * float(where[2:].min()), math.radians(angle)
        hand = [(x, y), (x - length * math.sin(radians), y - length * math.cos(radians))]
    for tint, extra in ((BLACK, 1), (colour, 0)):
        left, top, right, bottom = corners
        wide = thick + 2 * extra
        draw.rectangle((left - extra, top - extra, right + extra, bottom + extra), outline=tint, width=wide)
        if hand:
            draw.line(hand, fill=tint, width=wide)
            dot = thick + extra
            draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=tint)
    if label:
        _write(draw, label, corners, frame.shape, thick, colour)
    return np.array(picture)


def write_strip(path: Path, frames: Sequence[Image], columns: int = 3) -> Path:
    """Frames of one size, row by row from the first, as one PNG file."""
    Image, _ = _pillow()
    for frame in frames:
        check_image(frame)
    rows, gap = -(-len(frames) // columns), 4
    high, wide = np.array(frames[0].shape[:2]) + gap
    sheet = np.full((rows * high - gap, min(columns, len(frames)) * wide - gap, 3), 255, np.uint8)
    for index, frame in enumerate(frames):
        top, left = index // columns * high, index % columns * wide
        sheet[top : top + high - gap, left : left + wide - gap] = frame
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: Image.fromarray(sheet).save(temporary, format="PNG"))
    return path


def _corners(box: Any, columns: int, rows: int) -> tuple[int, int, int, int]:
    """The first and last column and row that the box covers, as far as a line there can be drawn."""
    far = (-columns, -rows, 2 * columns, 2 * rows)
    ends = (box[0], box[1], box[0] + max(box[2] - 1, 0), box[1] + max(box[3] - 1, 0))
    left, top, right, bottom = (
        round(float(np.clip(end, far[i % 2], far[2 + i % 2]))) for i, end in enumerate(ends)
    )
    return left, top, right, bottom


def _write(
    draw: Any,
    label: str,
    corners: tuple[int, int, int, int],
    shape: tuple[int, ...],
    thick: int,
    colour: Colour,
) -> None:
    """The label above the box, or below where there is no room, and always in the frame."""
    size = max(11, round(min(shape[:2]) / 22))
    x0, y0, x1, y1 = draw.textbbox((0, 0), label, font_size=size)
    pad = max(2, size // 5)
    width, height = x1 - x0 + 2 * pad, y1 - y0 + 2 * pad
    above, below = corners[1] - thick - height, corners[3] + thick + 1
    top = above if above >= 0 else below
    left = min(max(corners[0], 0), max(shape[1] - width, 0))
    top = min(max(top, 0), max(shape[0] - height, 0))
    draw.rectangle((left, top, left + width - 1, top + height - 1), fill=BLACK)
    draw.text((left + pad - x0, top + pad - y0), label, fill=colour, font_size=size)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        raise ModuleNotFoundError('drawing on frames needs pillow: pip install "ien[track]"') from None
    return Image, ImageDraw
