"""How exact a network is, with rot90 and flip alone, and steps that train one whatever it returns."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.helpers.zoo import Entry

ROUNDING = 2e-5
"""A bound on :func:`error` for tied networks; those that are not tied have 0.02 to 2."""


def rotated(x: Tensor, quarters: int, flipped: bool) -> Tensor:
    """Images (…, H, W), mirrored left to right if ``flipped``, then rotated counterclockwise."""
    if flipped:
        x = x.flip(-1)
    return x.rot90(quarters, (-2, -1))


def vectors_rotated(v: Tensor, quarters: int, flipped: bool) -> Tensor:
    """Vectors (B, 2, …) of (dx, dy), dx to the right and dy down, as the images are rotated."""
    dx, dy = v.unbind(1)
    if flipped:
        dx = -dx
    for _ in range(quarters):
        dx, dy = dy, -dx  # right becomes up, down becomes right
    return torch.stack([dx, dy], 1)


def tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors in what a model returns, in order."""
    found = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            found.append(leaf)
    return found


def returned(model: nn.Module, entry: Entry, x: Tensor) -> list[Tensor]:
    """The tensors that a model returns for images."""
    return tensors(model(x, *entry.args, **entry.kwargs))


@torch.no_grad()
def error(model: nn.Module, entry: Entry, x: Tensor | None = None) -> float:
    """The largest rms(f(g x) − g f(x)) / spread of f(x) over images, of all g and all that f returns."""
    if x is None:
        x = entry.images(seed=99)
    turns, flips = [0], [False]
    if "rot" in entry.group:
        turns = [0, 1, 2, 3]
    if "flip" in entry.group:
        flips = [False, True]
    plain = returned(model, entry, x)
    largest = 0.0
    for quarters in turns:
        for flipped in flips:
            found = returned(model, entry, rotated(x, quarters, flipped))
            for y_g, y in zip(found, plain, strict=True):
                expected = y
                if y.ndim == 4:
                    expected = rotated(y, quarters, flipped)
                if entry.outputs == "vector":
                    expected = vectors_rotated(expected, quarters, flipped)
                spread = rms(y - y.mean(0))
                assert spread > 1e-4 * rms(y), "the images make no difference to what the model returns"
                largest = max(largest, rms(y_g - expected) / spread)
    return largest


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def loss(model: nn.Module, entry: Entry, seed: int = 0) -> Tensor:
    """The squared distance of all that a model returns from random targets."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    for y in returned(model, entry, entry.images(seed=seed)):
        target = torch.randn(y.shape, generator=generator)
        total = total + F.mse_loss(y.float(), target)
    return total


def train(model: nn.Module, entry: Entry, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    """Steps on one batch in train mode, back to eval mode after them; the losses."""
    model.train()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model, entry)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    model.eval()
    return losses
