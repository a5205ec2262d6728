"""Rotated maps and permuted members from labels alone, independent of the library; small nets to tie."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien

D4 = ien.rotation(4) * ien.reflection()


def moved(x: Tensor, label: str) -> Tensor:
    """An image (…, n, n) under an element, from its label alone."""
    label = label.replace("vflip", "180° flip").replace("identity", "")
    if "flip" in label:
        x = x.flip(-1)
    quarters = int(label.split("°")[0]) // 90 if "°" in label else 0
    return x.rot90(quarters, (-2, -1))


def member_moved(group: ien.Group, size: int, g: int, m: int) -> int:
    """The member that element ``g`` moves to place ``m``: by counting, or found with pictures."""
    if size < len(group) or group == ien.rotation(4):
        return (m - g) % size
    picture = torch.arange(9.0).view(3, 3)
    made = [moved(picture, label) for label in group.labels]
    return next(j for j in range(size) if torch.equal(moved(made[j], group.labels[g]), made[m]))


def channels_moved(group: ien.Group, feature_groups: object, channels: int, g: int) -> list[int]:
    """The channel that element ``g`` moves to each place."""
    table, first = [], 0
    for size, count in ien.FeatureGroups.of(feature_groups).blocks(channels):  # type: ignore[arg-type]
        for start in range(first, first + count, size):
            table += [start + member_moved(group, size, g, m) for m in range(size)]
        first += count
    return table


def regular_error(net: nn.Module, x: Tensor, feature_groups: object) -> float:
    """Relative error of all channels under 90°, permuted and rotated one by one."""
    with torch.no_grad():
        h, h_g = net(x), net(x.rot90(1, (-2, -1)))
    expected = h.rot90(1, (-2, -1))[:, channels_moved(ien.rotation(4), feature_groups, h.shape[1], 1)]
    return float((h_g - expected).square().mean() / h.var())


class Net(nn.Module):
    """A module from what it is made of, and a function of it and its input."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def assert_same_weights(net: nn.Module, before: dict[str, Tensor]) -> None:
    """The model is as it was, to the bit, and no hook is left."""
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def assert_refused(message: str, net: nn.Module, *arguments: Any, **settings: Any) -> None:
    """The model cannot be started so; it is as it was, to the bit, and has no other hooks."""

    def hooks() -> list[int]:
        return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]

    before, own = state(net), hooks()
    with pytest.raises(ValueError, match=message):
        ien.start_equivariant(net, *arguments, **settings)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert hooks() == own


def state(net: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(net.state_dict())


def classifier(members: int = 4, **conv: object) -> nn.Sequential:
    """Two convolutions, '0' and '3', a norm, and a linear layer '7' on pooled features."""
    return nn.Sequential(
        nn.Conv2d(1, 2 * members, 3, **conv),  # type: ignore[arg-type]
        nn.BatchNorm2d(2 * members),
        nn.ReLU(),
        nn.Conv2d(2 * members, 3 * members, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3 * members, 5),
    )


def images(count: int = 8, size: int = 11, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(seed))


def backward(model: nn.Module, seed: int = 0) -> Tensor:
    """A loss of :func:`classifier`, and its gradients."""
    x = images(seed=seed).to(next(model.parameters()).dtype)
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 5)
    loss.backward()
    return loss


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> float:
    optimizer.zero_grad()
    loss = backward(model, seed)
    optimizer.step()
    return float(loss.detach())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6) -> None:
    model.train()
    for seed in range(1, steps + 1):
        step(model, optimizer, seed)
    model.eval()


def exact_error(model: nn.Module, group: str, members: int) -> float:
    """The larger error of layer '4' and of the output under quarter turns and flips."""
    x = images(seed=99)
    report = ien.measure(model, x, group, ["4"], members, floors=False, action="regular")
    with torch.no_grad():
        difference = model(x) - model(x.rot90(1, (-2, -1)))
    return max(report.layers["4"].exact or 0.0, float(difference.square().mean()))
