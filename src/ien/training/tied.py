"""Tied weights: from a network that starts equivariant to an optimizer that keeps it so in every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._groups import Group
from .._inputs import eval_mode
from .._regular import Blocks
from .._seen import Views
from .._tied import tie

__all__ = ["keep_tied"]

ONE: Blocks = ((1, 1),)
"""What stands before a number for each channel, as before the single map of a grey image."""


class _Tie(NamedTuple):
    """A parameter or buffer, and the feature groups on its two sides."""

    tensor: Tensor
    after: Blocks
    before: Blocks
    conv_groups: int = 1

    def mean(self, values: Tensor, group: Group) -> Tensor:
        """Values for the tensor, averaged over ``group``."""
        kernels = values.reshape(*values.shape, *[1] * (4 - values.ndim))
        return tie(kernels, self.after, self.before, group, self.conv_groups)[0].view_as(values)


def keep_tied(network: nn.Module, optimizer: torch.optim.Optimizer, group: Group, images: Tensor) -> None:
    """Let ``optimizer`` take, in every step, the gradients that tied weights have.

    ``network`` is equivariant to ``group``, whose elements only permute pixels; ``images`` (B, C, H, W) are
    run once to see the feature groups on both sides of each layer. A gradient becomes its mean over the
    group, as that of a weight that stands in several places, so that weights which are equal stay equal, also
    under Adam. Running statistics of norms, which follow each member by itself, are averaged as well.
    """
    ties = _ties_of(network, group, images)

    def project(*_: object) -> None:
        with torch.no_grad():
            for each in ties:
                values = each.tensor.grad if isinstance(each.tensor, nn.Parameter) else each.tensor
                if values is not None:
                    values.copy_(each.mean(values, group))

    optimizer.register_step_pre_hook(project)


def _ties_of(network: nn.Module, group: Group, images: Tensor) -> list[_Tie]:
    """What a network has for feature groups: kernels, and numbers for each channel."""
    views = Views(group, [network.feature_groups])  # type: ignore[list-item]
    ties: list[_Tie] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        before, after = (_blocks(views, module, h) for h in (inputs[0], output))
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for tensor in (t for t in own if t.is_floating_point()):
            if tensor.ndim == 1:
                found = _Tie(tensor, after, ONE)
            else:
                found = _Tie(tensor, after, before, getattr(module, "groups", 1))
            if {size for size, _ in (*found.after, *found.before)} != {1} or tensor.shape[2:].numel() > 1:
                ties.append(found)

    layers = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.no_grad(), eval_mode(network):
            network(views.of(images))
    finally:
        for handle in handles:
            handle.remove()
    return ties


def _blocks(views: Views, module: nn.Module, h: Tensor) -> Blocks:
    seen = views.look(h[:, :, None, None] if h.ndim == 2 else h)
    if seen is None:
        raise RuntimeError(
            f"what {module} takes or returns does not turn with the images: start it equivariant"
        )
    return seen.blocks
