"""Models whose weights torch computes from others, beside plain models with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize


class Symmetric(nn.Module):
    """The parametrization of a kernel that is averaged over quarter turns and flips."""

    def forward(self, weight: Tensor) -> Tensor:
        views = []
        for turns in range(4):
            rotated = weight.rot90(turns, (-2, -1))
            views += [rotated, rotated.flip(-1)]
        return torch.stack(views).mean(0)


class _Pooled(nn.BatchNorm2d):
    """What a norm of pairs of channels becomes while it is tied: a pair shares its statistics."""

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        pairs = x.reshape(batch, channels // 2, 2 * height, width)
        return super().forward(pairs).view(x.shape)


def with_symmetric(model: nn.Module) -> nn.Module:
    """A copy whose convolutions, of 3×3 and larger, compute symmetric kernels."""
    return _copy_with(model, lambda conv: parametrize.register_parametrization(conv, "weight", Symmetric()))


def with_weight_norm(model: nn.Module) -> nn.Module:
    return _copy_with(model, parametrizations.weight_norm)


def with_spectral_norm(model: nn.Module) -> nn.Module:
    return _copy_with(model, parametrizations.spectral_norm)


def with_pooled_norms(model: nn.Module) -> nn.Module:
    """A copy whose BatchNorms have another class, and a number for each pair of channels."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data = tensor.data[::2].clone()
            module.__class__ = _Pooled
    return model


def plain_twin(model: nn.Module, original: nn.Module) -> nn.Module:
    """A copy of what ``model`` was made from, with the weights that its parametrizations compute."""
    twin = copy.deepcopy(original).eval()
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            twin.get_submodule(name).weight.data = module.weight.detach().clone()
    return twin


def _copy_with(model: nn.Module, change: Callable[[nn.Module], object]) -> nn.Module:
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d) and module.weight.shape[-1] > 1:
            change(module)
    return model.eval()
