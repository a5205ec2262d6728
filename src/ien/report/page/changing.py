"""Which images change their prediction when they are moved, and where: with these a page opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..opened import Opened
from .outputs import Kind, changes, kind_of, output_of
from .sweeps import IDENTITY, Sweep

__all__ = ["Changes", "choose_changing", "choose_images", "find_changes"]

BATCH = 24
EIGHTHS = (0.0, 45.0, 90.0, 135.0, 180.0, 225.0, 270.0, 315.0)
"""Angles at which all images are tried."""
MIN_CHANGE = 1e-6
"""Smaller changes are those of rounding."""


@dataclass(frozen=True)
class Changes:
    """Where along a sweep the outputs of images change most, for any of several networks."""

    kind: Kind
    sweep: Sweep
    places: list[int]
    """The places along the sweep that were tried, but for the identity."""
    exact: list[bool]
    """Whether nothing is resampled at each of them."""
    sizes: Tensor
    """(images, places): how far the output changes there, as :func:`changes` says."""
    telling: Tensor
    """(images, places): how clearly the first network goes wrong there while the last is right."""
    classes: Tensor
    """What each image is, (images,): its label, or its prediction; its index if it has neither."""
    variances: list[float]
    """Of the outputs of each network."""

    def best(self, image: int) -> tuple[int, float, int]:
        """Return the place where an image changes most, how far, and how good an example that is.

        3: the first network goes wrong under an exact element, and the last is right; 2: the output
        changes under an exact element; 1: under one that resamples; 0: it does not change.
        """
        for value, sizes, exact in ((3, self.telling, True), (2, self.sizes, True), (1, self.sizes, False)):
            largest, where = 0.0, self.places[0]
            for place, is_exact, size in zip(self.places, self.exact, sizes[image].tolist(), strict=True):
                if is_exact == exact and size > largest:  # NaN, of a map too small, is not
                    largest, where = size, place
            if largest > MIN_CHANGE:
                return where, largest, value
        return self.places[0], 0.0, 0

    def opening(self, image: int) -> int | None:
        """Return the place at which to open the page on an image; None if nothing changes."""
        place, size, _ = self.best(image)
        if size <= MIN_CHANGE:
            return None
        return place

    def note(self) -> str:
        """Say how many images change their prediction."""
        if self.kind == "values":
            return ""
        changed = sum(self.opening(i) is not None for i in range(len(self.sizes)))
        what = {"classes": "the predicted class", "pixels": "the class of some pixel"}[self.kind]
        tried = {"rotation": "angles", "scale": "factors"}[self.sweep.kind]
        count = len(self.sizes)
        return f"In {changed} of {count:,} images {what} changes at one of {len(self.places)} {tried} tried."


def find_changes(runs: Sequence[Opened], sweep: Sweep) -> Changes:
    """Try every eighth of a turn, or the factors of the groups, on all images of some networks."""
    identity = sweep.values.index(IDENTITY[sweep.kind])
    tried = sweep.marks
    if sweep.kind == "rotation":
        tried = EIGHTHS
    places = [sweep.values.index(value) for value in tried]
    places.remove(identity)
    exact = [sweep.kind == "scale" or sweep.values[place] in sweep.marks for place in places]

    sizes = []
    variances = []
    scores: list[list[Tensor]] = []  # of each network, at each place: (images, classes)
    classes = runs[0].labels
    for run in runs:
        original = _outputs(run, run.images)  # (N, …)
        kind = kind_of(original)
        variances.append(float(original.double().var(unbiased=False)))
        if classes is None:
            classes = original.argmax(1) if kind == "classes" else torch.arange(len(original))
        columns = []
        scores.append([original])
        for place in places:
            parts = []
            outputs = []
            for x, y in zip(run.images.split(BATCH), original.split(BATCH), strict=True):
                g = sweep.g[place].expand(len(x))
                y_g = _outputs(run, sweep.group.act(x, g))
                parts.append(changes(y, y_g, sweep.group, g, variances[-1]))
                if kind == "classes":  # maps would take too much memory
                    outputs.append(y_g)
            columns.append(torch.cat(parts))
            if outputs:
                scores[-1].append(torch.cat(outputs))
        sizes.append(torch.stack(columns, 1))  # (N, places)
    assert classes is not None  # there is at least one network
    largest = torch.stack(sizes).amax(0)
    telling = torch.zeros_like(largest)
    if kind == "classes" and len(runs) > 1 and runs[0].labels is not None:
        telling = _telling(torch.stack(scores[0]), torch.stack(scores[-1]), runs[0].labels)
    return Changes(kind, sweep, places, exact, largest, telling, classes, variances)


def _telling(first: Tensor, last: Tensor, labels: Tensor) -> Tensor:
    """Say where the first network goes wrong on an image it knows, while the last is right.

        (p_first[its class] - p_first[label]) · p_last[label],  and 0 unless all of that holds

    Args:
        first: Scores of the first network (1 + places, images, classes), at the identity first.
        last: Those of the last network.
        labels: The true classes (images,).

    Returns:
        A number from 0 to 1 for each image and place, (images, places).
    """
    p_first = first.softmax(2)
    p_last = last.softmax(2)
    right = labels.expand(len(first), -1).unsqueeze(2)  # (1 + places, images, 1)
    wrong_by = p_first.amax(2) - p_first.gather(2, right).squeeze(2)  # 0 where it is right
    sure = p_last.gather(2, right).squeeze(2) * (p_last.argmax(2) == labels)
    known = wrong_by[0] == 0  # (images,): upright
    return (wrong_by * sure * known)[1:].T


def choose_changing(found: Changes, count: int) -> list[int]:
    """Choose images of all classes, the best examples of a change first."""
    order = []
    for i in range(len(found.sizes)):
        _, size, value = found.best(i)
        order.append((value, size, -i))
    order.sort(reverse=True)
    indices = [-minus_i for _, _, minus_i in order]
    chosen = choose_images(found.classes[indices], count)
    return [indices[i] for i in chosen]


def _outputs(run: Opened, x: Tensor) -> Tensor:
    """Run a network on images, a few at a time."""
    parts = []
    with torch.no_grad():
        for part in x.split(BATCH):
            parts.append(output_of(run.model, part))
    return torch.cat(parts)


def choose_images(labels: Tensor, count: int) -> list[int]:
    """Choose the first image of each class, in the order of the images, and then the others.

    >>> choose_images(torch.tensor([3, 3, 1, 2]), 4)
    [0, 2, 3, 1]
    """
    first: dict[int, int] = {}
    for i, label in enumerate(labels.tolist()):
        first.setdefault(label, i)
    others = sorted(set(range(len(labels))) - set(first.values()))
    return [*first.values(), *others][:count]
