"""What the explorer shows: networks on a few images, at all angles and scales."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._text import MODEL_ITSELF
from ...data.mask_folders import IGNORED
from ...loss.capture import capture
from ...loss.error import MIN_VARIANCE, image_errors
from ...loss.feature_groups import pool_layer
from ...loss.layers import per_layer
from ...training.segment import dice
from ..opened import Opened
from ..palette import colours_of
from .changing import choose_changing, find_changes
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
from .sweeps import Sweep, groups_of, sweeps_of

__all__ = ["SHOWN_IMAGES", "SHOWN_MAPS", "Exploration", "explore", "say_nothing"]

SHOWN_IMAGES, SHOWN_MAPS, SHOWN_CLASSES = 10, 4, 10
BATCH = 24
# images and maps of a layer to try where the page would become too large, the most first
REDUCED_COUNTS = ((10, 4), (8, 4), (7, 4), (6, 4), (6, 3), (6, 2), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))


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
    say = progress or say_nothing
    sweeps = sweeps_of(groups_of(runs))
    say("looking for images whose prediction changes")
    found = find_changes(runs, sweeps[0])
    chosen = choose_changing(found, images)
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


def say_nothing(text: str) -> None:
    """Do without progress."""


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
