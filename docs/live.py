"""The page of the gallery: a small CNN, trained on upright digits, to look at from all sides: live.html."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.data import embedded_digits
from ien.report.page.model import write_model_page

STEPS, BATCH, TESTED_ON = 150, 64, 40


def trained_network() -> nn.Sequential:
    """Return a CNN that reads upright digits, and only those."""
    torch.manual_seed(0)
    x, y = embedded_digits()
    net = nn.Sequential()
    net.add_module("conv1", nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU()))
    net.add_module("pool", nn.MaxPool2d(2))
    net.add_module("conv2", nn.Sequential(nn.Conv2d(8, 16, 5), nn.BatchNorm2d(16), nn.ReLU()))
    net.add_module("classify", nn.Sequential(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(STEPS):
        chosen = torch.randint(len(x) - TESTED_ON, (BATCH,))
        F.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.eval()


def write(path: Path) -> None:
    images = embedded_digits()[0][-TESTED_ON:]
    settings = {"trained on": "upright digits"}
    name = "a small CNN"
    write_model_page(trained_network(), images, path, name=name, group=ien.rotation(4), settings=settings)


if __name__ == "__main__":
    write(Path(__file__).with_suffix(".html"))
