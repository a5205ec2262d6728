"""A clip: a sequence of frames, and the box of the target in each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .boxes import has_area
from .frames import Array, frame_size, read_frame

__all__ = ["Array", "Clip", "Frames", "usable"]


class Frames(Protocol):
    """The frames of a clip: files, arrays, or anything that makes an array when indexed."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, eq=False, repr=False)
class Clip:
    """T frames, and where the target is in each; a frame is read only when it is asked for.

    A box is x, y, w, h: its first column and row, counted from 0, and how many columns and rows it
    has. Its centre is x + (w - 1) / 2, y + (h - 1) / 2. A box that is not known is all NaN.

    >>> frames = [np.full((4, 6, 3), 128, np.uint8)] * 2
    >>> clip = Clip("grey", frames, np.array([[1.0, 1, 2, 2], [2, 1, 2, 2]]))
    >>> clip, clip.frame(1).shape, clip.size
    (Clip(grey: 2 frames), (4, 6, 3), (4, 6))
    """

    name: str
    frames: Frames
    """Paths of image files, or arrays (H, W, 3) uint8 RGB; they may be made when indexed."""
    boxes: Array
    """(T, 4) float64."""
    visible: Array = None  # type: ignore[assignment]  # replaced by __post_init__
    """(T,) bool: the target is in view and its box is known; by default wherever there is a box."""
    angles: Array | None = None
    """(T,) degrees of rotation since the first frame, counter-clockwise; None if not known."""

    def __post_init__(self) -> None:
        count = len(self.frames)
        boxes = np.asarray(self.boxes, np.float64)
        if boxes.shape != (count, 4) or not count:
            raise ValueError(f"{self.name}: {count} frames need boxes ({count or 'T'}, 4); got {boxes.shape}")
        known = has_area(boxes)
        wrong = ~known & ~np.isnan(boxes).all(1)
        if wrong.any():
            raise ValueError(
                f"{self.name}: the box of frame {int(wrong.argmax())} must have an area, or be all NaN if it "
                f"is not known; got {boxes[wrong][0].tolist()}"
            )

        visible = known
        if self.visible is not None:
            visible = np.asarray(self.visible, bool)
            self._check_length("visible", visible)
        if self.angles is not None:
            angles = np.asarray(self.angles, np.float64)
            self._check_length("angles", angles)
            object.__setattr__(self, "angles", angles)
        # the way to set a field of a frozen dataclass
        object.__setattr__(self, "boxes", boxes)
        object.__setattr__(self, "visible", visible & known)

    def _check_length(self, what: str, values: Array) -> None:
        count = len(self.frames)
        if values.shape != (count,):
            raise ValueError(f"{self.name}: {count} frames need {what} ({count},); got {values.shape}")

    def __len__(self) -> int:
        return len(self.frames)

    def __repr__(self) -> str:
        text = f"{self.name}: {len(self)} frames"
        hidden = len(self) - int(self.visible.sum())
        if hidden:
            text += f", {hidden} without a visible target"
        if self.angles is not None:
            text += ", angles"
        return f"Clip({text})"

    def frame(self, index: int) -> Array:
        """Return the image (H, W, 3) uint8 RGB."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} frames; got index {index}")
        found = self.frames[index % len(self)]  # frames made when indexed need not know -1
        if _is_path(found):
            image = read_frame(found)
        else:
            image = np.asarray(found)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(
                f"{self.name}: a frame must be (H, W, 3) uint8; frame {index} is {image.shape} {image.dtype}"
            )
        return image

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the first frame; only the header of a file is read."""
        first = self.frames[0]
        if _is_path(first):
            return frame_size(first)
        return self.frame(0).shape[:2]


def usable(
    clip: Clip,
    sides: tuple[float, float] = (20, 500),
    shares: tuple[float, float] = (0.01, 0.5),
    aspects: tuple[float, float] = (0.25, 4),
) -> Array:
    """Return which frames (T,) are fit to train on; by default the published filter decides.

    Args:
        clip: The target must be visible in a frame.
        sides: Limits of its width and of its height in pixels; limits are included everywhere.
        shares: Limits of its width and height as shares of those of the first frame.
        aspects: Limits of width / height.
    """
    # comparisons with NaN are False, so frames without a box drop out by themselves
    box_sides = clip.boxes[:, 2:]  # (T, 2)
    rows, columns = clip.size
    box_shares = box_sides / np.array([columns, rows])
    widths, heights = box_sides.T
    good = _within(box_sides, sides) & _within(box_shares, shares)
    return clip.visible & good.all(1) & _within(widths / heights, aspects)


def _within(values: Array, limits: tuple[float, float]) -> Array:
    low, high = limits
    return (values >= low) & (values <= high)


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)
