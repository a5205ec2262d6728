"""Scores of trackers: success, precision, orientation error and speed.

For overlaps o_t and centre errors d_t of the frames t,

    success   = mean over thresholds τ in 0, 0.05, …, 1 of the share of frames with o_t > τ
    precision = share of frames with d_t ≤ 20 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .data.boxes import Array, as_boxes, centres, has_area, in_frame

__all__ = [
    "NORMALISED_THRESHOLDS",
    "PRECISION_THRESHOLDS",
    "SUCCESS_THRESHOLDS",
    "Score",
    "angle_between",
    "centre_error",
    "frame_overlaps",
    "overlap",
    "score",
    "summarise",
]

SUCCESS_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0, 1, 21).tolist())
"""Overlaps; a frame is a success if its overlap is strictly greater."""
PRECISION_THRESHOLDS: tuple[float, ...] = tuple(np.arange(51.0).tolist())
"""Centre errors in pixels; a frame is precise if its error is at most that."""
NORMALISED_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0, 0.5, 21).tolist())
"""Centre errors as shares of the sides of the true box; likewise."""
CURVES = {
    "success_curve": SUCCESS_THRESHOLDS,
    "precision_curve": PRECISION_THRESHOLDS,
    "normalised_curve": NORMALISED_THRESHOLDS,
}


@dataclass(frozen=True)
class Score:
    """How well a tracker did on one sequence or, from :func:`summarise`, on several.

    All fields are plain numbers: ``Score(**json.loads(json.dumps(dataclasses.asdict(s))))`` equals
    ``s``.
    """

    frames: int
    """Frames with a true box; the others do not count."""
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
    """Mean angle between predicted and true orientation in degrees, if known."""
    within_45: float | None = None
    """Share of frames with an orientation error of at most 45°."""
    fps: float | None = None
    """Frames, including the first, divided by the seconds they took, if known."""

    def __post_init__(self) -> None:
        for name, thresholds in CURVES.items():
            curve = tuple(getattr(self, name))  # a list, if it comes from JSON
            if len(curve) != len(thresholds):
                raise ValueError(f"{name} needs {len(thresholds)} values; got {len(curve)}")
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
        """Area under the precision curve from 0 to 50 pixels, the mean of its 51 values."""
        return float(np.mean(self.precision_curve))

    @property
    def normalised_precision(self) -> float:
        """Area under the normalised curve from 0 to 0.5, as TrackingNet defines it.

        It is taken by the trapezoidal rule. That benchmark also rounds boxes to whole pixels; this
        does not. pysot calls another number by this name, the curve at 0.2:
        ``normalised_curve[8]``.
        """
        curve = np.asarray(self.normalised_curve)
        return float((curve[1:] + curve[:-1]).mean() / 2)

    def __str__(self) -> str:
        parts = [
            f"success {self.success:.3f}",
            f"precision {self.precision:.3f} at 20 px",
            f"{self.precision_auc:.3f} AUC",
            f"{self.normalised_precision:.3f} normalised",
            f"overlap {self.mean_overlap:.3f}",
            f"centre error {self.mean_centre_error:.1f} px",
        ]
        if self.orientation_error is not None and self.within_45 is not None:
            parts.append(f"orientation error {self.orientation_error:.1f}° ({self.within_45:.1%} within 45°)")
        if self.fps is not None:
            parts.append(f"{self.fps:.1f} fps")
        return ", ".join(parts)


def score(
    predicted: ArrayLike,
    truth: ArrayLike,
    angles: ArrayLike | None = None,
    true_angles: ArrayLike | None = None,
    seconds: ArrayLike | None = None,
) -> Score:
    """Score predicted boxes of one sequence against the true ones.

    The first frame counts as correct, as in OTB, because the tracker was given its box. Frames
    whose true box is NaN or has no area are left out, as the GOT-10k toolkit does for UAV123. Boxes
    may be counted from 0 or from 1, if both are counted alike. For several sequences, score each
    and use :func:`summarise`; do not join their boxes, or long sequences would count more.

    Args:
        predicted: Rows x, y, w, h, (T, 4).
        truth: Rows x, y, w, h, (T, 4); unknown boxes are NaN.
        angles: Predicted orientations in degrees, (T,).
        true_angles: True orientations in degrees, (T,); unknown ones are NaN.
        seconds: How long each frame took, (T,).

    Returns:
        Curves and means over the frames that count.

    Raises:
        ValueError: Shapes do not fit, or no true box is known.

    >>> round(score([[0, 0, 8, 8], [4, 0, 8, 8]], [[0, 0, 8, 8], [0, 0, 8, 8]]).mean_overlap, 3)
    0.667
    """
    boxes, true_boxes, known = _frames(predicted, truth)  # all frames
    if not known.any():
        raise ValueError("truth has no frame with a box that has an area, so there is nothing to score")
    speed = _speed(seconds, len(boxes))
    rotation_errors = _orientation_errors(angles, true_angles, known)
    boxes, true_boxes = boxes[known], true_boxes[known]  # from here on, frames that count

    overlaps = overlap(boxes, true_boxes)
    errors = centre_error(boxes, true_boxes)
    offsets = (centres(boxes) - centres(true_boxes)) / true_boxes[:, 2:]  # in sides of the true box
    normalised_errors = np.hypot(offsets[:, 0], offsets[:, 1])
    # None, and not NaN, where nothing is known: records are JSON
    orientation_error = within_45 = None
    if rotation_errors.size:
        orientation_error = float(rotation_errors.mean())
        within_45 = float((rotation_errors <= 45).mean())
    return Score(
        frames=len(boxes),
        success_curve=_shares(overlaps[:, None] > np.asarray(SUCCESS_THRESHOLDS)),
        precision_curve=_shares(errors[:, None] <= np.asarray(PRECISION_THRESHOLDS)),
        normalised_curve=_shares(normalised_errors[:, None] <= np.asarray(NORMALISED_THRESHOLDS)),
        mean_overlap=float(overlaps.mean()),
        mean_centre_error=float(errors.mean()),
        orientation_error=orientation_error,
        within_45=within_45,
        fps=speed,
    )


def summarise(scores: Mapping[str, Score]) -> Score:
    """Average scores over sequences, each of which counts the same; ``frames`` is their sum.

    Curves are averaged over frames first, then over sequences, and the numbers are read off the
    mean curves. Do not use it to average over seeds: ``frames`` would add up.

    Args:
        scores: Name of a sequence → its score.

    Returns:
        The mean score.

    Raises:
        ValueError: There are none, or an angle or a speed is known for some sequences only.

    >>> perfect = score([[0, 0, 8, 8]] * 2, [[0, 0, 8, 8]] * 2)
    >>> summarise({"Man": perfect, "Couple": perfect}).frames
    4
    """
    if not scores:
        raise ValueError("there is nothing to summarise: give the score of at least one sequence")
    fields: dict[str, Any] = {"frames": 0}
    for one in scores.values():
        fields["frames"] += one.frames
    for name in CURVES:
        curves = [getattr(one, name) for one in scores.values()]
        fields[name] = tuple(np.mean(curves, axis=0).tolist())
    for name in ("mean_overlap", "mean_centre_error", "orientation_error", "within_45", "fps"):
        fields[name] = _mean_of(scores, name)
    return Score(**fields)


def overlap(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the intersection over union of boxes; boxes without area overlap nothing.

    Boxes are upright: this is not the overlap of two rotated rectangles.

    Args:
        a: Boxes (..., 4).
        b: Boxes (..., 4); leading axes are broadcast.

    Returns:
        (...), from 0 to 1; NaN where a box is not known.

    >>> overlap([[0, 0, 2, 2], [1, 0, 2, 2]], [0, 0, 2, 2]).tolist()
    [1.0, 0.3333333333333333]
    """
    a, b = as_boxes(a, "a"), as_boxes(b, "b")
    start_a, sides_a = a[..., :2], a[..., 2:]
    start_b, sides_b = b[..., :2], b[..., 2:]
    start = np.maximum(start_a, start_b)
    end = np.minimum(start_a + sides_a, start_b + sides_b)
    intersection = np.maximum(end - start, 0).prod(-1)  # 0 if they are apart along an axis
    union = sides_a.prod(-1) + sides_b.prod(-1) - intersection
    ratio = intersection / np.where(union == 0, 1, union)
    return np.asarray(np.minimum(ratio, 1))  # rounding could lift it above 1


def centre_error(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the distance in pixels between the centres of boxes.

    Do not compare it across frames of different sizes; :class:`Score` also has it in sides of the
    true box.

    Args:
        a: Boxes (..., 4).
        b: Boxes (..., 4); leading axes are broadcast.

    Returns:
        (...); NaN where a box is not known.

    >>> centre_error([0, 0, 5, 5], [[3, 4, 5, 5], [0, 0, 7, 5]]).tolist()
    [5.0, 1.0]
    """
    difference = centres(as_boxes(a, "a")) - centres(as_boxes(b, "b"))
    return np.asarray(np.hypot(difference[..., 0], difference[..., 1]))


def angle_between(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the angle between two orientations, the short way around the circle.

    Do not use it for the angle by which something has rotated: full turns do not count.

    Args:
        a: Degrees (...).
        b: Degrees (...).

    Returns:
        (...), from 0 to 180 degrees; NaN where an orientation is not known.

    >>> angle_between([350, 10, 90], [10, 350, -90]).tolist()
    [20.0, 20.0, 180.0]
    """
    difference = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    return np.asarray(np.abs((difference + 180) % 360 - 180))


def frame_overlaps(predicted: ArrayLike, truth: ArrayLike) -> Array:
    """Return the overlap (T,) of each frame; NaN where :func:`score` leaves the frame out."""
    boxes, true_boxes, known = _frames(predicted, truth)
    return np.where(known, overlap(boxes, true_boxes), np.nan)


def _frames(predicted: ArrayLike, truth: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return the boxes, with the first true one, the true boxes, and which of these are known."""
    boxes = as_boxes(predicted, "predicted")
    true_boxes = as_boxes(truth, "truth")
    for name, given in (("predicted", boxes), ("truth", true_boxes)):
        if given.ndim != 2 or not len(given):
            raise ValueError(f"{name} must be (T, 4), a row for each frame; got shape {given.shape}")
    _check_length("predicted", len(boxes), "truth", len(true_boxes))
    nan = np.isnan(boxes).any(1)
    if nan.any():
        raise ValueError(
            f"predicted has NaN{in_frame(nan)}: a tracker gives a box for every frame (repeat its last one)"
        )
    # a tracker is given the first box, so what it returned for that frame does not count
    boxes = np.concatenate([true_boxes[:1], boxes[1:]])
    return boxes, true_boxes, has_area(true_boxes)


def _orientation_errors(
    angles: ArrayLike | None, true_angles: ArrayLike | None, known: NDArray[np.bool_]
) -> Array:
    """Return degrees, 0 to 180, for each frame with a true box and a true angle."""
    given = true = None
    if angles is not None:
        given = _one_per_frame(angles, "angles", len(known))
    if true_angles is not None:
        true = _one_per_frame(true_angles, "true_angles", len(known), allow_nan=True)
    if given is None or true is None:
        return np.empty(0)
    errors = angle_between(given, true)
    errors[0] *= 0  # the first frame counts as correct; its NaN, if its angle is not known, stays
    return np.asarray(errors[known & ~np.isnan(true)])


def _speed(seconds: ArrayLike | None, frames: int) -> float | None:
    if seconds is None:
        return None
    each = _one_per_frame(seconds, "seconds", frames)
    if (each < 0).any() or not each.sum() > 0:
        raise ValueError("seconds must say how long each frame took: none negative, and not all 0")
    return float(frames / each.sum())


def _one_per_frame(values: ArrayLike, name: str, frames: int, allow_nan: bool = False) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be (T,), a number for each frame; got shape {array.shape}")
    _check_length(name, len(array), "truth", frames)
    bad = np.isinf(array)
    if not allow_nan:
        bad |= np.isnan(array)
    if bad.any():
        raise ValueError(f"{name} has a value that is not finite{in_frame(bad)}")
    return array


def _check_length(name: str, count: int, other: str, needed: int) -> None:
    if count == needed:
        return
    hint = f"{name}[:{needed}]"
    if count < needed:
        hint = f"{other}[:{count}]"
    raise ValueError(
        f"{name} has {count} frames and {other} {needed}: they must be of the same frames (maybe {hint})"
    )


def _shares(hits: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return the share of frames (T, thresholds) that hit, for each threshold."""
    return tuple(hits.mean(0).tolist())


def _mean_of(scores: Mapping[str, Score], field: str) -> float | None:
    values, lacking = [], []
    for name, one in scores.items():
        value = getattr(one, field)
        if value is None:
            lacking.append(name)
        else:
            values.append(value)
    if not values:
        return None
    if lacking:  # a mean over some sequences could not be compared with any other
        raise ValueError(
            f"{field} is known for some sequences but not for {', '.join(lacking)}: "
            f"score all with it, or none"
        )
    return float(np.mean(values))
