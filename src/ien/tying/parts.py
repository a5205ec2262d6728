"""Parts of a batch: the gradient in a weight, as a sum over parts of the images.

If a layer computes y = W x, and δ is the gradient of the loss in y, the gradient in W is a sum over
images, so each part of a batch has its share of it:

    ∂L/∂W = Σ_b δ_b x_bᵀ,    or for a convolution the sum of the correlations of δ_b and x_b.

Norms may pool statistics over the batch: they are the same however each image lies, so the share of
an image rotates with that image and with no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

__all__ = ["Parts", "forget_parts"]


class Parts:
    """Splits the gradients in some layers' weights while a model trains.

    >>> conv = nn.Conv2d(1, 2, 3)
    >>> parts = Parts({"conv": [conv]}, count=3)
    >>> conv(torch.rand(6, 1, 5, 5)).sum().backward()
    >>> shares = [each["conv"] for each in parts.take()]
    >>> len(shares), torch.allclose(sum(shares), conv.weight.grad)
    (3, True)
    """

    def __init__(self, layers: Mapping[str, Sequence[nn.Module]], count: int) -> None:
        """Begin to split gradients; :meth:`close` ends it.

        Args:
            layers: Modules by the name of their weight, which they may share.
            count: The parts of a batch.
        """
        self.count = count
        self.views = 1
        """How often each image is in a batch: first all images, then all of them again."""
        self.shares: dict[str, list[Tensor]] = {}
        """Of each weight, the gradient of each part."""
        self.handles = []
        for name, modules in layers.items():
            for module in modules:
                hook = _Hook(self, name)
                self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def take(self) -> list[dict[str, Tensor]]:
        """Return the gradients of each part by weight, and forget them; empty if no layer ran."""
        shares, self.shares = self.shares, {}
        if not shares:
            return []
        parts = []
        for i in range(self.count):
            parts.append({name: of_parts[i] for name, of_parts in shares.items()})
        return parts

    def close(self) -> None:
        """Leave the layers as they were."""
        for handle in self.handles:
            handle.remove()

    @torch.no_grad()
    def add(self, name: str, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        """Split the gradient in a weight, from a layer's input and the gradient in its output."""
        weight: Any = module.weight
        if name not in self.shares:
            self.shares[name] = [torch.zeros_like(weight) for _ in range(self.count)]
        for share, inputs, outputs in zip(self.shares[name], self._split(x), self._split(grad), strict=True):
            if len(inputs):
                share += _weight_gradient(module, weight.shape, inputs.to(grad.dtype), outputs)

    def _split(self, x: Tensor) -> list[Tensor]:
        """Split (views * B, …) into parts of the B images, each with all its views."""
        images = x.unflatten(0, (self.views, -1))  # (views, B, …)
        return [part.flatten(0, 1) for part in images.tensor_split(self.count, dim=1)]


class _Hook:
    """Remembers a layer's input until the gradient in its output is known."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.parts = parts
        self.name = name

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        if not (module.training and output.requires_grad):
            return
        given = [*args, *kwargs.values()]
        x = given[0].detach()
        output.register_hook(lambda grad: self.parts.add(self.name, module, x, grad))


def forget_parts(model: nn.Module) -> None:
    """Take the hooks of all :class:`Parts` away from a model, also from a copy of one."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, _Hook):
                del module._forward_hooks[key]
                module._forward_hooks_with_kwargs.pop(key, None)


def _weight_gradient(module: nn.Module, shape: torch.Size, x: Tensor, grad: Tensor) -> Tensor:
    """Return ∂L/∂W of a layer, from its input and the gradient in its output."""
    if isinstance(module, nn.Linear):
        return grad.flatten(0, -2).T @ x.flatten(0, -2)  # (O, I)
    if isinstance(module, nn.ConvTranspose2d):
        # the backward pass of a convolution from its output to its input
        return conv2d_weight(
            grad, shape, x, module.stride, module.padding, module.dilation, module.groups
        )  # (I, O / groups, h, w)
    assert isinstance(module, nn.Conv2d)
    mode = module.padding_mode if module.padding_mode != "zeros" else "constant"
    padded = F.pad(x, module._reversed_padding_repeated_twice, mode)  # (b, I, H + …, W + …)
    return conv2d_weight(
        padded, shape, grad, module.stride, 0, module.dilation, module.groups
    )  # (O, I / groups, h, w)
