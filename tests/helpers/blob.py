"""A target with a known pose in every frame, and a network whose features are the pixels."""

from __future__ import annotations

from functools import cache

import numpy as np
from torch import Tensor, nn

GREY = 128
SIDE = 63.5
"""Of the target's box: its exemplar of 127 pixels is then 127 pixels of the frame."""


class Pixels(nn.Module):
    """Features that are pixels: every fourth, less the grey of the ground, all of one length."""

    stride = 4

    def forward(self, x: Tensor) -> Tensor:
        pixels = 255 * x[..., ::4, ::4] - GREY
        length = pixels.flatten(1).norm(dim=1).clamp(min=1)[:, None, None, None]
        return pixels * (3000**0.5 / length)  # a response, of products times 0.001, is up to 3


class Net(nn.Module):
    """A small random network of stride 4."""

    stride = 4

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@cache
def frame(
    centre: tuple[float, float] = (200, 200),
    degrees: float = 0,
    scale: float = 1,
    size: tuple[int, int] = (401, 401),
    seed: int = 0,
) -> np.ndarray:
    """Waves under a bell, without symmetry, rotated and scaled about ``centre``, on grey."""
    draw = np.random.default_rng(seed)
    reach = 75 * scale
    x0, y0 = centre
    height, width = size
    rows = np.arange(*np.clip([int(y0 - reach), int(y0 + reach) + 2], 0, height))
    columns = np.arange(*np.clip([int(x0 - reach), int(x0 + reach) + 2], 0, width))

    # in the target's own axes
    dx, dy = (columns - x0) / scale, (rows[:, None] - y0) / scale
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    u, v = cos * dx - sin * dy, sin * dx + cos * dy

    image = np.zeros((len(rows), len(columns), 3))
    for _ in range(8):
        direction, length, phase = draw.random(3) * (2 * np.pi, 14, 2 * np.pi) + (0, 18, 0)
        along = np.cos(direction) * u + np.sin(direction) * v
        wave = np.sin(2 * np.pi * along / length + phase)
        image += wave[..., None] * (draw.random(3) - 0.5) * 80
    image *= np.exp(-(u**2 + v**2) / (2 * 15**2))[..., None]
    whole = np.full((*size, 3), GREY, np.uint8)
    whole[rows[:, None], columns] = np.clip(np.round(GREY + image), 0, 255)
    whole.setflags(write=False)
    return whole


def box(centre: tuple[float, float] = (200, 200), side: float = SIDE) -> np.ndarray:
    return np.array([centre[0] - (side - 1) / 2, centre[1] - (side - 1) / 2, side, side])
