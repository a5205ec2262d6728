"""Selecting: from a frame to the box that a person draws on it with the mouse."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data.boxes import Array
from .data.crops import Image, check_image

__all__ = ["select_box"]

LEAST = 2
"""Pixels to a side that a box has at least; less is a click."""


def select_box(frame: Image) -> Array:
    """Show the frame in a window and wait until a box is drawn on it: (4,) x, y, w, h, counted from 0."""
    check_image(frame)
    size = f"{frame.shape[1]}×{frame.shape[0]}"
    plt, figure = _window(size)
    axes = figure.subplots()
    axes.imshow(frame)
    axes.set_axis_off()
    axes.set_title("drag a box over the target, then press Enter")
    drawn: list[float] = []

    def note(press: Any, release: Any) -> None:
        drawn[:] = press.xdata, press.ydata, release.xdata, release.ydata

    from matplotlib.backend_bases import MouseButton
    from matplotlib.widgets import RectangleSelector

    # kept in a name: a selector that nobody holds does not answer
    selector = RectangleSelector(
        axes,
        note,
        button=[MouseButton.LEFT],
        minspanx=LEAST,
        minspany=LEAST,
        spancoords="data",
        interactive=True,
    )
    figure.canvas.mpl_connect("key_press_event", lambda event: _close_on_enter(plt, figure, event))
    try:
        plt.show(block=True)
    finally:
        selector.disconnect_events()
        plt.close(figure)
    box = _box(drawn, frame) if drawn else np.zeros(4)
    if (box[2:] < LEAST).any():
        raise ValueError(
            f"no box was drawn: drag one over the target and press Enter, or give --box x,y,w,h in the frame "
            f"of {size} pixels"
        )
    return box


def _box(corners: list[float], frame: Image) -> Array:
    """Pixel k lies from k - 0.5 to k + 0.5 in the picture; what is outside of the frame is cut off."""
    ends = np.array(corners).reshape(2, 2) + 0.5
    low, high = np.clip([ends.min(0), ends.max(0)], 0, frame.shape[1::-1])
    return np.concatenate([low, high - low])


def _close_on_enter(plt: Any, figure: Any, event: Any) -> None:
    if event.key in ("enter", " "):
        plt.close(figure)


def _window(size: str) -> tuple[Any, Any]:
    try:
        import matplotlib
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise ModuleNotFoundError('drawing a box needs matplotlib: pip install "ien[plots]"') from None
    try:
        figure = plt.figure()
        reason = f"matplotlib draws with {matplotlib.get_backend()}"
        if figure.canvas.required_interactive_framework is not None:
            return plt, figure
        plt.close(figure)
    except Exception as error:  # each of the window toolkits fails in its own way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise ValueError(
        f"a box is drawn in a window, and there is no screen, or no toolkit such as tkinter, for one here "
        f"({reason}): give --box x,y,w,h in the frame of {size} pixels"
    )
