"""Pairs: from clips to batches of exemplars and searches; what is drawn depends on seed, epoch and index."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..._files import generator
from ...training.distributed import Processes
from ..data.clip import Array, Clip, usable
from ..data.crops import crop, exemplar_side
from .config import TrackingConfig

__all__ = ["EXEMPLAR", "SEARCH", "Draw", "Pairs", "Shown", "loaded", "pairs_of"]

EXEMPLAR, SEARCH = 127, 239
"""Pixels of the pictures. Published: 255 around the target, stretched, 247 of its middle, 239 of these."""
STRETCH = 0.05
"""By how much a picture is made larger or smaller, at most."""
SHIFT = 4
"""By how many pixels it is moved, at most: 239 of 247."""
MAX_APART = 100
"""The frames of a pair are fewer than so many apart."""
FILTERS: dict[str, dict[str, Any]] = {"published": {}, "wide": {"sides": (10, 500), "shares": (0.01, 0.75)}}


class Shown(NamedTuple):
    """What a network sees of a process's share of a batch: float32 in [0, 1]."""

    exemplars: Tensor
    """(n, 3, 127, 127)."""
    searches: Tensor
    """(n, 3, 239, 239)."""


class Draw(NamedTuple):
    """What is drawn for a pair; of two values the first is the exemplar's and the second the search's."""

    sequence: int
    frames: tuple[int, int]
    """The exemplar's comes first in the sequence."""
    stretches: tuple[float, float]
    """Factors."""
    shifts: tuple[tuple[int, int], tuple[int, int]]
    """In pixels of the picture, along x and y."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of each epoch; one of them, or a batch of pictures, is made when it is asked for."""

    clips: Sequence[Clip]
    frames: Sequence[Array]
    """Of each clip those to train on, rising."""
    count: int
    """Pairs in an epoch."""
    batch_size: int
    seed: int
    processes: Processes

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self.count / self.batch_size)

    def batch(self, step: int) -> range:
        """The pairs in a batch: as many in each as in any other, or one more."""
        longer, size = self.count % self.steps, self.count // self.steps
        first = step * size + min(step, longer)
        return range(first, first + size + (step < longer))

    def draw(self, epoch: int, index: int) -> Draw:
        """The ``index``-th pair: all sequences in random order, and again until there are enough pairs."""
        turn, place = divmod(index, len(self.clips))
        order = torch.randperm(len(self.clips), generator=generator(self.seed, "sequences", epoch, turn))
        sequence, rng = int(order[place]), generator(self.seed, "pair", epoch, index)
        frames = self.frames[sequence]
        # uniform over all pairs: those of which a frame is the first one end at its place in this sum
        ends = _partners(frames).cumsum()
        chosen = int(torch.randint(int(ends[-1]), (), generator=rng))
        first = int(np.searchsorted(ends, chosen, side="right"))
        second = int(np.searchsorted(frames, frames[first] + MAX_APART)) - (int(ends[first]) - chosen)
        low, high = (1 + STRETCH * (2 * torch.rand(2, generator=rng) - 1)).tolist()
        (a, b), (c, d) = (torch.randint(2 * SHIFT + 1, (2, 2), generator=rng) - SHIFT).tolist()
        return Draw(sequence, (int(frames[first]), int(frames[second])), (low, high), ((a, b), (c, d)))

    def pictures(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Exemplar (3, 127, 127) and search (3, 239, 239) of a pair."""
        clip = self.clips[draw.sequence]
        one, other = (
            _picture(clip, *settings)
            for settings in zip(draw.frames, (EXEMPLAR, SEARCH), draw.stretches, draw.shifts, strict=True)
        )
        return one, other

    def __getitem__(self, place: tuple[int, int]) -> Shown | Exception:
        """This process's share of the batch at a place (epoch, step), or why there is none."""
        epoch, step = place
        batch = self.batch(step)
        # fewer pairs than processes: take part with one, which does not count
        mine = batch[self.processes.share(len(batch))] or batch[:1]
        try:
            both = [self.pictures(self.draw(epoch, index)) for index in mine]
        except (ValueError, OSError, ImportError) as error:
            return error  # raised in a worker, it would come with the traceback in its text
        exemplars, searches = (torch.stack(each) for each in zip(*both, strict=True))
        return Shown(exemplars, searches)


def pairs_of(config: TrackingConfig, clips: Sequence[Clip], processes: Processes) -> Pairs:
    """The pairs of a run: of all sequences that have two fit frames less than ``MAX_APART`` apart."""
    fit = [np.flatnonzero(usable(clip, **FILTERS[config.data.filter])) for clip in clips]
    kept = [k for k, frames in enumerate(fit) if _partners(frames).any()]
    if not kept:
        raise ValueError(
            f"none of {len(clips)} sequences has two frames less than {MAX_APART} apart that pass the "
            f"filter {config.data.filter}: take more sequences, or --set filter=wide"
        )
    chosen, frames = [clips[k] for k in kept], [fit[k] for k in kept]
    count = len(kept) if config.data.pairs is None else config.data.pairs
    return Pairs(chosen, frames, count, config.schedule.batch_size, config.seed, processes)


def loaded(pairs: Pairs, config: TrackingConfig, epoch: int, step: int) -> Generator[Shown, None, None]:
    """The batches of the rest of a run from there on, made ahead of time by worker processes."""
    places = [
        divmod(k, pairs.steps)
        for k in range(epoch * pairs.steps + step, config.schedule.epochs * pairs.steps)
    ]
    gpu = config.machine.device.startswith("cuda")
    loader: DataLoader[Any] = DataLoader(
        pairs,  # type: ignore[arg-type]  # anything with an index does
        batch_size=None,
        sampler=places,
        num_workers=_workers(config, 8 if gpu else 2, pairs.processes.count),
        worker_init_fn=_begin,
        generator=torch.Generator(),  # or it would draw from the global one
        pin_memory=gpu,
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _partners(frames: Array) -> Array:
    """For each frame, how many later ones are less than ``MAX_APART`` frames away."""
    return np.searchsorted(frames, frames + MAX_APART) - np.arange(len(frames)) - 1


def _picture(clip: Clip, frame: int, size: int, stretch: float, shift: tuple[int, int]) -> Tensor:
    """The middle of what the target is seen in, stretched and moved: (3, size, size).

    It is read from the frame in one go, and at its border the frame goes on: the published way resamples
    twice, and fills up what a smaller picture lacks with its mean colour.
    """
    box = clip.boxes[frame]
    step = float(exemplar_side(box)) / EXEMPLAR / stretch  # pixels of the frame for one of the picture
    centre = box[:2] + (box[2:] - 1) / 2 + step * np.array(shift)
    return crop(clip.frame(frame), centre, [step * size], size)[0]


def _workers(config: TrackingConfig, most: int, processes: int) -> int:
    if config.machine.workers is not None:
        return config.machine.workers
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return min(most, max(0, len(allowed) // processes - 1))


def _begin(worker: int) -> None:
    """Leave Ctrl-C, which reaches all processes, to the one that trains, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):  # elsewhere torch's own look, every few seconds, must do
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)  # an orphan would hold the folder's lock
