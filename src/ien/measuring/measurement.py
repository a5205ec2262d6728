"""A measurement in progress: run the model batch by batch, and sum up what it shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import FeatureAction
from ..loss.arguments import Arguments
from ..loss.capture import capture
from ..loss.error import compared_maps, image_errors
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import check_regular_layers, per_layer
from ..loss.reach import resampling_errors
from .choose_layers import choose_layers
from .floors import symmetric_kernels
from .inputs import try_model
from .report import Report
from .summary import LayerSums, Sums, described, report_of
from .sums import PredictionSums

__all__ = ["Measurement", "begin", "group_to_measure"]

Maps = dict[str, Tensor]
"""Layer name -> what is compared of it, (B, N, H, W)."""
Errors = dict[str, dict[int, Tensor]]
"""Layer name -> index of an element -> error of each image (B,)."""


class Measurement:
    """Everything a report is made of, summed over the batches added so far.

    Args:
        model: The model, in eval mode.
        group: The transformations.
        partition: Layer names to feature groups; the layers to measure.
        floors: Whether to measure floors too.
        action: What is compared of a layer.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        partition: Mapping[str, FeatureGroups],
        floors: bool,
        action: FeatureAction,
    ) -> None:
        if action == "regular":
            check_regular_layers(group, partition)
        self.model = model
        self.group = group
        self.floors = floors
        self.action = action
        self.count = 0
        self.labelled = 0
        self.arguments: Arguments = ((), {})
        """Of the batch that is being added."""
        self.elements = described(group)
        self.not_identity = range(1, len(group))
        self.layers = {}
        for name, feature_groups in partition.items():
            self.layers[name] = LayerSums(feature_groups, len(group))
        # until an output turns out not to be scores
        self.predictions: PredictionSums | None = PredictionSums(len(group))

    def add(self, x: Tensor, arguments: Arguments = ((), {}), labels: Tensor | None = None) -> None:
        """Add one batch.

        Args:
            x: Images (B, C, H, W).
            arguments: What the model takes besides them.
            labels: Their classes (B,), if they are known.
        """
        self.arguments = arguments
        maps, outputs = self._add_errors(x)
        scores = [_scores_of(output) for output in outputs]
        self._add_predictions(scores, labels)
        # what would be left if the weights were as good as they can be
        if self.floors:
            self._add_resampling_floors(maps)
            self._add_grid_floors(x)
        self.count += len(x)
        if labels is not None:
            self.labelled += len(x)

    @property
    def sums(self) -> Sums:
        """All sums so far; :meth:`merge` adds them to another measurement of the same layers."""
        return Sums(self.count, self.labelled, self.layers, self.predictions)

    def merge(self, parts: Iterable[Sums]) -> None:
        """Add what measurements of the same layers found on other images."""
        for part in parts:
            self.count += part.count
            self.labelled += part.labelled
            for name, layer in part.layers.items():
                self.layers[name].merge(layer)
            if part.predictions is None:
                self.predictions = None
            elif self.predictions is not None:
                self.predictions.merge(part.predictions)

    def report(self, chosen: bool) -> Report:
        """Return the report of all images added; ``chosen`` if the user named no layers."""
        return report_of(self.sums, self.group, self.floors, self.action, chosen)

    def _add_errors(self, x: Tensor) -> tuple[Maps, list[Any]]:
        """Add the errors of the model with its own kernels.

        Returns:
            The maps of the original images by layer, and the outputs under every element.
        """
        maps, output = self._run(x.clone(), first=True)  # a model may write into its input
        outputs = [output]
        permute = self.action == "regular"
        errors: Errors = defaultdict(dict)
        for i in self.not_identity:
            errors_of_layers, output = self._compare(x, maps, i, permute)
            outputs.append(output)
            for name, error in errors_of_layers.items():
                self._check_finite(name, maps[name], error, i)
                errors[name][i] = error
        for name, layer in self.layers.items():
            layer.errors.add(maps[name], errors[name])
        return maps, outputs

    def _add_grid_floors(self, x: Tensor) -> None:
        """Add the errors of the model with symmetric kernels, under quarter turns and flips."""
        exact = [i for i in self.not_identity if self.elements[i].exact]
        if not exact:
            return  # spare the forward pass of the original images
        errors: Errors = defaultdict(dict)
        with symmetric_kernels():
            maps, _ = self._run(x.clone())
            for i in exact:
                # symmetric kernels have no orientation, so the channels keep their places
                errors_of_layers, _ = self._compare(x, maps, i, permute=False)
                for name, error in errors_of_layers.items():
                    errors[name][i] = error
        for name, layer in self.layers.items():
            layer.grid_floors.add(maps[name], errors[name])

    def _add_resampling_floors(self, maps: Maps) -> None:
        """Add the errors of transforming each map and back, for the elements that resample."""
        for name, h in maps.items():
            errors = {}
            for i, element in enumerate(self.elements):
                if element.similarity is not None and not element.exact:
                    errors[i] = resampling_errors(h, element.similarity)
            self.layers[name].resampling_floors.add(h, errors)

    def _add_predictions(self, scores: list[Any], labels: Tensor | None) -> None:
        """Add the scores under every element, if the model is a classifier."""
        if labels is not None:
            _check_labels(labels, scores[0])
        if not _are_scores(scores[0]):
            self.predictions = None
        elif self.predictions is not None:
            self.predictions.add(scores, labels)

    def _compare(self, x: Tensor, maps: Maps, i: int, permute: bool) -> tuple[dict[str, Tensor], Any]:
        """Run the model on the images under element ``i`` and compare every layer.

        Args:
            x: The original images (B, C, H, W).
            maps: What the layers returned for them.
            i: The index of the element.
            permute: Whether the element also permutes the channels of feature groups.

        Returns:
            The error of each image (B,) by layer, and the output of the model.
        """
        g = torch.full((len(x),), i, device="cpu")
        maps_g, output = self._run(self.group.act(x, g))
        errors = {}
        for name, h_g in maps_g.items():
            permuted = None
            if permute:
                permuted = self.layers[name].feature_groups
            errors[name] = image_errors(maps[name], h_g, self.group, g, permuted)
        return errors, output

    def _run(self, x: Tensor, first: bool = False) -> tuple[Maps, Any]:
        """Run the model; return what is compared of each layer, and the output.

        ``first`` marks the original images, whose maps are also looked at before pooling.
        """

        def pooled(name: str, h: Tensor) -> Tensor:
            # inside the forward pass, so that only the smaller, pooled maps are kept
            result = compared_maps(name, h, self.layers[name].feature_groups, self.action)
            if first:
                self._look_at(name, h)
            return result

        with capture(self.model, list(self.layers), pooled) as features:
            args, kwargs = self.arguments
            output = self.model(x, *args, **kwargs)
        return dict(features), output

    def _look_at(self, name: str, h: Tensor) -> None:
        """Note the size and diversity of a layer's maps (B, C, H, W), if they are large enough."""
        layer = self.layers[name]
        height, width = h.shape[2:]
        layer.size = (height, width)
        coverage = self.group.coverage(layer.size)
        if not any(coverage[1:]):
            raise ValueError(
                f"the {height}×{width} map of layer {name!r} is too small for {self.group}: no element "
                f"leaves a valid pixel; use larger images or a milder group, or leave the layer out"
            )
        layer.diversity.add(h)

    def _check_finite(self, name: str, h: Tensor, error: Tensor, i: int) -> None:
        """Raise an error if a layer returned NaN or infinity for the images or their views."""
        if error.isfinite().all():
            return
        # the error is NaN by definition if the element leaves no valid pixel on so small a map
        coverage = self.group.coverage(self.layers[name].size)
        if coverage[i] == 0:
            return
        where = ""
        if h.isfinite().all():
            where = f" for images under {self.group.labels[i]!r}"
        raise ValueError(
            f"layer {name!r} returned NaN or infinite values{where}, so it cannot be measured: look for a "
            f"division by zero or a logarithm before it, or leave the layer out"
        )


def group_to_measure(group: Group | str) -> Group:
    """Return the group, and raise an error if it has nothing but the identity."""
    group = parse_group(group)
    if len(group) == 1:
        raise ValueError(
            f"group {group} contains only the identity, so there is nothing to measure; try rot4 or rot8"
        )
    return group


def begin(
    model: nn.Module,
    group: Group,
    x: Tensor,
    arguments: Arguments,
    names: list[str] | None,
    feature_groups: Spec | Mapping[str, Spec],
    floors: bool,
    action: FeatureAction,
) -> Measurement:
    """Run the model on a few images to see which layers there are, and return an empty measurement.

    Args:
        model: The model, in eval mode.
        group: The transformations.
        x: A few images (B, C, H, W); they are not added.
        arguments: What the model takes besides them.
        names: The layers to measure; None for the model's children that return maps.
        feature_groups: Of all layers, or by layer.
        floors: Whether to measure floors too.
        action: What is compared of a layer.
    """
    # the model gets copies, because it may write into its input
    try_model(model, x.clone(), arguments)
    if names is None:
        names = choose_layers(model, x.clone(), arguments)
    partition = per_layer(feature_groups, names)
    return Measurement(model, group, partition, floors, action)


def _scores_of(output: Any) -> Any:
    """Return the scores inside what models of Hugging Face return; anything else as it is."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _are_scores(output: Any) -> bool:
    return isinstance(output, Tensor) and output.ndim == 2


def _check_labels(labels: Tensor, output: Any) -> None:
    """Raise an error if the labels of a batch do not fit the model's output for it."""
    if not _are_scores(output) or output.shape[:1] != labels.shape:
        got = f"a {type(output).__name__}"
        if isinstance(output, Tensor):
            got = str(tuple(output.shape))
        raise ValueError(
            f"labels need a classifier that returns (B, classes), and one label per image; "
            f"got {got} and labels {tuple(labels.shape)}"
        )
    classes = max(output.shape[1], 2)  # a single score distinguishes two classes
    low = int(labels.min())
    high = int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must be 0 to {classes - 1} for scores of {classes} classes; got {low} to {high}"
        )
