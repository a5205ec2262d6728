"""Explorer: from trained runs and their test images to what a page shows of them at all angles and scales."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ...groups.families import rotation, scale
from ...groups.group import Group
from ...groups.similarity import Similarity
from ...loss.capture import capture
from ...loss.error import image_errors
from ...loss.feature_groups import pool_layer
from ...loss.layers import per_layer
from ..opened import Subject

__all__ = ["Exploration", "Track", "choose_images", "explore", "groups_of", "pack", "tracks_of"]

ANGLES = 72  # every 5°
STEPS = 10  # scale factors on each side of 1, beside the groups' own
SHOWN_CLASSES = 10
MAP_SIZE, IMAGE_SIZE = 32, 96  # larger ones are averaged down: they only have to be looked at
BATCH = 24
SMALLER = ((10, 4), (8, 4), (7, 4), (6, 4), (6, 3), (6, 2), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))


@dataclass(frozen=True)
class Track:
    """What one slider goes through: elements of a group, in the order of their values."""

    kind: Literal["rotation", "scale"]
    group: Group
    values: tuple[float, ...]
    """Degrees, or factors."""
    g: Tensor
    """The index of each value in the group."""
    marks: tuple[float, ...]
    """The values that stand out: quarter turns, or the factors of the runs' groups and 1."""


@dataclass(frozen=True)
class Exploration:
    """Everything the explorer can show, ready for JSON; the page takes as much of it as fits."""

    content: dict[str, Any]
    images: int
    maps: int

    def cut(self, images: int, maps: int) -> dict[str, Any]:
        """The content with only the first ``images`` images and ``maps`` maps of a layer."""
        runs = [
            run
            | {
                "layers": [layer | {"maps": layer["maps"][:maps]} for layer in run["layers"]],
                "images": [
                    image
                    | {
                        "frames": [frames[:maps] for frames in image["frames"]],
                        "ranges": [ranges[:maps] for ranges in image["ranges"]],
                    }
                    for image in run["images"][:images]
                ],
            }
            for run in self.content["runs"]
        ]
        return self.content | {"runs": runs, "images": self.content["images"][:images]}

    def smaller(self) -> Iterator[tuple[int, int]]:
        """How many images and maps to try, the most first."""
        yield self.images, self.maps
        for images, maps in SMALLER:
            if images <= self.images and maps <= self.maps and (images, maps) != (self.images, self.maps):
                yield images, maps


def explore(
    subjects: Sequence[Subject],
    variances: Sequence[dict[str, float]],
    images: int = 10,
    maps: int = 4,
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Run every model on ``images`` test images at the angles and factors of :func:`tracks_of` their groups.

    All subjects have the same images. ``variances`` holds that of each layer's pooled maps, for each subject:
    what the squared errors are divided by.
    """
    tracks = tracks_of(groups_of(subjects))
    every = subjects[0].labels
    if every is None:
        raise ValueError(f"{subjects[0].name} is a tracker, and the explorer shows what images are taken for")
    chosen = choose_images(every, images)
    x, labels = subjects[0].images[chosen], every[chosen].tolist()
    runs, scores = [], []
    for subject, variance in zip(subjects, variances, strict=True):
        run, probabilities = _run(subject, x, variance, tracks, maps, progress)
        runs.append(run)
        scores.append(probabilities)
    classes = [_classes(torch.stack([s[i] for s in scores]), label) for i, label in enumerate(labels)]
    for run, probabilities in zip(runs, scores, strict=True):
        for image, p, shown in zip(run["images"], probabilities, classes, strict=True):
            image |= _predictions(p, shown)
    starts = [sum(len(track.values) for track in tracks[:k]) for k in range(len(tracks))]
    content = {
        "tracks": [
            {"kind": track.kind, "start": start, "values": list(track.values), "marks": list(track.marks)}
            for track, start in zip(tracks, starts, strict=True)
        ],
        "images": [
            _picture(picture) | {"index": index, "label": label, "classes": shown}
            for picture, index, label, shown in zip(x, chosen, labels, classes, strict=True)
        ],
        "runs": runs,
    }
    return Exploration(
        content, len(chosen), max(len(layer["maps"]) for run in runs for layer in run["layers"])
    )


def groups_of(subjects: Sequence[Subject]) -> list[Group]:
    """The groups that the runs were measured under, which may be several of each."""
    return [group for s in subjects for group in getattr(s.config, "measured_groups", None) or (s.group,)]


def tracks_of(groups: Sequence[Group]) -> list[Track]:
    """All angles unless the groups only scale, and factors on both sides of 1 if one of them scales.

    >>> [track.values[-1] for track in tracks_of([ien.group("rot4"), ien.group("scale0.5")])]
    [355.0, 2.0]
    """
    steps = [step for group in groups for element in group.elements for step in element]
    own = {float(step.scale) for step in steps if isinstance(step, Similarity)} - {1.0}
    tracks = []
    if not all(isinstance(step, Similarity) and not step.turn and not step.flip for step in steps):
        turns = tuple(360 * k / ANGLES for k in range(ANGLES))
        tracks.append(Track("rotation", rotation(ANGLES), turns, torch.arange(ANGLES), (0, 90, 180, 270)))
    if own:
        factors = _factors(own)
        others = [factor for factor in factors if factor != 1]
        index = [others.index(factor) + 1 if factor != 1 else 0 for factor in factors]
        marks = tuple(sorted({1.0, *own}))
        tracks.append(Track("scale", scale(others), tuple(factors), torch.tensor(index), marks))
    return tracks


def choose_images(labels: Tensor, count: int) -> list[int]:
    """The first image of each class, in the order of the images, then the other ones.

    >>> choose_images(torch.tensor([3, 3, 1, 2]), 4)
    [0, 2, 3, 1]
    """
    first: dict[int, int] = {}
    for i, label in enumerate(labels.tolist()):
        first.setdefault(label, i)
    others = sorted(set(range(len(labels))) - set(first.values()))
    return [*first.values(), *others][:count]


def pack(frames: Tensor) -> tuple[str, list[float | None]]:
    """Frames (n, h, w) in 256 steps of their common range, as text, and the range.

    The text is the base64 of the zlib stream of the differences from frame to frame, modulo 256.
    """
    low, high = float(frames.min()), float(frames.max())
    steps = ((frames.double() - low) * (255 / ((high - low) or 1.0))).round().to(torch.uint8)
    steps[1:] = steps[1:] - steps[:-1]
    return base64.b64encode(zlib.compress(steps.numpy().tobytes(), 9)).decode(), [_short(low), _short(high)]


def _factors(own: set[float]) -> list[float]:
    """As many factors below 1 as above it, about evenly spaced on a logarithmic scale, ``own`` among them."""
    step = max(abs(math.log(factor)) for factor in own) / STEPS

    def far(factor: float, others: set[float], steps: float) -> bool:
        return all(abs(math.log(factor / other)) > steps * step for other in others)

    fixed = {1.0, *own, *(float(f"{1 / factor:.6g}") for factor in own if far(1 / factor, own, 0.1))}
    between = (float(f"{math.exp(k * step):.4g}") for k in range(-STEPS, STEPS + 1))
    return sorted(fixed | {factor for factor in between if far(factor, fixed, 0.45)})


def _run(
    subject: Subject,
    x: Tensor,
    variance: dict[str, float],
    tracks: list[Track],
    maps: int,
    progress: Callable[[str], None] | None,
) -> tuple[dict[str, Any], list[Tensor]]:
    """What one model makes of the images, and its probabilities: (elements, classes) of each."""
    _, originals = _forward(subject, x)
    chosen = {name: h.var((0, 2, 3)).topk(min(maps, h.shape[1])).indices for name, h in originals.items()}
    images, scores = [], []
    for i in range(len(x)):
        if progress is not None:
            progress(f"explorer: {subject.name}, image {i + 1} of {len(x)}")
        original = {name: h[i : i + 1] for name, h in originals.items()}
        frames: dict[str, list[Tensor]] = {name: [] for name in originals}
        errors: dict[str, list[Tensor]] = {name: [] for name in originals}
        outputs = []
        for group, g in ((track.group, part) for track in tracks for part in track.g.split(BATCH)):
            output, pooled = _forward(subject, group.act(x[i : i + 1].expand(len(g), -1, -1, -1), g))
            outputs.append(output)
            for name, h_g in pooled.items():
                h = original[name].expand_as(h_g)
                errors[name].append(image_errors(h, h_g, group, g) / max(variance[name], 1e-12))
                frames[name].append(_at_most(h_g[:, chosen[name]], MAP_SIZE))
        packed = [[pack(frame) for frame in torch.cat(parts).unbind(1)] for parts in frames.values()]
        images.append(
            {
                "frames": [[text for text, _ in layer] for layer in packed],
                "ranges": [[limits for _, limits in layer] for layer in packed],
                "errors": [[_short(e) for e in torch.cat(parts).tolist()] for parts in errors.values()],
            }
        )
        scores.append(torch.cat(outputs).double().softmax(1))
    layers = [
        {
            "name": name,
            "size": [h.shape[2], h.shape[3]],
            "stored": [min(h.shape[2], MAP_SIZE), min(h.shape[3], MAP_SIZE)],
            "of": h.shape[1],
            "maps": chosen[name].tolist(),
        }
        for name, h in originals.items()
    ]
    averaged = bool(getattr(subject.config, "average", False))
    return {"name": subject.name, "averaged": averaged, "layers": layers, "images": images}, scores


def _forward(subject: Subject, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    partition = per_layer(subject.feature_groups, subject.layers)

    def pool(name: str, h: Tensor) -> Tensor:
        return pool_layer(name, h, partition[name])

    with torch.no_grad(), capture(subject.model, subject.layers, pool) as features:
        output = subject.model(x)
    return output, {name: features[name] for name in subject.layers}


def _classes(scores: Tensor, label: int) -> list[int]:
    """The classes worth a bar, of probabilities (runs, elements, classes): the label's, and the likeliest."""
    order = scores.amax((0, 1)).argsort(descending=True).tolist()
    order.insert(0, order.pop(order.index(label)))
    return sorted(order[:SHOWN_CLASSES])


def _predictions(probabilities: Tensor, classes: list[int]) -> dict[str, Any]:
    best = probabilities.max(1)
    return {
        "probabilities": [[_short(p, 4) for p in row] for row in probabilities[:, classes].tolist()],
        "predicted": best.indices.tolist(),
        "confidence": [_short(p) for p in best.values.tolist()],
    }


def _picture(x: Tensor) -> dict[str, Any]:
    """An image (C, H, W) in [0, 1] as bytes, the first three channels or the first one alone."""
    x = _at_most(x[: 3 if len(x) >= 3 else 1][None], IMAGE_SIZE)[0]
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return {"size": list(pixels.shape), "pixels": base64.b64encode(pixels.numpy().tobytes()).decode()}


def _at_most(h: Tensor, size: int) -> Tensor:
    height, width = h.shape[-2:]
    if height <= size and width <= size:
        return h
    return adaptive_avg_pool2d(h, (min(height, size), min(width, size)))


def _short(value: float, digits: int = 6) -> float | None:
    """So many significant digits, which keeps the page small; None for what is not a number."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
