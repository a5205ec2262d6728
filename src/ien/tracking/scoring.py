"""Scores of trackers: from predicted and true boxes to success, precision, orientation error and speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .data.boxes import Array, as_boxes, in_frame

__all__ = [
    "NORMALISED_THRESHOLDS",
    "PRECISION_THRESHOLDS",
    "SUCCESS_THRESHOLDS",
    "Score",
    "centre_error",
    "frame_overlaps",
    "overlap",
    "score",
    "summarise",
]

SUCCESS_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0, 1, 21).tolist())
"""Overlaps; a frame is a success where its own is strictly greater."""
PRECISION_THRESHOLDS: tuple[float, ...] = tuple(np.arange(51.0).tolist())
"""Centre errors in pixels; a frame is precise where its own is at most that."""
NORMALISED_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0, 0.5, 21).tolist())
"""Centre errors as parts of the true box's sides; likewise."""


@dataclass(frozen=True)
class Score:
    """What a tracker reached on one sequence or, as :func:`summarise` gives it, on several.

    Its fields are plain numbers: ``Score(**json.loads(json.dumps(dataclasses.asdict(s))))`` is ``s`` again.
    """

    frames: int
    """Frames with a true box: the others do not count."""
    success_curve: tuple[float, ...]
    """Share of frames with an overlap strictly greater than each of :data:`SUCCESS_THRESHOLDS`."""
    precision_curve: tuple[float, ...]
    """Share of frames with a centre error of at most each of :data:`PRECISION_THRESHOLDS`."""
    normalised_curve: tuple[float, ...]
    """The same for :data:`NORMALISED_THRESHOLDS`."""
    mean_overlap: float
    mean_centre_error: float
    """In pixels."""
    orientation_error: float | None = None
    """Mean angle, in degrees, between predicted and true orientation; None where these are not known."""
    within_45: float | None = None
    """Share of frames with an orientation error of at most 45°."""
    fps: float | None = None
    """Frames divided by the seconds they took, the first one included; None where these are not known."""

    def __post_init__(self) -> None:
        for name, thresholds in _CURVES.items():
            curve = tuple(getattr(self, name))  # a list, where it comes from JSON
            if len(curve) != len(thresholds):
                raise ValueError(f"{name} has {len(curve)} values: it needs {len(thresholds)}")
            object.__setattr__(self, name, curve)

    @property
    def success(self) -> float:
        """Area under the success curve, the mean of its 21 values: 20/21 for a perfect tracker."""
        return float(np.mean(self.success_curve))

    @property
    def precision(self) -> float:
        """Share of frames with a centre error of at most 20 pixels."""
        return self.precision_curve[20]

    @property
    def precision_auc(self) -> float:
        """Area under the precision curve from 0 to 50 pixels, as the mean of its 51 values."""
        return float(np.mean(self.precision_curve))

    @property
    def normalised_precision(self) -> float:
        """Area under the normalised curve from 0 to 0.5, by the trapezoidal rule, as TrackingNet defines it.

        (That benchmark also rounds boxes to whole pixels; this does not. pysot reports another number of the
        same name, the curve at 0.2: ``normalised_curve[8]``.)
        """
        curve = np.asarray(self.normalised_curve)
        return float((curve[1:] + curve[:-1]).mean() / 2)

    def __str__(self) -> str:
        parts = [f"success {self.success:.3f}", f"precision {self.precision:.3f} at 20 px"]
        parts += [f"{self.precision_auc:.3f} AUC", f"{self.normalised_precision:.3f} normalised"]
        parts += [f"overlap {self.mean_overlap:.3f}", f"centre error {self.mean_centre_error:.1f} px"]
        if self.orientation_error is not None and self.within_45 is not None:
            parts.append(f"orientation error {self.orientation_error:.1f}° ({self.within_45:.1%} within 45°)")
        return ", ".join(parts + ([] if self.fps is None else [f"{self.fps:.1f} fps"]))


_CURVES = {
    "success_curve": SUCCESS_THRESHOLDS,
    "precision_curve": PRECISION_THRESHOLDS,
    "normalised_curve": NORMALISED_THRESHOLDS,
}


def score(
    predicted: ArrayLike,
    truth: ArrayLike,
    angles: ArrayLike | None = None,
    true_angles: ArrayLike | None = None,
    seconds: ArrayLike | None = None,
) -> Score:
    """How well the boxes ``predicted`` follow ``truth``, both (T, 4) rows of x, y, w, h.

    The first frame counts as correct, as in OTB: the tracker was given it. Frames whose true box is NaN or
    has no area are left out, as the GOT-10k toolkit leaves out the NaN of UAV123. ``angles`` and
    ``true_angles``, (T,) in degrees, give the orientation error where both are known, and ``seconds``, (T,),
    the speed. Boxes may be counted from 0 or from 1, both from the same.

    >>> round(score([[0, 0, 8, 8], [4, 0, 8, 8]], [[0, 0, 8, 8], [0, 0, 8, 8]]).mean_overlap, 3)
    0.667
    """
    boxes, true, known = _frames(predicted, truth)
    if not known.any():
        raise ValueError("truth has no frame with a box of some area: there is nothing to score")
    overlaps, errors = overlap(boxes[known], true[known]), centre_error(boxes[known], true[known])
    offsets = (_centres(boxes[known]) - _centres(true[known])) / true[known, 2:]
    normalised = np.hypot(offsets[:, 0], offsets[:, 1])
    turned = _orientation_errors(angles, true_angles, known)
    return Score(
        frames=int(known.sum()),
        success_curve=_shares(overlaps[:, None] > np.asarray(SUCCESS_THRESHOLDS)),
        precision_curve=_shares(errors[:, None] <= np.asarray(PRECISION_THRESHOLDS)),
        normalised_curve=_shares(normalised[:, None] <= np.asarray(NORMALISED_THRESHOLDS)),
        mean_overlap=float(overlaps.mean()),
        mean_centre_error=float(errors.mean()),
        orientation_error=float(turned.mean()) if turned.size else None,
        within_45=float((turned <= 45).mean()) if turned.size else None,
        fps=_speed(seconds, len(boxes)),
    )


def summarise(scores: Mapping[str, Score]) -> Score:
    """The mean over sequences of everything but ``frames``, which is their sum; each sequence counts alike.

    Curves are so averaged over frames, then sequences, and what is read off them over thresholds at last.
    """
    if not scores:
        raise ValueError("there is nothing to summarise: give the score of at least one sequence")
    curves: dict[str, Any] = {
        name: tuple(np.mean([getattr(s, name) for s in scores.values()], axis=0).tolist()) for name in _CURVES
    }
    numbers = ("mean_overlap", "mean_centre_error", "orientation_error", "within_45", "fps")
    means: dict[str, Any] = {name: _mean(scores, name) for name in numbers}
    return Score(frames=sum(s.frames for s in scores.values()), **curves, **means)


def overlap(a: ArrayLike, b: ArrayLike) -> Array:
    """Area of the intersection over that of the union of boxes (..., 4); NaN where a box is not known.

    Boxes without area overlap nothing. The leading axes are broadcast.

    >>> overlap([[0, 0, 2, 2], [1, 0, 2, 2]], [0, 0, 2, 2]).tolist()
    [1.0, 0.3333333333333333]
    """
    a, b = as_boxes(a, "a"), as_boxes(b, "b")
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    shared = np.maximum(high - low, 0).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared
    ratio = shared / np.where(union == 0, 1, union)
    return np.asarray(np.minimum(ratio, 1))  # rounding could lift it above


def centre_error(a: ArrayLike, b: ArrayLike) -> Array:
    """Distance in pixels between the centres of boxes (..., 4); NaN where a box is not known.

    >>> centre_error([0, 0, 5, 5], [[3, 4, 5, 5], [0, 0, 7, 5]]).tolist()
    [5.0, 1.0]
    """
    difference = _centres(as_boxes(a, "a")) - _centres(as_boxes(b, "b"))
    return np.asarray(np.hypot(difference[..., 0], difference[..., 1]))


def frame_overlaps(predicted: ArrayLike, truth: ArrayLike) -> Array:
    """The overlap (T,) of each frame as :func:`score` counts it: NaN where it leaves the frame out."""
    boxes, true, known = _frames(predicted, truth)
    return np.where(known, overlap(boxes, true), np.nan)


def _frames(predicted: ArrayLike, truth: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Both as boxes, with the first true one in both, and which frames have truth."""
    boxes, true = as_boxes(predicted, "predicted"), as_boxes(truth, "truth")
    for name, given in (("predicted", boxes), ("truth", true)):
        if given.ndim != 2 or not len(given):
            raise ValueError(f"{name} has shape {given.shape}: (T, 4) is needed, with a row for each frame")
    _needs_length("predicted", len(boxes), "truth", len(true))
    if np.isnan(boxes).any():
        where = in_frame(np.isnan(boxes).any(1))
        raise ValueError(f"predicted has NaN{where}: a tracker gives a box for every frame (its last one)")
    known = np.asarray(np.isfinite(true).all(1) & (true[:, 2:] > 0).all(1))
    return np.concatenate([true[:1], boxes[1:]]), true, known


def _centres(boxes: Array) -> Array:
    return boxes[..., :2] + (boxes[..., 2:] - 1) / 2


def _orientation_errors(
    angles: ArrayLike | None, true_angles: ArrayLike | None, known: NDArray[np.bool_]
) -> Array:
    """Degrees, 0 to 180, for each frame that has truth and a true angle: none if one side is missing."""
    given = None if angles is None else _per_frame(angles, "angles", len(known))
    true = None if true_angles is None else _per_frame(true_angles, "true_angles", len(known), unknown=True)
    if given is None or true is None:
        return np.empty(0)
    errors = np.abs((given - true + 180) % 360 - 180)
    errors[0] *= 0  # the first frame counts as correct, if its angle is known
    return np.asarray(errors[known & ~np.isnan(true)])


def _speed(seconds: ArrayLike | None, frames: int) -> float | None:
    if seconds is None:
        return None
    each = _per_frame(seconds, "seconds", frames)
    if (each < 0).any() or not each.sum() > 0:
        raise ValueError("seconds must be how long each frame took: not negative, and not all 0")
    return float(frames / each.sum())


def _per_frame(values: ArrayLike, name: str, frames: int, unknown: bool = False) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: (T,) is needed, a number for each frame")
    _needs_length(name, len(array), "truth", frames)
    bad = np.isinf(array) if unknown else ~np.isfinite(array)
    if bad.any():
        raise ValueError(f"{name} has a value that is not finite{in_frame(bad)}")
    return array


def _needs_length(name: str, count: int, other: str, needed: int) -> None:
    if count != needed:
        cut = f"{name}[:{needed}]" if count > needed else f"{other}[:{count}]"
        raise ValueError(
            f"{name} has {count} frames and {other} {needed}: they must be of the same frames (maybe {cut})"
        )


def _shares(hits: NDArray[np.bool_]) -> tuple[float, ...]:
    return tuple(hits.mean(0).tolist())


def _mean(scores: Mapping[str, Score], field: str) -> float | None:
    values = {name: getattr(s, field) for name, s in scores.items()}
    lacking = [name for name, value in values.items() if value is None]
    if len(lacking) == len(values):
        return None
    if lacking:
        raise ValueError(
            f"{field} is known of some sequences and not of {', '.join(lacking)}: score all with it, or none"
        )
    return float(np.mean(list(values.values())))
