"""The tracker: from a network, a frame and a box to a box, a score and an angle for every next frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..groups.families import rotation
from .data.boxes import Array, as_boxes
from .data.crops import Image, check_image, crop, exemplar_side, mean_colour
from .settings import settings_for
from .siamfc_network import respond_all

__all__ = ["Tracker", "Update"]

SMALLEST = 10
"""Pixels below which the shorter side of a target does not shrink; pysot's limit."""
LEAST, MOST = 0.2, 5.0
"""How much smaller and larger than at first a target becomes; limits of the first SiamFC, in Matlab."""
FLAT = 1e-6
"""A response with less relief than this, as a part of its largest value, is rounding error."""


class Update(NamedTuple):
    """Where the target is in a frame."""

    box: Array
    """(4,): x, y, w, h, counted from 0."""
    score: float
    """The network's response there as a probability, 0 to 1."""
    angle: float
    """Degrees, 0 to 360, by which the target is turned since the first frame, counter-clockwise."""


class Tracker:
    """Follows a target through frames: ``init(image, box)``, then ``update(image)`` for each next frame.

    ``model`` maps images (B, 3, H, W) in [0, 1] to features and has a ``stride``; see
    :func:`ien.tracking.siamfc`. Its ``backbone`` says which settings were published for it
    (:data:`ien.tracking.settings.SETTINGS`); any of them can be given by name. The model is put, and left,
    in eval mode.

    With ``rotations=n`` the template is n pictures of the target, turned by 0, 360 / n, … degrees, with what
    the frame shows in their corners. The highest of all peaks, over turns and sizes, says the angle and the
    size. ``max_turn`` keeps the angle within so many degrees of the last one.

    As in SiamFC the box is upright and keeps the ratio of its sides, whatever the angle: RE-SiamFC says
    nothing else. Its centre stays in the frame. Its size stays within 1/5 and 5 times the first one, its
    shorter side does not shrink below 10 pixels, and none of its sides grows beyond the frame.
    """

    def __init__(
        self, model: nn.Module, rotations: int = 1, max_turn: float | None = None, **settings: float
    ) -> None:
        stride = getattr(model, "stride", None)
        if not isinstance(stride, int) or stride < 1:
            raise ValueError(
                f"a tracker needs a model with a stride in whole pixels, such as "
                f'ien.models.create("siamfc"); {type(model).__name__}.stride is {stride!r}'
            )
        if not isinstance(rotations, int | np.integer) or rotations < 1:
            raise ValueError(f"rotations is how many turns are tried, 1 or more; got {rotations!r}")
        if max_turn is not None and not (rotations > 1 and max_turn >= 360 / rotations):
            raise ValueError(
                f"max_turn is at least one step of the angle, 360 / rotations ({360 / rotations:g}° for "
                f"{rotations}), where rotations is 2 or more; got {max_turn}°"
            )
        self.model = model
        self.rotations: int = int(rotations)
        self.max_turn = max_turn
        self.settings = settings_for(getattr(model, "backbone", None), settings)
        if (self.settings.search - self.settings.exemplar) % (2 * stride):
            raise ValueError(
                f"search less exemplar must be a multiple of {2 * stride}, twice the stride of the model, "
                f"for the response to have a middle; got {self.settings.search} and {self.settings.exemplar}"
            )
        self._stride = stride
        self._target: _Target | None = None

    @torch.inference_mode()
    def init(self, image: Image, box: ArrayLike) -> None:
        """Take what is in ``box`` (x, y, w, h, counted from 0) as the target; forget any earlier one."""
        self._target = None
        check_image(image)
        given = _box_in(image, box)
        centre, sides = given[:2] + (given[2:] - 1) / 2, given[2:]
        side = float(exemplar_side(given, self.settings.context))
        frame = np.array(image.shape[1::-1])
        fewest, most = min(1.0, SMALLEST / sides.min()), max(1.0, (frame / sides).min())
        limits = (max(LEAST, fewest), min(MOST, most))
        target = _Target(frame, sides, side, limits, mean_colour(image), centre)
        target.templates = self._templates(image, target)
        self._target = target

    @torch.inference_mode()
    def update(self, image: Image) -> Update:
        """Find the target in the next frame, which has the size of the first."""
        target = self._target
        if target is None:
            raise RuntimeError("update follows init: call init(image, box) with the first frame")
        check_image(image)
        if (size := np.array(image.shape[1::-1])).tolist() != target.frame.tolist():
            raise ValueError(
                f"a frame of {size[0]}×{size[1]} pixels came after a first one of "
                f"{target.frame[0]}×{target.frame[1]}: resize it, or call init again"
            )
        options = self.settings
        factors = float(options.scale_step) ** (np.arange(options.scales) - options.scales // 2)
        sides = target.scale * target.side * factors * (options.search / options.exemplar)
        pictures = crop(image, target.centre, sides, options.search, target.fill)
        turn, size_index, response = self._best(self._responses(target, pictures), target.turn)
        place = _peak(response, options.window)
        # in pixels of the response, then of the picture, then of the frame
        offset = (np.array(place[::-1]) - (len(response) - 1) / 2) / options.upsample * self._stride
        moved = target.centre + offset * sides[size_index] / options.search
        target.centre = np.clip(moved, 0, target.frame - 1)
        growth = 1 + options.scale_damping * (factors[size_index] - 1)
        target.scale = float(np.clip(target.scale * growth, *target.limits))
        target.turn = turn
        if options.template_rate:
            now = self._templates(image, target).roll(turn, 0)  # the target in it is turned already
            target.templates = torch.lerp(target.templates, now, options.template_rate)
        score = float(torch.sigmoid(response[place].double()))
        return Update(target.box, score, turn * 360 / self.rotations)

    def _templates(self, image: Image, target: _Target) -> Tensor:
        """Features of the target in all turns: (rotations, N, h, w)."""
        size, side = self.settings.exemplar, target.scale * target.side
        if self.rotations == 1:
            return self._features(crop(image, target.centre, [side], size, target.fill))
        margin = math.ceil(size * (math.sqrt(2) - 1) / 2) + 1  # so that a turn brings nothing unknown in
        wide = size + 2 * margin
        picture = crop(image, target.centre, [side * wide / size], wide, target.fill)
        turns = torch.arange(self.rotations)
        turned = rotation(self.rotations).act(picture.expand(self.rotations, -1, -1, -1), turns)
        return self._features(turned[..., margin:-margin, margin:-margin])

    def _features(self, pictures: Tensor) -> Tensor:
        self.model.eval()
        like = next(self.model.parameters(), pictures)
        return _finite(self.model(pictures.to(like.device, like.dtype).contiguous()))

    def _responses(self, target: _Target, pictures: Tensor) -> Tensor:
        """For every turn and size, at every place: (rotations, scales, n, n), upsampled."""
        options = self.settings
        raw = respond_all(target.templates, self._features(pictures)).cpu().float()
        needed = (options.search - options.exemplar) // self._stride + 1
        if raw.shape[2:] != (needed, needed):
            raise ValueError(
                f"the model has a stride of {self._stride}, so the response to {options.search} pixels "
                f"should be {needed}×{needed}; it is {raw.shape[2]}×{raw.shape[3]}"
            )
        finer = _finer(needed, options.upsample)
        return _finite(finer @ raw @ finer.T)

    def _best(self, responses: Tensor, last: int) -> tuple[int, int, Tensor]:
        """The turn and the size with the highest peak, and their response.

        Of equal ones that which changes least: nothing changes where there is nothing to see.
        """
        options = self.settings
        peaks = responses.amax((2, 3)).double().numpy()
        apart = np.abs(np.arange(options.scales) - options.scales // 2)
        # as published where a peak is above 0; below, a factor would be a reward
        peaks = peaks - (1 - options.scale_penalty) * np.abs(peaks) * (apart > 0)
        half = self.rotations / 2
        turned = np.abs((np.arange(self.rotations) - last + half) % self.rotations - half)
        if self.max_turn is not None:
            peaks[turned * 360 / self.rotations > self.max_turn + 1e-9] = -np.inf  # 3 · 360 / 7 is rounded
        change = np.where(peaks == peaks.max(), apart * self.rotations + turned[:, None], np.inf)
        turn, size_index = np.unravel_index(int(change.argmin()), change.shape)
        return int(turn), int(size_index), responses[int(turn), int(size_index)]


@dataclass
class _Target:
    """What is known of the target: the first frame's part, and what changes."""

    frame: Array
    """Columns and rows."""
    sides: Array
    """(2,): width and height in the first frame."""
    side: float
    """Of its exemplar, in the first frame."""
    limits: tuple[float, float]
    """Of the scale."""
    fill: Array
    centre: Array
    scale: float = 1.0
    turn: int = 0
    templates: Any = None

    @property
    def box(self) -> Array:
        sides = self.sides * self.scale
        return np.concatenate([self.centre - (sides - 1) / 2, sides])


def _box_in(image: Image, box: ArrayLike) -> Array:
    given, (rows, columns) = as_boxes(box, "box"), image.shape[:2]
    if given.shape != (4,) or not np.isfinite(given).all() or not (given[2:] > 0).all():
        raise ValueError(
            f"a tracker starts with one box x, y, w, h of some area and without NaN; got {given.tolist()}"
        )
    inside = np.minimum(given[:2] + given[2:], [columns, rows]) - np.maximum(given[:2], 0)
    if (inside <= 0).any() or (given[2:] > 2 * np.array([columns, rows])).any():
        wrong = "is outside of" if (inside <= 0).any() else "is more than twice as large as"
        raise ValueError(
            f"the box {given.tolist()} {wrong} the frame of {columns}×{rows} pixels: "
            f"give x, y, w, h, with x and y counted from 0 at the frame's upper left"
        )
    return given


def _finite(maps: Tensor) -> Tensor:
    """As they are: of a NaN among them would come a NaN in a box, or a score."""
    if not bool(maps.isfinite().all()):
        raise ValueError("the network's features are not finite: its weights are damaged; train it again")
    return maps


@lru_cache(maxsize=8)
def _finer(count: int, factor: int) -> Tensor:
    """(m, n): what turns n values into m = (n - 1) · factor + 1, bicubically; every so many of them stay.

    Published code makes n · factor of them, between which the middle falls, or takes these for those.
    """
    unit = torch.eye(count)[None, None]
    size = ((count - 1) * factor + 1, count)
    return F.interpolate(unit, size=size, mode="bicubic", align_corners=True)[0, 0]


@lru_cache(maxsize=8)
def _hann(count: int) -> Tensor:
    one = torch.from_numpy(np.hanning(count)).float()
    return torch.outer(one, one) / one.sum() ** 2


def _peak(response: Tensor, window: float) -> tuple[int, int]:
    """Row and column where response and window together are highest; the middle where nothing shows."""
    lowest, highest = float(response.min()), float(response.max())
    count = len(response)
    if highest - lowest <= FLAT * max(abs(lowest), abs(highest)):
        return count // 2, count // 2
    relief = response - lowest
    both = (1 - window) * (relief / relief.sum()) + window * _hann(count)
    return divmod(int(both.argmax()), count)
