"""Measure: from any model and images to how equivariant each layer is, in numbers that can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.group import group as parse_group
from ..groups.members import FeatureAction, check_action, check_sizes
from ..groups.similarity import Similarity, resample, valid_pixels
from ..loss.capture import capture
from ..loss.error import compared_maps, full_precision, image_errors
from ..loss.feature_groups import FeatureGroups, Spec, per_layer
from .choose_layers import choose_layers
from .floors import symmetric_kernels
from .inputs import Images, check_inputs, checked_batches, eval_mode, number_of_batches, shown, try_model
from .report import ElementReport, LayerReport, OutputElement, OutputReport, Report
from .sums import Diversity, Predictions, Tally, interval_of_share

__all__ = ["measure"]

COLLAPSED = 0.01
"""A feature group of less diversity holds copies: less than a hundredth of what it holds tells them apart."""
LARGEST = Fraction(6, 5)
"""Larger factors cost as much, but there and back they would find the pixels again, and show nothing."""


def measure(
    model: nn.Module,
    images: Images,
    group: Group | str,
    layers: str | Sequence[str] | None = None,
    feature_groups: Spec | Mapping[str, Spec] = 1,
    *,
    labels: Tensor | None = None,
    batch_size: int = 64,
    floors: bool = True,
    progress: bool = False,
    action: FeatureAction = "pooled",
) -> Report:
    """How far each layer of ``model`` is from commuting with ``group``, and what that does to its output.

    ``images`` is a tensor (N, C, H, W), or an iterable of batches such as a DataLoader; of tuples the first
    entry counts. Memory does not grow with their number. Without ``layers``, the model's direct children that
    return maps and its last map are taken. The model runs in eval mode, without gradients, and is left as it
    was. ``labels`` (N,), in the order of the images, adds the accuracy of a classifier under every element;
    ``floors``, which costs as much again, what grid and resampling alone cost; ``progress`` shows a bar.
    ``action="regular"`` compares all members of feature groups, permuted by the element, not their maximum.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, kernel_size=1), nn.ReLU())     # 1×1 convolutions are equivariant
    >>> report = measure(net, torch.rand(8, 1, 6, 6), "rot4", layers=["1"], feature_groups=4)
    >>> report.layers["1"].relative < 1e-12
    True
    """
    group = parse_group(group)
    check_inputs(model, images, labels, batch_size)
    if len(group) == 1:
        raise ValueError(f"group {group} has one element, the identity: there is nothing to measure")
    check_action(action)
    names = _names(layers, feature_groups)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sums: _Sums | None = None
    with torch.no_grad(), eval_mode(model):
        for x in shown(checked_batches(images, batch_size), number_of_batches(images, batch_size), progress):
            x = x.to(device)
            if sums is None:
                try_model(model, x[:2].clone())
                chosen = choose_layers(model, x[:2].clone()) if names is None else names
                sums = _Sums(model, group, per_layer(feature_groups, chosen), labels, floors, action)
            sums.add(x)
    if sums is None or sums.count < 2:
        got = "no image" if sums is None else "one image"
        raise ValueError(f"measure needs at least two images, better a hundred, to tell a spread; got {got}")
    if labels is not None and len(labels) != sums.count:
        raise ValueError(f"labels must hold one for each image: got {len(labels)} for {sums.count} images")
    return sums.report(chosen=names is None)


class _Element(NamedTuple):
    label: str
    similarity: Similarity | None
    """None for black boxes."""
    exact: bool
    degrees: float | None
    factor: float | None


class _Sums:
    """What a report is made of, summed over images."""

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        partition: dict[str, FeatureGroups],
        labels: Tensor | None,
        floors: bool,
        action: FeatureAction,
    ) -> None:
        if action == "regular":
            check_sizes(group, partition)
        self.model, self.group, self.partition, self.labels = model, group, partition, labels
        self.elements = [_element(group, i) for i in range(len(group))]
        self.floors, self.action = floors, action
        self.count = 0
        self.errors = {name: Tally(len(group)) for name in partition}
        self.resampling = {name: Tally(len(group)) for name in partition}
        self.grid = {name: Tally(len(group)) for name in partition}
        self.diversity = {name: Diversity(spec) for name, spec in partition.items()}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.predictions: Predictions | None = Predictions(len(group))

    def add(self, x: Tensor) -> None:
        moved = range(1, len(self.group))
        maps, outputs = self._compare(x, moved, self.errors, self._look)
        labels = None if self.labels is None else self.labels[self.count : self.count + len(x)]
        self._predict(outputs, labels)
        if self.floors:
            for name, h in maps.items():
                self.resampling[name].add(h, self._there_and_back(h))
            if exact := [i for i in moved if self.elements[i].exact]:
                with symmetric_kernels():
                    self._compare(x, exact, self.grid)
        self.count += len(x)

    def _compare(
        self, x: Tensor, moved: Sequence[int], tallies: dict[str, Tally], look: Any = None
    ) -> tuple[dict[str, Tensor], list[Any]]:
        """Sum up the errors under the elements ``moved``; returns the originals' maps and all outputs."""
        maps, output = self._run(x.clone(), look)  # a model may write into its input
        outputs, errors = [output], {name: {} for name in maps}  # type: ignore[var-annotated]
        for i in moved:
            g = torch.full((len(x),), i, device="cpu")
            transformed, output = self._run(self.group.act(x, g))
            outputs.append(output)
            for name, h_g in transformed.items():
                # kernels made symmetric have no orientation: for the grid's floor, members stay in place
                permuting = self.action == "regular" and tallies is self.errors
                permuted = self.partition[name] if permuting else None
                errors[name][i] = image_errors(maps[name], h_g, self.group, g, permuted)
                if tallies is self.errors and not errors[name][i].isfinite().all():
                    self._check_finite(name, maps[name], i)
        for name, h in maps.items():
            tallies[name].add(h, errors[name])
        return maps, outputs

    def _run(self, x: Tensor, look: Any = None) -> tuple[dict[str, Tensor], Any]:
        def compared(name: str, h: Tensor) -> Tensor:
            result = compared_maps(name, h, self.partition[name], self.action)
            if look is not None:
                look(name, h)
            return result

        with capture(self.model, list(self.partition), compared) as features:
            output = self.model(x)
        return dict(features), output

    def _check_finite(self, name: str, h: Tensor, i: int) -> None:
        """An error that is not a number is right only where the map is too small to have a valid pixel."""
        if self.group.coverage((h.shape[2], h.shape[3]))[i] > 0:
            where = f" of images under {self.group.labels[i]!r}" if bool(h.isfinite().all()) else ""
            raise ValueError(
                f"layer {name!r} returned NaN or infinite values{where}: there is nothing to measure; "
                f"look for a division by zero or a logarithm before it, or leave the layer out"
            )

    def _look(self, name: str, h: Tensor) -> None:
        self.sizes[name] = size = h.shape[2], h.shape[3]
        if not any(self.group.coverage(size)[1:]):
            raise ValueError(
                f"the {size[0]}×{size[1]} map of layer {name!r} is too small for {self.group}: no element "
                f"leaves a valid pixel; take larger images or a milder group, or leave the layer out"
            )
        self.diversity[name].add(h)

    def _predict(self, outputs: list[Any], labels: Tensor | None) -> None:
        first = outputs[0]
        scores = isinstance(first, Tensor) and first.ndim == 2
        if labels is not None:
            if not scores or first.shape[:1] != labels.shape:
                got = tuple(first.shape) if isinstance(first, Tensor) else f"a {type(first).__name__}"
                raise ValueError(
                    f"labels need a classifier with an output (B, classes) and a label for each image; "
                    f"got {got} and labels {tuple(labels.shape)}"
                )
            low, high, classes = int(labels.min()), int(labels.max()), max(first.shape[1], 2)
            if low < 0 or high >= classes:
                raise ValueError(
                    f"labels must be 0 to {classes - 1} for scores of {classes} classes; got {low} to {high}"
                )
        if not scores:
            self.predictions = None
        elif self.predictions is not None:
            self.predictions.add(outputs, labels)

    def _there_and_back(self, h: Tensor) -> dict[int, Tensor]:
        """Each image's error of transforming its map and transforming it back, where that resamples."""
        h, errors = full_precision(h), {}
        for i, element in enumerate(self.elements):
            if element.similarity is None or element.exact:
                continue
            step = replace(element.similarity, scale=min(element.similarity.scale, LARGEST))
            there = resample(h, [step], [len(h)])
            squares = (resample(there, [step.inverse], [len(h)]) - h).square()
            valid = valid_pixels((step, step.inverse), h.shape[2], h.shape[3], h.device)
            if valid is not None:
                # the centre stays where it is: alone it tells nothing of what resampling costs
                squares = squares[:, :, valid[0]] if valid.sum() > 1 else squares[..., :0, 0]
            errors[i] = squares.flatten(1).mean(1)  # NaN without pixels
        return errors

    def report(self, chosen: bool) -> Report:
        layers = {name: self._layer(name) for name in self.partition}
        shares = None
        averaged = None
        if self.labels is not None and self.predictions is not None:
            *hits, averaged = (self.predictions.hits / self.count).tolist()
            shares = dict(zip(self.group.labels, hits, strict=True))
        found = (chosen, self._output(shares), shares, averaged, self.action)
        return Report(str(self.group), self.count, layers, *found)

    def _layer(self, name: str) -> LayerReport:
        tally, everything = self.errors[name], range(1, len(self.group))
        elements = {}
        for i in everything:
            label, similarity, exact, degrees, factor = self.elements[i]
            relative, interval = tally.relative([i])
            floor = None
            if self.floors and similarity is not None:
                floor = (self.grid if exact else self.resampling)[name].relative([i])[0]
            elements[label] = ElementReport(tally.raw([i]), relative, interval, floor, exact, degrees, factor)
        floors = [e.floor for e in elements.values() if e.floor is not None and not math.isnan(e.floor)]
        diversity = self.diversity[name].of_groups
        known = diversity[~diversity.isnan()]
        relative, interval = tally.relative(everything)
        return LayerReport(
            raw=tally.raw(everything),
            relative=relative,
            interval=interval,
            floor=math.fsum(floors) / len(floors) if floors else None,
            variance=tally.variance,
            diversity=float(known.mean()) if len(known) else None,
            collapsed=tuple((diversity < COLLAPSED).nonzero().flatten().tolist()),
            num_groups=len(diversity),
            constant=self.diversity[name].constant,
            size=self.sizes[name],
            elements=elements,
        )

    def _output(self, accuracy: dict[str, float] | None) -> OutputReport | None:
        if self.predictions is None:
            return None
        tally, flips = self.predictions.tally, (self.predictions.flips / self.count).tolist()
        elements = {}
        for i in range(1, len(self.group)):
            label, _, exact, degrees, factor = self.elements[i]
            elements[label] = OutputElement(
                tally.relative([i])[0],
                flips[i],
                interval_of_share(flips[i], self.count),
                None if accuracy is None else accuracy[label],
                exact,
                degrees,
                factor,
            )
        changed = math.fsum(flips[1:]) / len(flips[1:])
        return OutputReport(tally.relative(range(1, len(self.group)))[0], changed, elements)


def _element(group: Group, i: int) -> _Element:
    match group.elements[i]:
        case (Similarity() as only,):
            degrees = float(360 * only.turn) if only.scale == 1 and not only.flip else None
            factor = float(only.scale) if only.turn == 0 and not only.flip else None
            return _Element(group.labels[i], only, only.exact, degrees, factor)
    return _Element(group.labels[i], None, False, None, None)


def _names(layers: str | Sequence[str] | None, feature_groups: Spec | Mapping[str, Spec]) -> list[str] | None:
    """The layers asked for, also by feature groups that name them; None leaves the choice open."""
    if isinstance(layers, str):
        return [layers]
    if layers is not None:
        if not layers:
            raise ValueError("measure needs at least one layer name (see model.named_modules()); got none")
        return list(layers)
    if isinstance(feature_groups, Mapping) and all(isinstance(key, str) for key in feature_groups):
        return [str(name) for name in feature_groups]
    return None
