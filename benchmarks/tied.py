"""What tied weights and slack cost: steps beside those of the same network as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timing import Row, Run, compared, ratio, seconds_of, take_turns
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import ien
from ien.tying import listening

BATCH = 64
TIED_NETS = {
    (128, "rot4", "free"): "≤ 1.03",
    (128, "rot4", "smooth"): "≤ 1.03",
    (128, "rot8", "smooth"): "≤ 1.06",
    (16, "rot4", "free"): "≤ 1.05",
    (16, "rot4", "smooth"): "≤ 1.05",
    (16, "rot8", "smooth"): "≤ 1.06",
}
"""First channels, group and kernels of tied networks, and what a step may cost beside a plain one."""
NO_KERNELS = (
    "detach",
    "_unsafe_view",
    "empty",
    "empty_like",
    "new_empty",
    "lift_fresh",
    "_local_scalar_dense",  # AdamW reads its step counters, which stay on the CPU
    "_record_function_enter_new",
    "_record_function_exit",
)
"""Operations that launch no kernel, besides views."""
NOTE = """The tied step: forward, backward and fused Adam of the six-conv net on one view of each image. Its
weights are computed from fewer numbers in every step; it runs against the same net as it is, and against
the steerable twin. Slack adds a free remainder to each tied weight, and its penalty to the loss; with
`auto` it also listens to the gradients of the remainder. The operations in a step of ResNet-50 are those of
`AdamW(foreach=True)` and those that tied weights add to forward and backward, without views, and without
the 322 times that AdamW reads its step counters, which stay on the CPU.
"""


def step_of(net: nn.Module, x: Tensor) -> Run:
    """A whole step of training: forward, backward and Adam."""
    y = torch.randint(10, (len(x),))
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net.train()

    def run() -> None:
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def tied_steps(channels: int, group: str, kernels: Any) -> dict[str, Run]:
    """A step of a tied network, of the same network as it is, and of the steerable twin."""
    torch.manual_seed(0)
    x = torch.rand(BATCH, 1, 28, 28)
    members = len(ien.group(group))
    width = channels / members / 32
    tied, plain = (ien.models.create("cnn6", feature_groups=members, width=width) for _ in range(2))
    ien.make_equivariant(tied, group, x[:4], members, kernels=kernels)
    steerable = ien.baselines.create("e2cnn-cnn6", group=group, width=width)
    return {"tied": step_of(tied, x), "plain": step_of(plain, x), "steerable twin": step_of(steerable, x)}


def tied_resnet18() -> tuple[Run, Run]:
    """A step of a tied ResNet18 on 16 images of 64 pixels, and of the same network as it is."""
    torch.manual_seed(0)
    x = torch.rand(16, 3, 64, 64)
    tied, plain = (ien.models.create("resnet18", feature_groups=4, num_classes=10) for _ in range(2))
    ien.make_equivariant(tied, "rot4", x[:4], 4)
    return step_of(tied, x), step_of(plain, x)


def slack_steps(slack: Any) -> tuple[Run, Run]:
    """A step of a network with slack, which listens if it is automatic, and of the same one tied."""
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    loose, tied = (ien.models.create("cnn6", width=1 / 8) for _ in range(2))
    made = ien.make_equivariant(loose, "rot4", x[:4], 4, slack=slack)
    ien.make_equivariant(tied, "rot4", x[:4], 4)
    optimizer = torch.optim.Adam(made.parameter_groups(1e-3), fused=True)
    loose.train()
    listening.MIN_SIGNAL = math.inf  # the same images again and again: it would open

    def run() -> None:
        (F.cross_entropy(loose(x), y) + made.penalty()).backward()
        if slack == "auto":
            made.listen(0)
        optimizer.step()
        optimizer.zero_grad()

    return run, step_of(tied, x)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(before, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(before, middle, stride))
            before = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Launches(TorchDispatchMode):
    """Counts the operations that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        launches = not operation.is_view and name not in NO_KERNELS
        self.count += launches
        return result


def launches_of_resnet50(kernels: Any) -> tuple[int, int, float]:
    """Operations that tying ResNet-50 adds to a pass, those of AdamW's step, and seconds to tie it."""
    torch.manual_seed(0)
    net = resnet50()
    x = torch.rand(2, 3, 225, 225)

    def passes() -> int:
        net.train()
        with Launches() as counted:
            net(x).sum().backward()
        return counted.count

    plain = passes()
    seconds = seconds_of(lambda: ien.make_equivariant(net, "rot4", x, kernels=kernels))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    added = passes() - plain
    optimizer.step()  # the first makes its state
    passes()
    with Launches() as counted:
        optimizer.step()
    return added, counted.count, seconds


def measure() -> Iterator[Row]:
    for (channels, group, kernels), goal in TIED_NETS.items():
        rounds = 9 if channels == 128 else 40
        seconds = take_turns(tied_steps(channels, group, kernels), rounds)
        what = f"training step, {channels} first channels, tied under {group}, {kernels} kernels"
        for other, most in (("plain", goal), ("steerable twin", "≤ 1")):
            yield compared(seconds["tied"], seconds[other]).row(f"{what} / {other}", most)
    found = ratio(*tied_resnet18(), rounds=5)
    yield found.row("training step, ResNet18 at 64 pixels, tied under rot4 / plain", "≤ 1.04")
    for slack, what in ((1.0, "with slack"), ("auto", "with slack that listens")):
        found = ratio(*slack_steps(slack), rounds=40)
        yield found.row(f"training step, 16 first channels, {what} / tied", "–")
    for kernels in ("free", "smooth"):
        added, step, seconds_to_tie = launches_of_resnet50(kernels)
        what = f"operations in a step of ResNet-50, {kernels} kernels: AdamW's and those that tying adds"
        yield Row(what, "≤ 500", added + step, f"{step} + {added}")
        what = f"seconds to tie ResNet-50 at 225 pixels, {kernels} kernels"
        yield Row(what, "≤ 5", seconds_to_tie, "2 images")
