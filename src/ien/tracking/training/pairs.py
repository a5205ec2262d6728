"""Pairs of an exemplar and a search image, drawn from clips.

What is drawn depends on the seed, the epoch and the index of the pair, and on nothing else: neither
the number of workers nor a resumed run changes it.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..._files import generator
from ...data.augment import rotate
from ...training.distributed import Processes
from ..data.boxes import centres
from ..data.clip import Array, Clip, usable
from ..data.crops import crop, exemplar_side
from ..data.sets import pretraining_clips
from .config import TrackingConfig

__all__ = ["EXEMPLAR", "SEARCH", "Draw", "PairBatch", "Pairs", "load_batches", "make_pairs"]

EXEMPLAR, SEARCH = 127, 239
"""Pixels to a side of the two pictures.

Published: 255 pixels around the target, stretched; the middle 247 of these; 239 at a random
place."""
MAX_STRETCH = 0.05
"""A picture is made larger or smaller by at most this share."""
MAX_SHIFT = 4
"""The most pixels by which a picture is moved, either way: 239 of 247 are kept."""
MAX_APART = 100
"""The frames of a pair are closer than this."""
FILTERS: dict[str, dict[str, Any]] = {
    "published": {},
    "wide": {"sides": (10, 500), "shares": (0.01, 0.75)},
}
"""Which frames to train on: arguments of :func:`ien.tracking.data.clip.usable`."""
MAX_WORKERS = {"cuda": 8, "cpu": 2}
"""Worker processes that decode frames, by the kind of device, unless the run asks for others."""
UNCHANGED = (1.0, 1.0, 1.0)
"""Factors of red, green and blue."""


class PairBatch(NamedTuple):
    """The pictures of a process's share of a batch: float32 in [0, 1]."""

    exemplars: Tensor
    """(n, 3, 127, 127)."""
    searches: Tensor
    """(n, 3, 239, 239)."""


class Draw(NamedTuple):
    """What is drawn for a pair; where there are two values, the exemplar's comes first."""

    sequence: int
    frames: tuple[int, int]
    """The frame of the exemplar is the earlier one."""
    stretches: tuple[float, float]
    """Factors."""
    shifts: tuple[tuple[int, int], tuple[int, int]]
    """In pixels of the picture, along x and y."""
    angle: float = 0.0
    """In degrees, counter-clockwise, for both pictures."""
    colours: tuple[tuple[float, ...], tuple[float, ...]] = (UNCHANGED, UNCHANGED)
    """Factors of red, green and blue."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of each epoch; pictures are made when they are asked for."""

    clips: Sequence[Clip]
    frames: Sequence[Array]
    """For each clip, the frames to train on, in rising order."""
    count: int
    """Pairs in an epoch."""
    batch_size: int
    seed: int
    processes: Processes
    turn: bool = False
    """Whether pairs are rotated."""
    colour: float = 0.0
    """How far factors of colours are from 1, at most."""
    generated: Pairs | None = None
    """The pairs of the first epochs, as many in each, if they come from generated clips."""
    generated_epochs: int = 0
    """How many epochs these are."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self.count / self.batch_size)

    def batch(self, step: int) -> range:
        """Return the indices of the pairs in a batch; batches differ by at most one pair."""
        size, longer = divmod(self.count, self.steps)
        first = step * size + min(step, longer)
        if step < longer:
            size += 1
        return range(first, first + size)

    def draw(self, epoch: int, index: int) -> Draw:
        """Draw the pair of this index.

        All sequences are taken in random order, and again until there are enough pairs.
        """
        round_, position = divmod(index, len(self.clips))
        order_rng = generator(self.seed, "sequences", epoch, round_)
        order = torch.randperm(len(self.clips), generator=order_rng)
        sequence = int(order[position])
        frames = self.frames[sequence]
        rng = generator(self.seed, "pair", epoch, index)

        # Uniform over all pairs of frames: number them by their first frame, then by their second.
        # Those with first frame i are numbered up to ends[i].
        ends = _num_partners(frames).cumsum()
        chosen = int(torch.randint(int(ends[-1]), (), generator=rng))
        first = int(np.searchsorted(ends, chosen, side="right"))
        end_of_partners = int(np.searchsorted(frames, frames[first] + MAX_APART))
        second = end_of_partners - (int(ends[first]) - chosen)

        in_range = 2 * torch.rand(2, generator=rng) - 1  # from -1 to 1
        stretch_z, stretch_x = (1 + MAX_STRETCH * in_range).tolist()
        shifts = torch.randint(2 * MAX_SHIFT + 1, (2, 2), generator=rng) - MAX_SHIFT
        (a, b), (c, d) = shifts.tolist()
        both_frames = (int(frames[first]), int(frames[second]))
        # drawn from their own purpose, so that switching one on leaves the others as they were
        angle = 0.0
        if self.turn:
            angle = 360 * float(torch.rand((), generator=generator(self.seed, "turn", epoch, index)))
        colours = (UNCHANGED, UNCHANGED)
        if self.colour:
            drawn = torch.rand(2, 3, generator=generator(self.seed, "colour", epoch, index))
            factors = (1 + self.colour * (2 * drawn - 1)).tolist()
            colours = (tuple(factors[0]), tuple(factors[1]))
        return Draw(sequence, both_frames, (stretch_z, stretch_x), ((a, b), (c, d)), angle, colours)

    def pictures(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Return the exemplar (3, 127, 127) and the search image (3, 239, 239) of a pair."""
        clip = self.clips[draw.sequence]
        frame_z, frame_x = draw.frames
        stretch_z, stretch_x = draw.stretches
        shift_z, shift_x = draw.shifts
        colour_z, colour_x = draw.colours
        exemplar = _picture(clip, frame_z, EXEMPLAR, stretch_z, shift_z, draw.angle)
        search = _picture(clip, frame_x, SEARCH, stretch_x, shift_x, draw.angle)
        return _coloured(exemplar, colour_z), _coloured(search, colour_x)

    def __getitem__(self, place: tuple[int, int]) -> PairBatch | Exception:
        """Return this process's share of the batch at (epoch, step), or the error in its way."""
        epoch, step = place
        if self.generated is not None and epoch < self.generated_epochs:
            return self.generated[place]
        batch = self.batch(step)
        mine = batch[self.processes.share(len(batch))]
        if not mine:  # fewer pairs than processes: take part with one, which does not count
            mine = batch[:1]
        exemplars, searches = [], []
        try:
            for index in mine:
                exemplar, search = self.pictures(self.draw(epoch, index))
                exemplars.append(exemplar)
                searches.append(search)
        except (ValueError, OSError, ImportError) as error:
            return error  # raised in a worker, its message would contain the traceback
        return PairBatch(torch.stack(exemplars), torch.stack(searches))


def make_pairs(config: TrackingConfig, clips: Sequence[Clip], processes: Processes) -> Pairs:
    """Return the pairs of a run, from all sequences with two fit frames that are near enough.

    Those of the first ``pretrain_epochs`` epochs come from generated clips instead.

    Raises:
        ValueError: There is no such sequence.
    """
    data = config.data
    pairs = _pairs_of(config, clips, data.pairs, processes)
    if data.pretrain_epochs == 0:
        return pairs
    made = pretraining_clips(config.seed_of_data, data.pretrain_clips)
    # as many pairs, so that all epochs have the same number of steps
    generated = _pairs_of(config, made, pairs.count, processes)
    return replace(pairs, generated=generated, generated_epochs=data.pretrain_epochs)


def load_batches(
    pairs: Pairs, config: TrackingConfig, epoch: int, step: int
) -> Generator[PairBatch, None, None]:
    """Yield the batches of the rest of a run from there on, made ahead of time by workers."""
    first = epoch * pairs.steps + step
    last = config.schedule.epochs * pairs.steps
    places = [divmod(index, pairs.steps) for index in range(first, last)]  # (epoch, step)
    on_gpu = config.machine.device.startswith("cuda")
    loader: DataLoader[Any] = DataLoader(
        pairs,  # type: ignore[arg-type]  # anything that can be indexed works
        batch_size=None,
        sampler=places,
        num_workers=_num_workers(config, pairs.processes.count),
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # otherwise it would draw from the global one
        pin_memory=on_gpu,
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _pairs_of(
    config: TrackingConfig, clips: Sequence[Clip], count: int | None, processes: Processes
) -> Pairs:
    """Return ``count`` pairs of these clips for each epoch; None for one from each sequence."""
    bounds = FILTERS[config.data.filter]
    chosen, frames = [], []
    for clip in clips:
        fit = np.flatnonzero(usable(clip, **bounds))
        if _num_partners(fit).any():
            chosen.append(clip)
            frames.append(fit)
    if not chosen:
        raise ValueError(
            f"none of {len(clips)} sequences has two frames less than {MAX_APART} apart that pass the "
            f"filter {config.data.filter}: use more sequences, or --set filter=wide"
        )
    if count is None:
        count = len(chosen)
    return Pairs(
        chosen,
        frames,
        count,
        config.schedule.batch_size,
        config.seed,
        processes,
        config.data.turn,
        config.data.colour,
    )


def _num_partners(frames: Array) -> Array:
    """Return for each frame how many later ones are less than ``MAX_APART`` frames away."""
    end_of_partners = np.searchsorted(frames, frames + MAX_APART)
    own_position = np.arange(len(frames))
    return end_of_partners - own_position - 1


def _picture(
    clip: Clip, frame: int, size: int, stretch: float, shift: tuple[int, int], angle: float
) -> Tensor:
    """Cut out the target with what is around it, stretched, moved and rotated: (3, size, size).

    Unless it is rotated, the picture is read from the frame in one resampling. It shows the frame
    up to its border. The published code resamples twice, and fills what a smaller picture lacks
    with its mean colour.
    """
    box = clip.boxes[frame]
    step = float(exemplar_side(box)) / EXEMPLAR / stretch  # pixels of the frame for one of the picture
    centre = centres(box) + step * np.array(shift)
    if angle == 0:
        return crop(clip.frame(frame), centre, [step * size], size)[0]
    # a square as wide as the diagonal, so that its rotated middle shows what the frame shows
    border = math.ceil((math.sqrt(2) - 1) / 2 * size)
    wide = size + 2 * border
    picture = rotate(crop(clip.frame(frame), centre, [step * wide], wide), torch.tensor([angle]))
    return picture[0, :, border : border + size, border : border + size]


def _coloured(picture: Tensor, factors: tuple[float, ...]) -> Tensor:
    """Multiply the channels of a picture (3, H, W) in [0, 1]."""
    if factors == UNCHANGED:
        return picture
    return (picture * torch.tensor(factors).view(3, 1, 1)).clamp(0, 1)


def _num_workers(config: TrackingConfig, processes: int) -> int:
    if config.machine.workers is not None:
        return config.machine.workers
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    free = max(0, cores // processes - 1)  # one core trains
    kind = "cpu"
    if config.machine.device.startswith("cuda"):
        kind = "cuda"
    return min(MAX_WORKERS[kind], free)


def _start_worker(worker: int) -> None:
    """Leave Ctrl-C, which reaches all processes, to the one that trains, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):  # elsewhere torch's own check, every few seconds, must do
        set_death_signal = 1
        # an orphan would keep holding the lock of the run folder
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
