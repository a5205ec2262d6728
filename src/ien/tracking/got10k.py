"""The bridge to the GOT-10k toolkit: from a tracker of ours to one that its experiments run."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data.boxes import Array, as_boxes
from .trajectory import TrackerLike

__all__ = ["as_got10k"]

FROM_ONE = np.array([1.0, 1.0, 0.0, 0.0])


def as_got10k(tracker: TrackerLike, name: str) -> Any:
    """A ``got10k.trackers.Tracker`` that runs ``tracker``: give it to an experiment's ``run``.

    The toolkit's boxes are counted from 1 and ours from 0; they are converted both ways. It is declared
    deterministic, so GOT-10k's experiment runs it once, not three times.
    """
    try:
        base: Any = importlib.import_module("got10k.trackers").Tracker
    except ModuleNotFoundError as error:
        missing = (error.name or "got10k").split(".")[0]
        also = "" if missing == "got10k" else f", and {missing}, which it imports"
        raise ModuleNotFoundError(
            f"running in the GOT-10k toolkit needs the got10k package{also}: pip install {missing}",
            name=missing,
        ) from error

    class Bridged(base):  # type: ignore[misc]
        def init(self, image: Any, box: Any) -> None:
            tracker.init(_pixels(image), as_boxes(box, "box") - FROM_ONE)

        def update(self, image: Any) -> Array:
            box = as_boxes(tracker.update(_pixels(image))[0], f"the box of {name}")
            if box.shape != (4,) or np.isnan(box).any():
                raise ValueError(f"{name} returned the box {box.tolist()}: four finite numbers are needed")
            return box + FROM_ONE

    return Bridged(name, is_deterministic=True)


def _pixels(image: Any) -> NDArray[np.uint8]:
    """A picture of the toolkit, from Pillow, as an array; some of OTB's are grey."""
    return np.array(image.convert("RGB"), dtype=np.uint8)
