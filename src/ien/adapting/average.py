"""Average a model over a group: exact, nothing is trained, as many passes as elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.modules import map_leaves, tensors_in
from ..measuring.inputs import check_tensor
from .outputs import Kind, Kinds, act_on_outputs, check_kinds, check_module, kinds_in

__all__ = ["GroupAverage"]


class GroupAverage(nn.Module):
    """The mean of a model's answers under all elements of a group, each rotated back first.

        f̄(x)  =  1/|G|  Σ_g  g⁻¹ · f(g · x)

    However the model was trained, f̄ is exactly invariant (scores) or equivariant (maps, boxes, …)
    to quarter turns and flips. Rotations by other angles resample the image, so they are as good as
    the pixels allow.

    It costs |G| passes: use :class:`Canonicalize` if that is too much, or :func:`adapt` if nothing
    may be added at all. Gradients flow through it, so it can be fine-tuned too, and
    :func:`ien.export` writes it into one file.

    Args:
        model: A trained model. It is used as it is, not copied.
        group: The transformations, such as ``"rot4"``.
        outputs: What it returns: ``"scores"`` of classes before a softmax, whose probabilities are
            averaged (it returns their logarithms); ``"invariant"`` for embeddings and other numbers
            that should not change; or what moves with the image: ``"map"``, ``"boxes"``,
            ``"points"`` or ``"vectors"``; a dict from keys if the model returns a dict. Only what
            has the same shape for every image: not boxes after suppression.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    >>> images = torch.rand(2, 3, 8, 8)
    >>> averaged = GroupAverage(net, "rot4")
    >>> torch.allclose(averaged(images), averaged(images.rot90(1, (2, 3))), atol=1e-5)
    True
    """

    def __init__(self, model: nn.Module, group: Group | str, outputs: Kinds = "scores") -> None:
        super().__init__()
        check_module(model, "GroupAverage")
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
            args: What the model takes besides.
            kwargs: The same by name.
        """
        check_tensor(images)
        height, width = images.shape[-2:]
        answers = []
        for element in range(len(self.group)):
            # a pass for each element: one pass over all would take |G| times the memory
            returned = self.model(self.group.act(images, element), *args, **kwargs)
            answers.append(
                act_on_outputs(
                    returned,
                    self.outputs,
                    self.group,
                    element,
                    (height, width),
                    inverse=True,
                    batch=images.shape[0],  # not len(): an export must not see the number of images
                )
            )

        kinds = kinds_in(answers[0], self.outputs)
        means = []
        for kind, *tensors in zip(kinds, *map(tensors_in, answers), strict=True):
            means.append(_mean(torch.stack(tensors), kind))  # (|G|, B, …) -> (B, …)
        remaining = iter(means)

        def replaced(leaf: Any) -> Any:
            return next(remaining) if isinstance(leaf, Tensor) else leaf

        return map_leaves(answers[0], replaced)

    def extra_repr(self) -> str:
        return f"group={self.group}, outputs={self.outputs!r}"


def _mean(values: Tensor, kind: Kind) -> Tensor:
    """The mean over elements, (|G|, B, …) -> (B, …); of scores, log of the mean probability."""
    if kind == "scores":
        # log 1/|G| Σ p: one orientation that is sure counts more than three that are not
        return values.log_softmax(2).logsumexp(0) - math.log(len(values))  # (B, classes)
    return values.mean(0)
