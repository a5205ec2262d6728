"""The demo: one small CNN, trained on rotated digits with and without the loss, compared in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from ._feature_groups import GroupPool
from ._groups import rotation
from ._loss import EquivarianceLoss
from ._measure import Report, measure
from .data import embedded_digits

LAYERS = ["conv1", "conv2", "conv3", "conv4"]
BETAS = (0.1, 1.0)


@dataclass(frozen=True)
class Outcome:
    name: str
    accuracy: float
    report: Report


def demo(
    epochs: int = 16, betas: Sequence[float] = BETAS, seed: int = 0, console: Console | None = None
) -> list[Outcome]:
    """Train the nets, print the table and return what it shows."""
    console = console or Console()
    x, y = embedded_digits(seed)
    # one-degree steps; every digit at its own angle
    angles = torch.randint(360, (len(x),), generator=torch.Generator().manual_seed(seed))
    x = rotation(360).act(x, angles)
    train, test = (x[:4000], y[:4000]), (x[4000:], y[4000:])
    console.print(
        "4,000 MNIST digits to train on and 1,000 to test, each rotated by a random angle. The same small "
        "CNN, trained on the same digits and their quarter turns, without (cnn-aug) and with the loss (ien):"
    )
    names = {"cnn-aug": 0.0} | {f"ien β={beta:g}": beta for beta in betas}
    columns = TextColumn("{task.description:10}"), BarColumn(), TextColumn("{task.fields[status]}")
    outcomes = []
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        for name, beta in names.items():
            model = _train(name, beta, train, epochs, seed, progress)
            outcomes.append(_evaluate(name, model, test))
    console.print(_table(outcomes))
    return outcomes


def build(width: int = 16) -> nn.Sequential:
    """Four conv blocks on 28×28 images whose map sizes (24, 12, 6, 2) all commute with quarter turns."""
    net = nn.Sequential()
    inputs = 1
    for i, (outputs, kernel, padding, pool) in enumerate(
        [(width, 7, 1, True), (2 * width, 5, 2, True), (3 * width, 5, 2, False), (4 * width, 5, 0, False)],
        start=1,
    ):
        conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
        net.add_module(f"conv{i}", nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ELU()))
        if pool:
            net.add_module(f"pool{i}", nn.MaxPool2d(2))
        inputs = outputs
    net.add_module("group_pool", GroupPool(4))
    net.add_module("classify", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)))
    return net


def _train(
    name: str, beta: float, data: tuple[Tensor, Tensor], epochs: int, seed: int, progress: Progress
) -> nn.Module:
    x, y = data
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    model = build()
    objective = EquivarianceLoss(rotation(4), layers=dict.fromkeys(LAYERS, beta), feature_groups=4)
    steps = epochs * (len(x) // 64)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-7)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    task = progress.add_task(name, total=steps, status="")
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(x), generator=rng).split(64)[: len(x) // 64]:
            out = objective(model, x[batch], generator=rng)
            task_loss = F.cross_entropy(out.output, out.repeat(y[batch]))
            (task_loss + out.loss).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            progress.update(task, advance=1, status=f"epoch {epoch}/{epochs}  loss {task_loss.item():.3f}")
        if progress.disable:  # no terminal: a line an epoch
            progress.console.print(f"{name} epoch {epoch}/{epochs}: loss {task_loss.item():.3f}")
    return model


def _evaluate(name: str, model: nn.Module, test: tuple[Tensor, Tensor]) -> Outcome:
    x, y = test
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).double().mean())
    return Outcome(name, accuracy, measure(model, x, rotation(4), layers=LAYERS, feature_groups=4))


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(title="Equivariance to quarter turns on the test digits: lower is better")
    table.add_column("layer")
    for quantity in ("raw L_G", "relative"):
        for outcome in outcomes:
            table.add_column(f"{outcome.name}\n{quantity}", justify="right")
    for layer in LAYERS:
        reports = [outcome.report.layers[layer] for outcome in outcomes]
        table.add_row(layer, *(f"{r.raw:.1e}" for r in reports), *(f"{r.relative:.1e}" for r in reports))
    table.caption = "test accuracy: " + ", ".join(f"{o.name} {o.accuracy:.1%}" for o in outcomes)
    return table
