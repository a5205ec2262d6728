"""Accuracy against the cost of inference on Rot-MNIST: rot-mnist-costs.png."""

from __future__ import annotations

from matplotlib.figure import Figure
from records import rows, save

from ien.report.plots.costs import plot_costs

# row: what to call it
ROWS = {
    "rot-mnist/cnn": "ordinary CNN",
    "rot-mnist/cnn-aug": "CNN + rotated copies",
    "rot-mnist/cnn-aug-tta": "CNN + rotated copies, averaged over 4 rotations",
    "rot-mnist/e2cnn": "E2CNN",
    "rot-mnist/equivariant": "equivariant (tied)",
    "rot-mnist/ien-r4": "CNN + the paper's loss, β = 1",
    "rot-mnist/ien-r4-beta0.1": "CNN + the paper's loss, β = 0.1",
    "rot-mnist/ien-r4-beta0.01": "CNN + the paper's loss, β = 0.01",
    "rot-mnist/het-ien": "smaller CNN + the paper's loss",
}


def draw() -> Figure:
    known = rows("rot-mnist/*")
    return plot_costs([known[name] for name in ROWS], list(ROWS.values()))


if __name__ == "__main__":
    save(draw(), "rot-mnist-costs.png")
