"""The tracker: a network, a first frame and its box → the box in each next frame.

An update has four steps:

    1. cut out what surrounds the last box, at several sizes
    2. correlate its features with those of every template
    3. the highest peak of all gives the size, and the template, which gives the angle
    4. the highest position of that response, weighed with a window, gives the new centre
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..groups.families import rotation
from .data.boxes import Array, as_boxes, boxes_at, centres, has_area, hulls, rotated_corners
from .data.crops import Image, check_image, crop, exemplar_side, mean_colour
from .settings import settings_for
from .siamfc_network import respond_all

__all__ = ["BoxShape", "Tracker", "Update"]

BoxShape = Literal["upright", "hull"]
"""upright: the first box, moved and scaled; hull: the upright box around it, rotated as found."""
MIN_SIDE = 10
"""Pixels below which the shorter side of a target does not shrink, as in pysot."""
MIN_SCALE, MAX_SCALE = 0.2, 5.0
"""How much smaller and larger than at first a target can become, as in the first SiamFC."""
ROUNDING = 1e-6
"""A response that varies by less, as a share of its largest value, is constant."""


class _BoxScoreAngle(NamedTuple):
    box: Array
    """(4,): x, y, w, h; x and y are counted from 0."""
    score: float
    """The network's response there as a probability, 0 to 1."""
    angle: float
    """Degrees of rotation since the first frame, counter-clockwise, 0 to 360."""


class Update(_BoxScoreAngle):
    """Where the target is in a frame; ``box, score, angle = update`` unpacks it."""

    corners: Array
    """(4, 2): x and y of the corners of the rotated box, first the one that was upper left in the
    first frame, then clockwise. They are not unpacked with the rest."""


class Tracker:
    """Follows a target through frames.

    Call ``init(image, box)`` with the first frame, and ``update(image)`` with each next one.

    The template is ``rotations`` pictures of the target, rotated by 0, 360 / rotations, … degrees;
    their corners show what the frame shows there. Every template is compared with every size of the
    search picture, and the highest peak gives both the angle and the size.

    As in SiamFC, the box is upright and keeps its aspect ratio whatever the angle. With
    ``box="hull"`` it is the upright box around that box rotated by the angle that was found, as the
    true boxes of Rot-OTB are. The centre stays in the frame, the size of the unrotated box between
    1/5 and 5 times the first one; its shorter side does not shrink below 10 pixels, and no side of
    it grows beyond the frame.

    Do not expect it to find a target that has left the frame: it only searches near the last box.

    Args:
        model: Maps images (B, 3, H, W) in [0, 1] to features, and has a ``stride``, such as
            :func:`ien.tracking.siamfc`. It is put, and left, in eval mode.
        rotations: Number of angles that are tried; 1 for plain SiamFC.
        box: ``"upright"``, or ``"hull"`` for a box that follows the angle. Do not use ``"hull"``
            where the true boxes keep their shape while the target rotates.
        **settings: Any of :class:`ien.tracking.Settings`, in place of what was published for the
            model's ``backbone``.

    Raises:
        ValueError: The model has no stride, a setting does not exist or is out of range, or a hull
            is asked of a tracker that tries a single angle.

    >>> Tracker(ien.tracking.siamfc(width=1 / 16), rotations=4, scales=5).settings.scales
    5
    """

    def __init__(
        self, model: nn.Module, rotations: int = 1, box: BoxShape = "upright", **settings: float
    ) -> None:
        stride = getattr(model, "stride", None)
        if not isinstance(stride, int) or stride < 1:
            raise ValueError(
                f"a tracker needs a model with a stride in whole pixels, such as "
                f'ien.models.create("siamfc"); {type(model).__name__}.stride is {stride!r}'
            )
        if not isinstance(rotations, int | np.integer) or rotations < 1:
            raise ValueError(f"rotations must be the number of angles to try, 1 or more; got {rotations!r}")
        if box not in get_args(BoxShape):
            raise ValueError(f"box must be {' or '.join(get_args(BoxShape))}; got {box!r}")
        if box == "hull" and rotations == 1:
            raise ValueError(
                'box="hull" follows the angle, and this tracker tries a single one: give rotations=4 '
                '(ien track: --templates 4), or box="upright"'
            )
        self.model = model
        self.rotations: int = int(rotations)
        self.box: BoxShape = box
        self.settings = settings_for(getattr(model, "backbone", None), settings)
        search, exemplar = self.settings.search, self.settings.exemplar
        if (search - exemplar) % (2 * stride):
            raise ValueError(
                f"search minus exemplar must be a multiple of {2 * stride}, twice the stride of the model, "
                f"so that the response has a middle; got {search} and {exemplar}"
            )
        self._stride = stride
        self._target: _Target | None = None

    @torch.inference_mode()
    def init(self, image: Image, box: ArrayLike) -> None:
        """Take what is in the box as the target, and forget any earlier one.

        Args:
            image: The first frame, (H, W, 3) uint8 RGB.
            box: x, y, w, h in pixels; x and y are counted from 0.
        """
        self._target = None  # if the box is refused, no update may follow the earlier target
        check_image(image)
        first_box = _checked_box(image, box)
        sides = first_box[2:]
        frame = np.array(image.shape[1::-1])
        # a target that starts below or above a limit may keep its size
        smallest = min(1.0, MIN_SIDE / sides.min())
        largest = max(1.0, (frame / sides).min())
        target = _Target(
            frame=frame,
            sides=sides,
            exemplar_side=float(exemplar_side(first_box, self.settings.context)),
            scale_limits=(max(MIN_SCALE, smallest), min(MAX_SCALE, largest)),
            fill=mean_colour(image),
            centre=centres(first_box),
        )
        target.templates = self._templates(image, target)
        self._target = target

    @torch.inference_mode()
    def update(self, image: Image) -> Update:
        """Find the target in the next frame, which must have the size of the first.

        Args:
            image: The frame, (H, W, 3) uint8 RGB.

        Returns:
            The box, the score and the angle.
        """
        target = self._target
        if target is None:
            raise RuntimeError("call init(image, box) with the first frame before update")
        check_image(image)
        size = np.array(image.shape[1::-1])
        if size.tolist() != target.frame.tolist():
            raise ValueError(
                f"a frame of {size[0]}×{size[1]} pixels came after a first one of "
                f"{target.frame[0]}×{target.frame[1]}: resize it, or call init again"
            )

        # 1. the surroundings at several sizes
        options = self.settings
        exponents = np.arange(options.scales) - options.scales // 2  # -1, 0, 1
        factors = float(options.scale_step) ** exponents
        sides = target.scale * target.exemplar_side * factors * (options.search / options.exemplar)
        pictures = crop(image, target.centre, sides, options.search, target.fill)

        # 2. to 4. the responses, the best of them, and its highest position
        responses = self._responses(target, pictures)
        template, size_index = self._best(responses, target.template)
        response = responses[template, size_index]
        row, column = _peak(response, options.window)
        score = float(torch.sigmoid(response[row, column].double()))

        # from positions of the fine response to pixels of the picture, then to pixels of the frame
        middle = (len(response) - 1) / 2
        fine_offset = np.array([column, row]) - middle
        offset = fine_offset / options.upsample * self._stride
        moved = target.centre + offset * sides[size_index] / options.search
        target.centre = np.clip(moved, 0, target.frame - 1)

        # a size that was found once may be an accident: follow it by a part only
        growth = 1 + options.scale_damping * (factors[size_index] - 1)
        target.scale = float(np.clip(target.scale * growth, *target.scale_limits))
        target.template = template
        return self._update(target, score)

    def _update(self, target: _Target, score: float) -> Update:
        angle = target.template * 360 / self.rotations
        box = target.box
        if self.box == "hull":
            box = hulls(target.box[None], np.array([angle]))[0]
        update = Update(box, score, angle)
        update.corners = rotated_corners(target.box, angle)
        return update

    def _templates(self, image: Image, target: _Target) -> Tensor:
        """Return the features of the target at all angles: (rotations, N, h, w)."""
        size = self.settings.exemplar
        side = target.exemplar_side
        if self.rotations == 1:
            return self._features(crop(image, target.centre, [side], size, target.fill))

        # cut out a wider picture, rotate it, and keep its middle: the corners then show the frame
        diagonal = size * math.sqrt(2)
        margin = math.ceil((diagonal - size) / 2) + 1
        wide = size + 2 * margin
        picture = crop(image, target.centre, [side * wide / size], wide, target.fill)
        views = picture.expand(self.rotations, -1, -1, -1)  # (rotations, 3, wide, wide)
        rotated = rotation(self.rotations).act(views, torch.arange(self.rotations))
        middles = rotated[..., margin:-margin, margin:-margin]  # (rotations, 3, size, size)
        return self._features(middles)

    def _features(self, pictures: Tensor) -> Tensor:
        self.model.eval()  # the caller may have trained it in between
        like = next(self.model.parameters(), pictures)  # a model need not have parameters
        pictures = pictures.to(like.device, like.dtype).contiguous()
        return _check_finite(self.model(pictures))

    def _responses(self, target: _Target, pictures: Tensor) -> Tensor:
        """Return the fine response of every template at every size: (rotations, scales, m, m)."""
        options = self.settings
        coarse = respond_all(target.templates, self._features(pictures)).cpu().float()
        needed = (options.search - options.exemplar) // self._stride + 1
        if coarse.shape[2:] != (needed, needed):
            raise ValueError(
                f"the model has a stride of {self._stride}, so its response to {options.search} pixels "
                f"should be {needed}×{needed}; it is {coarse.shape[2]}×{coarse.shape[3]}"
            )
        upsample = _upsampling(needed, options.upsample)  # (m, n)
        return _check_finite(upsample @ coarse @ upsample.T)

    def _best(self, responses: Tensor, last_template: int) -> tuple[int, int]:
        """Return the template and the size with the highest peak.

        Among equal peaks, the one that changes least wins: nothing changes where there is nothing
        to see.
        """
        options = self.settings
        peaks = responses.amax((2, 3)).double().numpy()  # (rotations, scales)
        size_steps = np.abs(np.arange(options.scales) - options.scales // 2)
        # as published where a peak is above 0; below 0, a factor would be a reward
        penalty = (1 - options.scale_penalty) * np.abs(peaks)
        peaks = peaks - penalty * (size_steps > 0)

        # steps to the last angle, the short way around the circle
        half = self.rotations / 2
        difference = np.arange(self.rotations) - last_template
        angle_steps = np.abs((difference + half) % self.rotations - half)
        change = size_steps * self.rotations + angle_steps[:, None]  # (rotations, scales)
        change = np.where(peaks == peaks.max(), change, np.inf)
        template, size_index = np.unravel_index(int(change.argmin()), change.shape)
        return int(template), int(size_index)


@dataclass
class _Target:
    """What the first frame says about the target, and where it was last."""

    frame: Array
    """Columns and rows of all frames."""
    sides: Array
    """(2,): width and height in the first frame."""
    exemplar_side: float
    """Side in the first frame of the square that its picture shows."""
    scale_limits: tuple[float, float]
    fill: Array
    """(3,): colour of what lies outside of the frame."""
    centre: Array
    """(2,): x and y, last."""
    scale: float = 1.0
    """Last size, as a factor on the first."""
    template: int = 0
    """Index of the template that fitted last."""
    templates: Tensor = None  # type: ignore[assignment]  # set by Tracker.init, once there is a target
    """(rotations, N, h, w): features of the target at all angles."""

    @property
    def box(self) -> Array:
        """(4,): as it would be at 0°."""
        return boxes_at(self.centre, self.sides * self.scale)


def _checked_box(image: Image, box: ArrayLike) -> Array:
    given = as_boxes(box, "box")
    if given.shape != (4,) or not has_area(given):
        raise ValueError(
            f"a tracker starts from one box x, y, w, h with an area and without NaN; got {given.tolist()}"
        )
    rows, columns = image.shape[:2]
    frame = np.array([columns, rows])
    start, sides = given[:2], given[2:]
    overlap = np.minimum(start + sides, frame) - np.maximum(start, 0)
    if (overlap <= 0).any():
        problem = "lies outside"
    elif (sides > 2 * frame).any():
        problem = "is more than twice as large as"
    else:
        return given
    raise ValueError(
        f"the box {given.tolist()} {problem} the frame of {columns}×{rows} pixels: "
        f"give x, y, w, h, with x and y counted from 0 at the upper left"
    )


def _check_finite(maps: Tensor) -> Tensor:
    """Return the maps unless they have a NaN, which would end up in a box or a score."""
    if not bool(maps.isfinite().all()):
        raise ValueError("the network's features are not finite: its weights are damaged; train it again")
    return maps


@lru_cache(maxsize=8)
def _upsampling(count: int, factor: int) -> Tensor:
    """Return the matrix (m, n) that makes n values m = (n - 1) · factor + 1, bicubically.

    The n values stay where they are, every ``factor``-th of the m. Published code makes n · factor
    values, whose middle falls between two of them, or treats these as if they were those.
    """
    identity = torch.eye(count)[None, None]  # (1, 1, n, n)
    size = ((count - 1) * factor + 1, count)
    return F.interpolate(identity, size=size, mode="bicubic", align_corners=True)[0, 0]


@lru_cache(maxsize=8)
def _hann_window(count: int) -> Tensor:
    """Return the outer product of two Hann windows, with sum 1: (count, count)."""
    window = torch.from_numpy(np.hanning(count)).float()
    return torch.outer(window, window) / window.sum() ** 2


def _peak(response: Tensor, window_weight: float) -> tuple[int, int]:
    """Return the row and column of the highest value of

        (1 - window_weight) · response + window_weight · Hann window,

    both brought to minimum 0 and sum 1, or the middle if the response is constant.
    """
    lowest, highest = float(response.min()), float(response.max())
    count = len(response)
    if highest - lowest <= ROUNDING * max(abs(lowest), abs(highest)):
        return count // 2, count // 2
    relief = response - lowest
    relief = relief / relief.sum()
    combined = (1 - window_weight) * relief + window_weight * _hann_window(count)
    return divmod(int(combined.argmax()), count)
