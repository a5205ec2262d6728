"""What the explorer shows: trained runs on a few test images, at all angles and scales."""

from __future__ import annotations

import base64
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..opened import OpenedRun
from ..palette import colours_of

__all__ = ["Exploration", "Sweep", "choose_images", "explore", "groups_of", "pack", "sweeps_of"]

NUM_ANGLES = 72  # every 5°
FACTORS_PER_SIDE = 10  # on each side of 1, besides those of the groups
SHOWN_IMAGES, SHOWN_MAPS, SHOWN_CLASSES = 10, 4, 10
MAX_MAP_SIZE, MAX_IMAGE_SIZE = 32, 96  # larger ones are averaged down: this is for looking only
BATCH = 24
MIN_VARIANCE = 1e-12  # a constant layer has a variance of 0, by which nothing can be divided
# images and maps of a layer to try where the page would become too large, the most first
REDUCED_COUNTS = ((10, 4), (8, 4), (7, 4), (6, 4), (6, 3), (6, 2), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))

Json = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """What a slider goes through: elements of a group, in the order of their values."""

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

    content: Json
    images: int
    maps: int

    def cut(self, images: int, maps: int) -> Json:
        """Return the content with only the first images, and the first maps of each layer."""
        runs = []
        for run in self.content["runs"]:
            layers = []
            for layer in run["layers"]:
                layers.append(layer | {"maps": layer["maps"][:maps]})
            shown = []
            for image in run["images"][:images]:
                frames = [layer[:maps] for layer in image["frames"]]
                ranges = [layer[:maps] for layer in image["ranges"]]
                shown.append(image | {"frames": frames, "ranges": ranges})
            runs.append(run | {"layers": layers, "images": shown})
        return self.content | {"runs": runs, "images": self.content["images"][:images]}

    def smaller(self) -> Iterator[tuple[int, int]]:
        """Yield how many images and maps to try, the most first."""
        yield self.images, self.maps
        for images, maps in REDUCED_COUNTS:
            fits = images <= self.images and maps <= self.maps
            if fits and (images, maps) != (self.images, self.maps):
                yield images, maps


def explore(
    runs: Sequence[OpenedRun],
    variances: Sequence[Mapping[str, float]],
    images: int = SHOWN_IMAGES,
    maps: int = SHOWN_MAPS,
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Run every model on a few test images, at the angles and factors of their groups' sweeps.

    Args:
        runs: Trained runs that classify the same images.
        variances: Of each layer's pooled maps, for each run: errors are relative to them.
        images: How many images to show.
        maps: How many maps of each layer to show.
        progress: Called with a line of text about what is going on.
    """
    every_label = runs[0].labels
    if every_label is None:
        raise ValueError(f"{runs[0].name} is not a classifier, and the explorer shows predicted classes")
    chosen = choose_images(every_label, images)
    x, labels = runs[0].images[chosen], every_label[chosen].tolist()
    sweeps = sweeps_of(groups_of(runs))

    shown_runs: list[Json] = []
    scores = []
    most_maps = 0
    colours = colours_of([run.name for run in runs])
    for run, variance, colour in zip(runs, variances, colours, strict=True):
        layers, of_images, probabilities = _explore_run(run, x, variance, sweeps, maps, progress)
        shown_runs.append(
            {
                "name": run.name,
                "colour": colour,
                # its test accuracy is that of several passes, of which the page shows one
                "averaged": bool(run.record.config.get("average")),
                "layers": layers,
                "images": of_images,
            }
        )
        scores.append(probabilities)
        for layer in layers:
            most_maps = max(most_maps, len(layer["maps"]))

    # all runs show the same classes of an image, so that their bars can be compared
    pictures = []
    for i, (index, label) in enumerate(zip(chosen, labels, strict=True)):
        classes = _likeliest(torch.stack([of_run[i] for of_run in scores]), label)
        pictures.append(_picture(x[i]) | {"index": index, "label": label, "classes": classes})
        for shown, of_run in zip(shown_runs, scores, strict=True):
            shown["images"][i] |= _predictions(of_run[i], classes)

    content = {"sweeps": _sweep_content(sweeps), "images": pictures, "runs": shown_runs}
    return Exploration(content, len(chosen), most_maps)


def groups_of(runs: Sequence[OpenedRun]) -> list[Group]:
    """Return the groups that the runs were measured under, repeated ones included."""
    groups: list[Group] = []
    for run in runs:
        groups.extend(run.measured_groups)
    return groups


def sweeps_of(groups: Sequence[Group]) -> list[Sweep]:
    """Return a sweep over angles unless all groups only scale, and one over factors if any does.

    >>> [sweep.values[-1] for sweep in sweeps_of([ien.group("rot4"), ien.group("scale0.5")])]
    [355.0, 2.0]
    """
    own_factors = set()
    only_scales = True
    for step in _steps(groups):
        if isinstance(step, Similarity):
            own_factors.add(float(step.scale))
            only_scales = only_scales and not step.turn and not step.flip
        else:  # a black box is shown under rotations, like a flip
            only_scales = False
    own_factors.discard(1.0)

    sweeps = []
    if not only_scales:
        angles = tuple(360 * k / NUM_ANGLES for k in range(NUM_ANGLES))
        quarters = (0.0, 90.0, 180.0, 270.0)
        sweeps.append(Sweep("rotation", rotation(NUM_ANGLES), angles, torch.arange(NUM_ANGLES), quarters))
    if own_factors:
        factors = _factors(own_factors)
        others = list(factors)
        others.remove(1.0)
        elements = [1.0, *others]  # as in the group, whose identity comes first
        g = torch.tensor([elements.index(factor) for factor in factors])
        marks = tuple(sorted({1.0, *own_factors}))
        sweeps.append(Sweep("scale", scale(others), tuple(factors), g, marks))
    return sweeps


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


def pack(frames: Tensor) -> tuple[str, list[float | None]]:
    """Compress frames (n, h, w) to 256 steps of their common range; returns the text and the range.

    The text is the base64 of a zlib stream of the differences from frame to frame, modulo 256.
    """
    low, high = float(frames.min()), float(frames.max())
    width = (high - low) or 1.0  # of constant frames
    scaled = (frames.double() - low) * (255 / width)  # (n, h, w), from 0 to 255
    steps = scaled.round().to(torch.uint8)
    steps[1:] = steps[1:] - steps[:-1]  # small, and so they compress well
    compressed = zlib.compress(steps.numpy().tobytes(), 9)
    text = base64.b64encode(compressed).decode()
    return text, [_rounded(low), _rounded(high)]


def _steps(groups: Sequence[Group]) -> Iterator[object]:
    """Yield what the elements of all groups are made of."""
    for group in groups:
        for element in group.elements:
            yield from element


def _factors(own: set[float]) -> list[float]:
    """Space factors about evenly by their logarithm around 1, with ``own`` among them."""
    reach = max(abs(math.log(min(own))), abs(math.log(max(own))))
    step = reach / FACTORS_PER_SIDE

    def is_far(factor: float, others: set[float], steps: float) -> bool:
        """Say whether no other is within this many steps, so that no two ticks touch."""
        return all(abs(math.log(factor / other)) > steps * step for other in others)

    # 1, the groups' own, and their inverses, which make both sides reach equally far
    fixed = {1.0, *own}
    for factor in own:
        if is_far(1 / factor, own, 0.1):
            fixed.add(float(f"{1 / factor:.6g}"))
    factors = set(fixed)
    for k in range(-FACTORS_PER_SIDE, FACTORS_PER_SIDE + 1):
        factor = float(f"{math.exp(k * step):.4g}")
        if is_far(factor, fixed, 0.45):
            factors.add(factor)
    return sorted(factors)


def _explore_run(
    run: OpenedRun,
    x: Tensor,
    variance: Mapping[str, float],
    sweeps: Sequence[Sweep],
    maps: int,
    progress: Callable[[str], None] | None,
) -> tuple[list[Json], list[Json], list[Tensor]]:
    """Return what the page shows of each layer, of each image, and the probabilities of each image.

    Probabilities are (elements, classes).
    """
    _, originals = _forward(run, x)
    chosen = {}  # the maps that vary most
    layers = []
    for name, h in originals.items():  # (images, feature groups, H, W)
        height, width = h.shape[2:]
        chosen[name] = h.var((0, 2, 3)).topk(min(maps, h.shape[1])).indices
        layers.append(
            {
                "name": name,
                "size": [height, width],
                "stored": [min(height, MAX_MAP_SIZE), min(width, MAX_MAP_SIZE)],
                "of": h.shape[1],
                "maps": chosen[name].tolist(),
            }
        )

    images, scores = [], []
    for i in range(len(x)):
        if progress is not None:
            progress(f"explorer: {run.name}, image {i + 1} of {len(x)}")
        original = {name: h[i : i + 1] for name, h in originals.items()}
        image, probabilities = _explore_image(run, x[i : i + 1], original, variance, sweeps, chosen)
        images.append(image)
        scores.append(probabilities)
    return layers, images, scores


def _explore_image(
    run: OpenedRun,
    x: Tensor,
    original: Mapping[str, Tensor],
    variance: Mapping[str, float],
    sweeps: Sequence[Sweep],
    chosen: Mapping[str, Tensor],
) -> tuple[Json, Tensor]:
    """Return maps, errors and probabilities of one image under all elements."""
    frames: dict[str, list[Tensor]] = defaultdict(list)
    errors: dict[str, list[Tensor]] = defaultdict(list)
    outputs = []
    for sweep in sweeps:
        for g in sweep.g.split(BATCH):  # (BATCH,): all at once would need too much memory
            views = sweep.group.act(x.expand(len(g), -1, -1, -1), g)
            output, pooled = _forward(run, views)
            outputs.append(output)
            for name, h_g in pooled.items():
                h = original[name].expand_as(h_g)
                # relative: L_G of the image over the variance of the layer
                error = image_errors(h, h_g, sweep.group, g) / max(variance[name], MIN_VARIANCE)
                errors[name].append(error)
                shown = h_g[:, chosen[name]]  # (elements, maps, H, W)
                frames[name].append(_at_most(shown, MAX_MAP_SIZE))

    image: Json = {"frames": [], "ranges": [], "errors": []}
    for name in original:
        texts, ranges = [], []
        for frame in torch.cat(frames[name]).unbind(1):  # (elements, h, w) each
            text, limits = pack(frame)
            texts.append(text)
            ranges.append(limits)
        image["frames"].append(texts)
        image["ranges"].append(ranges)
        image["errors"].append(list(map(_rounded, torch.cat(errors[name]).tolist())))
    return image, torch.cat(outputs).double().softmax(1)


def _forward(run: OpenedRun, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output, and the pooled maps of the run's layers."""
    partition = per_layer(run.feature_groups, run.layers)

    def pool(name: str, h: Tensor) -> Tensor:
        return pool_layer(name, h, partition[name])

    with torch.no_grad(), capture(run.model, run.layers, pool) as features:
        output = run.model(x)
    return output, {name: features[name] for name in run.layers}


def _likeliest(scores: Tensor, label: int) -> list[int]:
    """Choose the classes worth a bar: the label, and the likeliest of (runs, elements, classes)."""
    order = scores.amax((0, 1)).argsort(descending=True).tolist()
    order.remove(label)
    return sorted([label, *order][:SHOWN_CLASSES])


def _predictions(probabilities: Tensor, classes: list[int]) -> Json:
    best = probabilities.max(1)  # of (elements, classes)
    rows = []
    for row in probabilities[:, classes].tolist():
        rows.append([_rounded(share, 4) for share in row])
    return {
        "probabilities": rows,
        "predicted": best.indices.tolist(),
        "confidence": list(map(_rounded, best.values.tolist())),
    }


def _sweep_content(sweeps: Sequence[Sweep]) -> list[Json]:
    """Describe the sweeps; their elements follow each other in all lists, from ``start``."""
    content = []
    start = 0
    for sweep in sweeps:
        content.append(
            {"kind": sweep.kind, "start": start, "values": list(sweep.values), "marks": list(sweep.marks)}
        )
        start += len(sweep.values)
    return content


def _picture(x: Tensor) -> Json:
    """Write an image (C, H, W) in [0, 1] as bytes: three channels, or the first one alone."""
    channels = 3 if len(x) >= 3 else 1
    x = _at_most(x[:channels][None], MAX_IMAGE_SIZE)[0]
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    text = base64.b64encode(pixels.numpy().tobytes()).decode()
    return {"size": list(pixels.shape), "pixels": text}


def _at_most(h: Tensor, size: int) -> Tensor:
    """Average maps (…, H, W) down to at most size × size pixels."""
    height, width = h.shape[-2:]
    if height <= size and width <= size:
        return h
    return adaptive_avg_pool2d(h, (min(height, size), min(width, size)))


def _rounded(value: float, digits: int = 6) -> float | None:
    """Keep some significant digits, so that the page stays small; None for what is not a number."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
