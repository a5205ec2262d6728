"""What a model returns, as the explorer understands it, and how far it changes under an element.

classes   (B, classes): the prediction is the class of the largest score
pixels    (B, C, H, W) with several channels: each pixel has the class of the largest
values    any other floating-point tensor (B, …): there is no prediction, but an error
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._text import nearest
from ...groups.group import Group
from ...loss.error import MIN_VARIANCE, image_errors

__all__ = ["Kind", "changes", "kind_of", "output_of", "return_only"]

Kind = Literal["classes", "pixels", "values"]
MAX_LISTED_PARTS = 6
EXPECTED = "one floating-point tensor: scores (B, classes), maps (B, C, H, W) or values (B, …)"
REMEDY = f"let the function make a module that returns {EXPECTED}"


def return_only(model: nn.Module, key: str, x: Tensor) -> None:
    """Let a model return one part of what it returns, from now on.

    Args:
        model: A model that returns a dict, a tuple, a list or an object.
        key: The key, index or attribute of the part, such as ``logits`` or ``0``.
        x: A few images, to try it.

    Raises:
        ValueError: The output has no such part.
    """
    output = model(x)
    parts = _parts(output)
    if key not in parts:
        hint = ""
        if parts:
            hint = f": {nearest(key, list(parts), MAX_LISTED_PARTS)}"
        raise ValueError(f"the model returns {_described(output)}, without a part {key!r}{hint}")
    model.register_forward_hook(lambda module, args, output: _parts(output)[key])


def output_of(model: nn.Module, x: Tensor) -> Tensor:
    """Run a model and return its output, which must be one tensor with an entry for each image.

    Raises:
        ValueError: It is something else; the message says what, and how to name a part of it.
    """
    output = model(x)
    if isinstance(output, Tensor) and output.is_floating_point() and output.ndim > 0:
        if len(output) == len(x):
            return output
    for key, part in _parts(output).items():
        if isinstance(part, Tensor):
            raise ValueError(
                f"the model returns {_described(output)}: name the part to look at, such as "
                f"--output {key}, or {REMEDY}"
            )
    raise ValueError(
        f"the model returns {_described(output)} for {len(x)} images, which is not understood: {REMEDY}"
    )


def kind_of(output: Tensor) -> Kind:
    """Say how an output is read; see the top of this file.

    >>> kind_of(torch.zeros(2, 10)), kind_of(torch.zeros(2, 5, 8, 8)), kind_of(torch.zeros(2, 1))
    ('classes', 'pixels', 'values')
    """
    if output.ndim == 2 and output.shape[1] > 1:
        return "classes"
    if output.ndim == 4 and output.shape[1] > 1:
        return "pixels"
    return "values"


def changes(y: Tensor, y_g: Tensor, group: Group, g: Tensor, variance: float) -> Tensor:
    """Say how far the output of each image changes, from 0 for not at all.

        classes   p_g[argmax y_g] - p_g[argmax y], with p_g = softmax(y_g): 0 if the class stays
        pixels    the share of valid pixels where argmax y_g is not argmax g·y
        values    the mean of (y_g - y)², over the variance; of maps (y_g - g·y)²

    Args:
        y: The model's outputs for images, (B, …).
        y_g: Its outputs for the images under ``g``, of the same shape.
        group: The transformations.
        g: Element indices (B,).
        variance: Of the outputs of many images.

    Returns:
        One number for each image (B,); NaN where no pixel can be compared.

    >>> import ien
    >>> scores, of_views = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> changes(scores, of_views, ien.rotation(4), torch.tensor([1]), 1.0)
    tensor([0.7616])
    """
    kind = kind_of(y)
    if kind == "classes":
        probabilities = y_g.softmax(1)  # (B, classes)
        before = y.argmax(1, keepdim=True)  # (B, 1)
        return probabilities.amax(1) - probabilities.gather(1, before).squeeze(1)
    if kind == "pixels":
        moved = group.act_on_features(y, g)
        differ = (moved.argmax(1) != y_g.argmax(1)).unsqueeze(1)  # (B, 1, H, W)
        valid = group.valid(y, g)
        if valid is None:
            valid = torch.ones_like(differ)
        return (differ & valid).sum((1, 2, 3)) / valid.sum((1, 2, 3))
    if y.ndim == 4:
        return image_errors(y, y_g, group, g) / max(variance, MIN_VARIANCE)
    squares = (y_g - y).square().reshape(len(y), -1)  # (B, values)
    return squares.mean(1) / max(variance, MIN_VARIANCE)


def _parts(output: Any) -> dict[str, Any]:
    """Return the named parts of a container or an object."""
    if isinstance(output, Mapping):
        return {str(key): part for key, part in output.items()}
    if isinstance(output, tuple | list):
        return {str(i): part for i, part in enumerate(output)}
    if isinstance(output, Tensor):
        return {}
    return dict(getattr(output, "__dict__", {}))


def _described(output: Any) -> str:
    """Say what an output is: a dict with logits (2, 10), hidden (2, 64)."""
    parts = []
    for key, part in list(_parts(output).items())[:MAX_LISTED_PARTS]:
        shape = tuple(part.shape) if isinstance(part, Tensor) else f"a {type(part).__name__}"
        parts.append(f"{key} {shape}")
    text = f"a {type(output).__name__}"
    if isinstance(output, Tensor):
        text = f"one tensor {tuple(output.shape)} of {output.dtype}"
    elif parts:
        text += f" with {', '.join(parts)}"
    return text
