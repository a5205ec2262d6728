"""How the time and the memory of a step grow with images, channels, layers and elements of the group.

The network is a stack of equal layers, so that each of these can grow alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from timing import Run, peak_memory, take_turns
from torch import nn

import ien

SIDE = 24
"""Height and width of images and maps."""
ROUNDS = 9
NOTE = """A stack of 3×3 convolutions, each with BatchNorm and ELU, on maps of 24×24 pixels, with feature
groups of 4 and the loss on every layer; the plain step sees the same views with cross-entropy only. One
grows while the others stay at 32 images, 32 channels, 4 layers and one view under `rot4`; |G| grows with
whole orbits (`samples="all"`: each image under each element of `rot2`, `rot4`, `rot8` or `rot16`). Lines
are fitted by least squares; a convolution has channels² products, so against channels its time is no line,
but what the loss adds is.
"""


@dataclass(frozen=True)
class Setting:
    """What a step is made of."""

    batch: int = 32
    channels: int = 32
    layers: int = 4
    group: str = "rot4"
    whole_orbits: bool = False


USUAL = Setting()
AXES = {
    "images": {n: replace(USUAL, batch=n) for n in (8, 16, 32, 64, 128)},
    "channels": {n: replace(USUAL, channels=n) for n in (16, 32, 64, 96, 128)},
    "layers": {n: replace(USUAL, layers=n) for n in (1, 2, 4, 8, 12)},
    "elements": {n: replace(USUAL, batch=8, group=f"rot{n}", whole_orbits=True) for n in (2, 4, 8, 16)},
}
"""What grows → the settings of its points."""


@dataclass
class Point:
    """A step with the loss and a plain one on the same views."""

    axis: str
    x: int
    milliseconds: float
    plain_milliseconds: float
    megabytes: float
    plain_megabytes: float


def steps(setting: Setting) -> tuple[Run, Run]:
    """A step with the loss on all layers, and one with cross-entropy only on the same views."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    before = 1
    for _ in range(setting.layers):
        conv = nn.Conv2d(before, setting.channels, 3, padding=1, bias=False)
        layers.append(nn.Sequential(conv, nn.BatchNorm2d(setting.channels), nn.ELU()))
        before = setting.channels
    compared = [str(i) for i in range(setting.layers)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
    x, y = torch.rand(setting.batch, 1, SIDE, SIDE), torch.randint(10, (setting.batch,))
    samples = "all" if setting.whole_orbits else 1
    objective = ien.EquivarianceLoss(setting.group, compared, feature_groups=4, samples=samples)
    group = ien.group(setting.group)
    views = [x, *(group.act(x, g) for g in objective.sample(len(x)).split(len(x)))]
    seen, labels = torch.cat(views), y.repeat(len(views))

    def with_loss() -> None:
        net.zero_grad()
        out = objective(net, x)
        (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()

    def plain() -> None:
        net.zero_grad()
        F.cross_entropy(net(seen), labels).backward()

    return with_loss, plain


def measure() -> Iterator[Point]:
    for axis, settings in AXES.items():
        runs: dict[str, Run] = {}
        for x, setting in settings.items():
            runs[f"{x}"], runs[f"{x} plain"] = steps(setting)
        seconds = take_turns(runs, ROUNDS)
        for x in settings:
            yield Point(
                axis,
                x,
                1e3 * statistics.median(seconds[f"{x}"]),
                1e3 * statistics.median(seconds[f"{x} plain"]),
                peak_memory(runs[f"{x}"]),
                peak_memory(runs[f"{x} plain"]),
            )


def line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Slope, value at 0 and R² of the line of least squares."""
    xs, ys = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(xs, ys)
    return slope, intercept, statistics.correlation(xs, ys) ** 2


def described(point: Point) -> str:
    """One line for the terminal."""
    return (
        f"{point.x:4} {point.axis:9} {point.milliseconds:7.1f} ms, plain {point.plain_milliseconds:7.1f} ms; "
        f"{point.megabytes:6.1f} MB, plain {point.plain_megabytes:6.1f} MB"
    )


def section(found: list[Point]) -> str:
    """The slopes as a table, under the figure."""
    lines = [
        "| for each further | step with loss | R² | of it the loss | R² "
        "| memory | R² | of it the loss | R² |",
        "|---|" + "---:|" * 8,
    ]
    for axis in AXES:
        here = [point for point in found if point.axis == axis]
        cells = [axis.rstrip("s")]
        for unit, whole, plain in (
            ("ms", "milliseconds", "plain_milliseconds"),
            ("MB", "megabytes", "plain_megabytes"),
        ):
            total = [(point.x, getattr(point, whole)) for point in here]
            added = [(point.x, getattr(point, whole) - getattr(point, plain)) for point in here]
            for points in (total, added):
                slope, _, fit = line(points)
                cells += [f"{slope:.2f} {unit}", f"{fit:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    picture = "![Time and memory of a step against images, channels, layers and elements](figures/growth.png)"
    return f"{picture}\n\n" + "\n".join(lines) + "\n"
