"""The GOT-10k toolkit: wraps a tracker of ours so that the toolkit's experiments can run it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data.boxes import COUNT_FROM_1, Array, as_boxes
from .trajectory import TrackerLike

__all__ = ["as_got10k"]


def as_got10k(tracker: TrackerLike, name: str) -> Any:
    """Wrap a tracker as a ``got10k.trackers.Tracker``, to pass to an experiment's ``run``.

    Boxes are converted both ways: the toolkit counts x and y from 1. The tracker is declared
    deterministic, so GOT-10k's experiment runs it once instead of three times; do not wrap one that
    draws at random.

    Args:
        tracker: Has ``init(image, box)`` and ``update(image)``, like :class:`ien.tracking.Tracker`.
        name: The toolkit's name for it, which also names its folder of results.

    Returns:
        A tracker of the toolkit.

    Raises:
        ModuleNotFoundError: The package got10k, or one that it imports, is not installed.
    """
    try:
        base: Any = importlib.import_module("got10k.trackers").Tracker
    except ModuleNotFoundError as error:
        # it may be installed without a package that it imports
        missing = (error.name or "got10k").split(".")[0]
        needed = "the got10k package"
        if missing != "got10k":
            needed += f", and {missing}, which it imports"
        raise ModuleNotFoundError(
            f"running in the GOT-10k toolkit needs {needed}: pip install {missing}", name=missing
        ) from error

    class Wrapped(base):  # type: ignore[misc]
        def init(self, image: Any, box: Any) -> None:
            tracker.init(_as_array(image), as_boxes(box, "box") - COUNT_FROM_1)

        def update(self, image: Any) -> Array:
            box = as_boxes(tracker.update(_as_array(image))[0], f"the box of {name}")
            if box.shape != (4,) or np.isnan(box).any():
                raise ValueError(f"{name} must return a box of four finite numbers; got {box.tolist()}")
            return box + COUNT_FROM_1

    return Wrapped(name, is_deterministic=True)


def _as_array(image: Any) -> NDArray[np.uint8]:
    """Return a Pillow image as an RGB array; some of OTB's frames are grey."""
    return np.array(image.convert("RGB"), dtype=np.uint8)
