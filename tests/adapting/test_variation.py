"""Changes to images: what stays, and what is mixed."""

from __future__ import annotations

import torch

from ien.adapting.variation import mixed


def test_mixed_images_lie_between_two_of_the_batch() -> None:
    x = torch.rand(40, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    out = mixed(x, 0.5, torch.Generator().manual_seed(1))
    unchanged = 0
    for i in range(40):
        if torch.equal(out[i], x[i]):
            unchanged += 1
            continue
        nearest = float("inf")
        for j in range(40):
            # the weight w that fits out_i = w x_i + (1 - w) x_j best
            direction = (x[i] - x[j]).flatten()
            if i == j:
                continue
            weight = ((out[i] - x[j]).flatten() @ direction) / (direction @ direction)
            nearest = min(nearest, float((weight * x[i] + (1 - weight) * x[j] - out[i]).abs().max()))
        assert nearest < 1e-5
    assert 10 < unchanged < 30


def test_a_share_of_zero_mixes_nothing() -> None:
    x = torch.rand(8, 3, 4, 4)
    assert mixed(x, 0.0, torch.Generator()) is x
