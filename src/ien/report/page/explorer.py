"""What the explorer shows: networks on a few images, at all angles and scales."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..._text import MODEL_ITSELF
from ...data.mask_folders import IGNORED
from ...groups.families import rotation, scale
from ...groups.group import Group
from ...groups.similarity import Similarity
from ...loss.capture import capture
from ...loss.error import MIN_VARIANCE, image_errors
from ...loss.feature_groups import pool_layer
from ...loss.layers import per_layer
from ...training.segment import dice
from ..opened import Opened
from ..palette import colours_of
from .outputs import Kind, changes, kind_of, output_of
from .pictures import (
    MAX_CLASS,
    MAX_MAP_SIZE,
    Json,
    at_most,
    mask_frames,
    mask_picture,
    pack,
    picture,
    rounded,
)

__all__ = [
    "Changes",
    "Exploration",
    "Sweep",
    "choose_images",
    "explore",
    "find_changes",
    "groups_of",
    "sweeps_of",
]

NUM_ANGLES = 72  # every 5°
FACTORS_PER_SIDE = 10  # on each side of 1, besides those of the groups
SHOWN_IMAGES, SHOWN_MAPS, SHOWN_CLASSES = 10, 4, 10
BATCH = 24
EIGHTHS = (0.0, 45.0, 90.0, 135.0, 180.0, 225.0, 270.0, 315.0)
"""Angles at which all images are tried, to find those whose prediction changes."""
IDENTITY = {"rotation": 0.0, "scale": 1.0}
MIN_CHANGE = 1e-6
"""Smaller changes are those of rounding."""
# images and maps of a layer to try where the page would become too large, the most first
REDUCED_COUNTS = ((10, 4), (8, 4), (7, 4), (6, 4), (6, 3), (6, 2), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))


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
    kind: Kind = "classes"
    """How the outputs are read."""
    note: str = ""
    """One sentence about how many images change their prediction."""

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
    runs: Sequence[Opened],
    variances: Sequence[Mapping[str, float]],
    images: int = SHOWN_IMAGES,
    maps: int = SHOWN_MAPS,
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Run every model on a few images, at the angles and factors of their groups' sweeps.

    Images that the first network gets wrong once they are moved, and the last does not, come first,
    then others whose prediction changes, each with the place where it does.

    Args:
        runs: Networks with the same images.
        variances: Of each layer's pooled maps, for each network: errors are relative to them.
        images: How many images to show.
        maps: How many maps of each layer to show.
        progress: Called with a line of text about what is going on.
    """
    say = progress or _say_nothing
    sweeps = sweeps_of(groups_of(runs))
    say("looking for images whose prediction changes")
    found = find_changes(runs, sweeps[0])
    chosen = _choose(found, images)
    x = runs[0].images[chosen]
    labels: list[int | None] = [None] * len(chosen)
    if runs[0].labels is not None:
        labels = runs[0].labels[chosen].tolist()

    shown_runs: list[Json] = []
    outputs = []
    most_maps = 0
    colours = colours_of([run.name for run in runs])
    for run, variance, of_output, colour in zip(runs, variances, found.variances, colours, strict=True):
        layers, of_images, outputs_of_run = _explore_run(run, x, variance, of_output, sweeps, maps, progress)
        shown_runs.append(
            {
                "name": run.name,
                "colour": colour,
                # its test accuracy is that of several passes, of which the page shows one
                "averaged": run.averaged,
                "layers": layers,
                "images": of_images,
            }
        )
        outputs.append(outputs_of_run)
        for layer in layers:
            most_maps = max(most_maps, len(layer["maps"]))

    pictures = []
    for i, (index, label) in enumerate(zip(chosen, labels, strict=True)):
        shown_image = picture(x[i]) | {"index": index, "label": label, "opening": found.opening(index)}
        if runs[0].image_names:
            shown_image["name"] = runs[0].image_names[index]
        elif label is None:
            shown_image["name"] = f"{index} of the test set"
        if found.kind == "classes":
            # all runs show the same classes of an image, so that their bars can be compared
            scores = torch.stack([of_run[i].double().softmax(1) for of_run in outputs])
            shown_image["classes"] = _likeliest(scores, label)
            for shown, probabilities in zip(shown_runs, scores, strict=True):
                shown["images"][i] |= _predictions(probabilities, shown_image["classes"])
        if found.kind == "pixels":
            for shown, of_run in zip(shown_runs, outputs, strict=True):
                shown["images"][i]["mask"] = mask_frames(of_run[i])
        if runs[0].masks is not None:
            truth = runs[0].masks[index]  # (H, W)
            shown_image["mask"] = mask_picture(truth)
            for shown, of_run in zip(shown_runs, outputs, strict=True):
                shown["images"][i]["dice"] = _dice(of_run[i], truth, sweeps)
        pictures.append(shown_image)

    content = {
        "kind": found.kind,
        "sweeps": _sweep_content(sweeps),
        "images": pictures,
        "runs": shown_runs,
    }
    return Exploration(content, len(chosen), most_maps, found.kind, found.note())


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


def _choose(found: Changes, count: int) -> list[int]:
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


def _say_nothing(text: str) -> None:
    pass


def groups_of(runs: Sequence[Opened]) -> list[Group]:
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
    run: Opened,
    x: Tensor,
    variance: Mapping[str, float],
    output_variance: float,
    sweeps: Sequence[Sweep],
    maps: int,
    progress: Callable[[str], None] | None,
) -> tuple[list[Json], list[Json], list[Tensor]]:
    """Return what the page shows of each layer, of each image, and the outputs of each image.

    Outputs are (elements, …): scores of classes, or for maps the class of each pixel.
    """
    y, originals = _forward(run, x)
    chosen = {}  # the maps that vary most
    layers = []
    for name, h in originals.items():  # (images, feature groups, H, W)
        height, width = h.shape[2:]
        chosen[name] = h.var((0, 2, 3)).topk(min(maps, h.shape[1])).indices
        layers.append(
            {
                "name": name or MODEL_ITSELF,
                "size": [height, width],
                "stored": [min(height, MAX_MAP_SIZE), min(width, MAX_MAP_SIZE)],
                "of": h.shape[1],
                "maps": chosen[name].tolist(),
            }
        )

    images, outputs = [], []
    for i in range(len(x)):
        if progress is not None:
            progress(f"explorer: {run.name}, image {i + 1} of {len(x)}")
        original = {name: h[i : i + 1] for name, h in originals.items()}
        image, output, changed = _explore_image(
            run, x[i : i + 1], y[i : i + 1], original, variance, output_variance, sweeps, chosen
        )
        if kind_of(y) != "classes":
            image["changed"] = list(map(rounded, changed.tolist()))
        images.append(image)
        outputs.append(output)
    return layers, images, outputs


def _explore_image(
    run: Opened,
    x: Tensor,
    y: Tensor,
    original: Mapping[str, Tensor],
    variance: Mapping[str, float],
    output_variance: float,
    sweeps: Sequence[Sweep],
    chosen: Mapping[str, Tensor],
) -> tuple[Json, Tensor, Tensor]:
    """Return maps and errors, outputs, and changes of one image's output under all elements."""
    frames: dict[str, list[Tensor]] = defaultdict(list)
    errors: dict[str, list[Tensor]] = defaultdict(list)
    outputs, changed = [], []
    for sweep in sweeps:
        for g in sweep.g.split(BATCH):  # (BATCH,): all at once would need too much memory
            views = sweep.group.act(x.expand(len(g), -1, -1, -1), g)
            output, pooled = _forward(run, views)
            outputs.append(_kept(output))
            y_expanded = y.expand(len(g), *y.shape[1:])
            changed.append(changes(y_expanded, output, sweep.group, g, output_variance))
            for name, h_g in pooled.items():
                h = original[name].expand_as(h_g)
                # relative: L_G of the image over the variance of the layer
                error = image_errors(h, h_g, sweep.group, g) / max(variance[name], MIN_VARIANCE)
                errors[name].append(error)
                shown = h_g[:, chosen[name]]  # (elements, maps, H, W)
                frames[name].append(at_most(shown, MAX_MAP_SIZE))

    image: Json = {"frames": [], "ranges": [], "errors": []}
    for name in original:
        texts, ranges = [], []
        for frame in torch.cat(frames[name]).unbind(1):  # (elements, h, w) each
            text, limits = pack(frame)
            texts.append(text)
            ranges.append(limits)
        image["frames"].append(texts)
        image["ranges"].append(ranges)
        image["errors"].append(list(map(rounded, torch.cat(errors[name]).tolist())))
    return image, torch.cat(outputs), torch.cat(changed)


def _forward(run: Opened, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output, and the pooled maps of the run's layers."""
    partition = per_layer(run.feature_groups, run.layers)

    def pool(name: str, h: Tensor) -> Tensor:
        return pool_layer(name, h, partition[name])

    with torch.no_grad(), capture(run.model, run.layers, pool) as features:
        output = output_of(run.model, x)
    return output, {name: features[name] for name in run.layers}


def _kept(output: Tensor) -> Tensor:
    """Return the predicted masks (B, H, W) of maps, whose scores need much memory; others as is."""
    if kind_of(output) != "pixels":
        return output
    return output.argmax(1).clamp(max=MAX_CLASS).to(torch.uint8)


def _dice(predicted: Tensor, truth: Tensor, sweeps: Sequence[Sweep]) -> list[float | None]:
    """Compare predicted masks (elements, H, W) with the true mask (H, W) under each element.

    Returns the mean over the classes but the background; None where neither mask has any.
    """
    views = []
    for sweep in sweeps:
        copies = truth.expand(len(sweep.g), -1, -1)  # (elements of the sweep, H, W)
        views.append(sweep.group.act_on_masks(copies, sweep.g, ignore=IGNORED))
    truths = torch.cat(views)
    # the classes that occur; one that neither mask has would not count
    known = torch.cat([predicted.flatten(), truth[truth != IGNORED]])
    classes = 1 + max(1, int(known.max()))
    scores = dice(predicted, truths, classes)  # (elements, classes - 1)
    return list(map(rounded, scores.nanmean(1).tolist()))


def _likeliest(scores: Tensor, label: int | None) -> list[int]:
    """Choose the classes worth a bar: the label, and the likeliest of (runs, elements, classes)."""
    order: list[int] = scores.amax((0, 1)).argsort(descending=True).tolist()
    if label is not None:
        order.remove(label)
        order.insert(0, label)
    return sorted(order[:SHOWN_CLASSES])


def _predictions(probabilities: Tensor, classes: list[int]) -> Json:
    best = probabilities.max(1)  # of (elements, classes)
    rows = []
    for row in probabilities[:, classes].tolist():
        rows.append([rounded(share, 4) for share in row])
    return {
        "probabilities": rows,
        "predicted": best.indices.tolist(),
        "confidence": list(map(rounded, best.values.tolist())),
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
