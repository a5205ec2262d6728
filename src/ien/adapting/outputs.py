"""What a model returns for a rotated image, rotated back.

Scores stay what they are. A map, a box, a point, a vector or an angle moves with the image:

    f(g · x)  =  g · f(x)        so        f(x)  =  g⁻¹ · f(g · x)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn

from .._text import type_name
from ..groups.group import Group
from ..loss.modules import map_leaves, tensors_in

__all__ = [
    "Kind",
    "Kinds",
    "act_on_outputs",
    "check_kinds",
    "check_module",
    "check_square",
    "kinds_in",
    "only_tensor",
]

Kind = Literal["scores", "invariant", "map", "boxes", "points", "vectors", "angles"]
"""How a tensor changes with the image. Scores of classes (before a softmax) do not, and neither
does anything else that is invariant, such as an embedding."""
Kinds = Kind | Mapping[str, Kind]
"""One kind for all tensors, or one for each key of the dict that a model returns."""


def check_kinds(kinds: object) -> None:
    """Raise a ValueError if ``kinds`` is not a :data:`Kind`, or a mapping to them."""
    named = kinds.values() if isinstance(kinds, Mapping) else [kinds]
    for kind in named:
        if kind not in get_args(Kind):
            known = ", ".join(map(repr, get_args(Kind)))
            raise ValueError(f"outputs must be one of {known}, or a dict of them by key; got {kind!r}")


def check_module(model: object, name: str) -> None:
    """Raise a TypeError if what ``name`` was given is not a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} needs a torch.nn.Module; got {type_name(model)}")


def check_square(images: Tensor) -> None:
    """Raise a ValueError if these are not square images (B, C, n, n)."""
    if images.ndim != 4 or images.shape[-1] != images.shape[-2]:
        raise ValueError(
            f"images must be square, (B, C, n, n), to be rotated; got {tuple(images.shape)}: crop them, "
            f"for example to the square in the middle (in the shell: --size 224)"
        )


def act_on_outputs(
    outputs: Any,
    kinds: Kinds,
    group: Group,
    g: Tensor | int,
    size: tuple[int, int],
    inverse: bool = False,
    batch: int | None = None,
) -> Any:
    """Transform what a model returned for image ``i`` by element ``g[i]``.

    Args:
        outputs: A tensor whose first dim is the batch, or a tuple, list or dict of them.
        kinds: How they change with the image.
        group: The transformations.
        g: Element indices (B,), or one index for all images.
        size: Height and width of the images.
        inverse: Undo the elements instead.
        batch: How many images there are; by default as many as indices.

    Raises:
        ValueError: A tensor has not the shape of its kind, or a key has no kind.
    """
    if batch is None and isinstance(g, Tensor):
        batch = len(g)
    if isinstance(kinds, Mapping):
        if not isinstance(outputs, Mapping):
            raise ValueError(
                f"outputs names keys ({', '.join(kinds)}), but the model returns a {type(outputs).__name__}: "
                f'give one kind, such as outputs="map"'
            )
        changed = {}
        for key, value in outputs.items():
            if key not in kinds:
                raise ValueError(
                    f"the model returns {key!r}, which outputs does not name (it names {', '.join(kinds)}): "
                    f"add its kind, such as {key!r}: 'invariant' (in the shell: {key}=invariant)"
                )
            changed[key] = act_on_outputs(value, kinds[key], group, g, size, inverse, batch)
        return changed

    def act(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        _check_shape(value, kinds, batch)
        return _act_on_tensor(value, kinds, group, g, size, inverse)

    return map_leaves(outputs, act)


def kinds_in(outputs: Any, kinds: Kinds) -> list[Kind]:
    """Return the kind of each tensor of what a model returns, in order."""
    if isinstance(kinds, Mapping):
        found: list[Kind] = []
        for key, value in outputs.items():
            found += [kinds[key]] * len(list(tensors_in(value)))
        return found
    return [kinds] * len(list(tensors_in(outputs)))


def only_tensor(outputs: Any) -> Tensor:
    """Return the one tensor of what a model returns, such as ``{"logits": tensor}``.

    Raises:
        ValueError: There is none, or more than one.
    """
    found = list(tensors_in(outputs))
    if len(found) == 1:
        return found[0]
    wrap = "wrap it in a module that returns its scores (B, classes) alone"
    if not found:
        raise ValueError(f"the model returns {type_name(outputs)} without a tensor: {wrap}")
    if isinstance(outputs, Mapping):
        keys = list(map(str, outputs))
        raise ValueError(
            f"the model returns a dict with {', '.join(keys)}: say what each of them is, "
            f"outputs={{{keys[0]!r}: 'scores', …}} (in the shell: --outputs {keys[0]}=scores,…), or {wrap}"
        )
    raise ValueError(f"the model returns {type_name(outputs)} with {len(found)} tensors: {wrap}")


def _act_on_tensor(
    value: Tensor, kind: Kind, group: Group, g: Tensor | int, size: tuple[int, int], inverse: bool
) -> Tensor:
    match kind:
        case "scores" | "invariant":
            return value
        case "map":
            return group.act(value, g, inverse)
        case "boxes":
            return group.act_on_boxes(value, g, size, inverse)
        case "points":
            return group.act_on_points(value, g, size, inverse)
        case "vectors":
            return group.act_on_vectors(value, g, inverse)
        case "angles":
            return group.act_on_angles(value, g, inverse)


SHAPES = {
    "scores": "(B, classes), two classes or more,",
    "invariant": "(B, …)",
    "map": "(B, C, H, W)",
    "boxes": "(B, …, 4)",
    "points": "(B, …, 2)",
    "vectors": "(B, …, 2)",
    "angles": "(B, …)",
}


def _check_shape(value: Tensor, kind: Kind, batch: int | None) -> None:
    # shape[0] and not len(): an export must not see the number of images
    fits = value.ndim >= 1 and (batch is None or value.shape[0] == batch)
    if kind == "scores":
        fits = fits and value.ndim == 2 and value.shape[1] > 1  # of one class the softmax is always 1
    if kind == "map":
        fits = fits and value.ndim == 4
    if kind == "boxes":
        fits = fits and value.shape[-1] == 4
    if kind in ("points", "vectors"):
        fits = fits and value.shape[-1] == 2
    if not fits:
        raise ValueError(
            f"outputs={kind!r} needs tensors {SHAPES[kind]} with B = {batch}; the model returns "
            f"{tuple(value.shape)}: pick another kind, or wrap the model"
        )
