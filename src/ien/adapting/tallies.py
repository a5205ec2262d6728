"""What versions of a model answer for images under every element, counted batch by batch.

What names classes is compared by its classes. Of anything else, with y = f(x) of the upright image,

    error of g            =  mean of ( g⁻¹ · f(g · x) - y )²   /  variance of y
    difference, upright   =  mean of ( y - y of the original )²  /  variance of y of the original
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._text import type_name
from ..groups.group import Group
from ..loss.error import MIN_VARIANCE
from ..loss.modules import tensors_in
from ..measuring.inputs import device_of, eval_mode, try_model
from .comparison import Version
from .outputs import Kind, Kinds, act_on_outputs, kinds_in, only_tensor

__all__ = ["ClassTally", "NumberTally", "num_classes"]


def num_classes(name: str, model: nn.Module, x: Tensor, outputs: Kinds) -> int | None:
    """How many classes a model tells apart; None if it does not name classes."""
    if outputs not in ("scores", "map"):
        return None
    with eval_mode(model), torch.inference_mode():
        scores = _scores(name, model, x, outputs)
    classes = scores.shape[1]
    if outputs == "map" and classes == 1:
        return None  # a depth, or how likely one class is: the largest of one number says nothing
    return classes


def _scores(name: str, model: nn.Module, x: Tensor, outputs: Kinds) -> Tensor:
    """What a model returns for images, as scores (B, classes) or a map of them."""
    scores = only_tensor(try_model(model, x))
    dims = 2 if outputs == "scores" else 4
    if scores.ndim != dims or len(scores) != len(x) or (outputs == "scores" and scores.shape[1] < 2):
        returned = f"for images {tuple(x.shape)} it returns {tuple(scores.shape)}"
        if outputs == "map":
            raise ValueError(
                f'with outputs="map" the model should return maps (B, classes, n, n); {returned}: say what '
                f'that is, outputs="scores" for (B, classes), … (in the shell: --outputs scores), or wrap it '
                f"in a module that returns maps"
            )
        raise ValueError(
            f'the model should return scores (B, classes); {returned}: say what that is, outputs="map" for '
            f"(B, classes, n, n), … (in the shell: --outputs map), or wrap it in a module that returns scores"
        )
    # a score of minus infinity rules a class out; if the largest is infinite, there is no answer
    _check_finite(name, scores.amax(1))
    return scores


class ClassTally:
    """Which classes the versions of a model name for images, or for their pixels."""

    def __init__(self, group: Group, outputs: Kinds) -> None:
        self.group = group
        self.outputs = outputs
        self._predicted: dict[str, list[Tensor]] = {}  # (|G|, B, …) of each batch

    @property
    def num_images(self) -> int:
        batches = next(iter(self._predicted.values()))
        return sum(batch.shape[1] for batch in batches)

    def add(self, name: str, model: nn.Module, x: Tensor) -> None:
        """Predict the images of a batch under each element; masks are rotated back."""
        x = x.to(device_of(model, x.device))
        rows = []
        for element in range(len(self.group)):
            moved = self.group.act(x, element)
            classes = _scores(name, model, moved, self.outputs).argmax(1)  # (B,) or (B, n, n)
            if self.outputs == "map":
                classes = self.group.act_on_masks(classes, element, inverse=True)
            rows.append(classes.cpu())
        self._predicted.setdefault(name, []).append(torch.stack(rows))

    def versions(self, original: str, labels: Tensor | None) -> dict[str, Version]:
        """Count how often the predictions are alike, and right."""
        found = {name: torch.cat(batches, dim=1) for name, batches in self._predicted.items()}  # (|G|, N, …)
        _, *needed = found[original].shape
        if labels is not None and labels.shape != tuple(needed):
            raise ValueError(f"labels must have the shape {tuple(needed)}; got {tuple(labels.shape)}")
        versions = {}
        for name, classes in found.items():
            upright = classes[0]
            version = Version()
            version.all_agree = _share((classes == upright).all(0))
            version.like_original = _share(upright == found[original][0])
            for label, row in zip(self.group.labels, classes, strict=True):
                version.agreement[label] = _share(row == upright)
                if labels is not None:
                    version.accuracy[label] = _share(row == labels.cpu())
            versions[name] = version
        return versions


def _share(true: Tensor) -> float:
    return float(true.double().mean())


class NumberTally:
    """What the versions of a model return, if it is not classes."""

    def __init__(self, group: Group, outputs: Kinds) -> None:
        self.group = group
        self.outputs = outputs
        self._upright: dict[str, list[dict[str, Tensor]]] = {}  # what each batch gives
        self._squares: dict[str, dict[str, Tensor]] = {}  # name -> key -> sums over images (|G|,)

    @property
    def num_images(self) -> int:
        batches = next(iter(self._upright.values()))
        return sum(len(next(iter(batch.values()))) for batch in batches)

    def add(self, name: str, model: nn.Module, x: Tensor) -> None:
        """Run the images of a batch under each element, and rotate what comes back."""
        x = x.to(device_of(model, x.device))
        height, width = x.shape[-2:]
        squares = self._squares.setdefault(name, {})
        upright: dict[str, Tensor] = {}
        for element in range(len(self.group)):
            g = torch.full((len(x),), element)
            returned = try_model(model, self.group.act(x, g))
            back = act_on_outputs(returned, self.outputs, self.group, g, (height, width), inverse=True)
            for key, values in _by_key(back, self.outputs).items():
                _check_finite(name, values)
                if element == 0:
                    upright[key] = values
                sums = squares.setdefault(key, torch.zeros(len(self.group), dtype=torch.float64))
                sums[element] += (values - upright[key]).square().sum()
        self._upright.setdefault(name, []).append(upright)

    def versions(self, original: str, labels: Tensor | None) -> dict[str, Version]:
        """Relate the sums to how much the answers differ between images."""
        expected = self._whole(original)
        versions = {}
        for name, squares in self._squares.items():
            version = Version()
            found = self._whole(name)
            for key, values in found.items():
                errors = squares[key] / values.numel() / _variance(values)  # (|G|,)
                version.errors[key] = dict(zip(self.group.labels, errors.tolist(), strict=True))
                gap = (values - expected[key]).square().mean()
                version.differences[key] = float(gap / _variance(expected[key]))
            versions[name] = version
        return versions

    def _whole(self, name: str) -> dict[str, Tensor]:
        """What a version returns for all upright images, by key."""
        batches = self._upright[name]
        whole = {}
        for key in batches[0]:
            whole[key] = torch.cat([batch[key] for batch in batches])
        return whole


def _by_key(returned: Any, outputs: Kinds) -> dict[str, Tensor]:
    """Return the tensors of what a model returned by key, as numbers whose differences count."""
    tensors = list(tensors_in(returned))
    if not tensors:
        raise ValueError(f"the model should return tensors; it returned {type_name(returned)}")
    found = {}
    keys = _keys(returned)
    kinds = kinds_in(returned, outputs)
    for key, tensor, kind in zip(keys, tensors, kinds, strict=True):
        found[key] = _comparable(tensor.double().cpu(), kind)
    return found


def _keys(returned: Any) -> list[str]:
    """Name each tensor that a model returns, by its key or number; a single one is ""."""
    if isinstance(returned, Mapping):
        keys = []
        for key, value in returned.items():
            inside = len(list(tensors_in(value)))
            if inside == 1:
                keys.append(str(key))
            else:
                keys += [f"{key} {i}" for i in range(inside)]
        return keys
    count = len(list(tensors_in(returned)))
    if count == 1:
        return [""]
    return [str(i) for i in range(count)]


def _comparable(values: Tensor, kind: Kind) -> Tensor:
    if kind == "scores":
        return values.softmax(1)  # scores mean the same with a number added to all of them
    if kind == "angles":
        radians = values.deg2rad()
        return torch.stack([radians.cos(), radians.sin()], dim=-1)  # 359° is close to 1°
    return values


def _variance(values: Tensor) -> Tensor:
    return values.var(unbiased=False).clamp(min=MIN_VARIANCE)


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        raise ValueError(
            f"{name!r} answers with NaN or infinity: look at its weights, and at the range of the images"
        )
