"""Average a model over a group: exact, nothing is trained, as many passes as elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.arguments import repeat_for_views
from ..loss.modules import map_leaves
from .outputs import Kinds, act_on_outputs, check_kinds

__all__ = ["GroupAverage"]


class GroupAverage(nn.Module):
    """The mean of a model's answers under all elements of a group, each rotated back first.

        f̄(x)  =  1/|G|  Σ_g  g⁻¹ · f(g · x)

    However the model was trained, f̄ is exactly invariant (scores) or equivariant (maps, boxes, …)
    to quarter turns and flips. Rotations by other angles resample the image, so they are as good as
    the pixels allow.

    It costs |G| passes: use :class:`Canonicalize` if that is too much, or :func:`adapt` if nothing
    may be added at all. Gradients flow through it, so it can be fine-tuned too.

    Args:
        model: A trained model. It is used as it is, not copied.
        group: The transformations, such as ``"rot4"``.
        outputs: What it returns: ``"scores"`` of classes before a softmax, whose probabilities are
            averaged (it returns their logarithms); ``"invariant"`` for embeddings and other numbers
            that should not change; or what moves with the image: ``"map"``, ``"boxes"``,
            ``"points"`` or ``"vectors"``; a dict from keys if the model returns a dict. Only what has the same shape for every image: not boxes after
            suppression.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    >>> images = torch.rand(2, 3, 8, 8)
    >>> averaged = GroupAverage(net, "rot4")
    >>> torch.allclose(averaged(images), averaged(images.rot90(1, (2, 3))), atol=1e-5)
    True
    """

    def __init__(self, model: nn.Module, group: Group | str, outputs: Kinds = "scores") -> None:
        super().__init__()
        check_kinds(outputs)
        if "angles" in (outputs.values() if isinstance(outputs, Mapping) else [outputs]):
            raise ValueError('angles have no mean: average directions instead, outputs="vectors"')
        self.model = model
        self.group = named_group(group)
        self.outputs = outputs

    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, averaged.

        Args:
            images: (B, C, H, W).
            args: What the model takes besides. Tensors with an entry for each image are repeated.
            kwargs: The same by name.
        """
        batch = len(images)
        count = len(self.group)
        g = torch.arange(count).repeat_interleave(batch)  # (|G| B,), element by element
        views = self.group.act(images.repeat(count, 1, 1, 1), g)  # (|G| B, C, H, W)
        args, kwargs = repeat_for_views(args, kwargs, batch, count)
        returned = self.model(views, *args, **kwargs)
        height, width = images.shape[-2:]
        back = act_on_outputs(returned, self.outputs, self.group, g, (height, width), inverse=True)

        def mean(value: Any, kind: str) -> Any:
            if not isinstance(value, Tensor):
                return value
            values = value.unflatten(0, (count, batch))  # (|G|, B, …)
            if kind == "scores":
                # log 1/|G| Σ p: one orientation that is sure counts more than three that are not
                return values.log_softmax(2).logsumexp(0) - math.log(count)  # (B, classes)
            return values.mean(0)  # (B, …)

        if isinstance(self.outputs, Mapping):
            return {key: map_leaves(back[key], partial(mean, kind=self.outputs[key])) for key in back}
        return map_leaves(back, partial(mean, kind=self.outputs))

    def extra_repr(self) -> str:
        return f"group={self.group}, outputs={self.outputs!r}"
