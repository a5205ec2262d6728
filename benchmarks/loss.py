"""What the loss costs: a step with it beside a plain step on the same views, and beside the authors' loop."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import torch
import torch.nn.functional as F
from timing import Compared, Row, Run, in_new_process, peak_memory, ratio
from torch import Tensor, nn

import ien
from ien import experiments
from ien.data import Dataset
from ien.training import ALONE, change
from ien.training.classify import CLASSIFY
from ien.training.loop import take_step

BATCH = 64
R4 = ien.rotation(4)
GOALS = {128: "≤ 1.03", 32: "≤ 1.05"}
"""First channels of the six-conv net → what a step with the loss may cost beside a plain one."""
ROUNDS = {128: 9, 32: 60}
# by default glibc returns large blocks to the system, and each new one costs page faults
KEEPING_MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184"
}
NOTE = f"""The step with the loss: forward and backward of the six-conv Rot-MNIST net with the loss on all six
layers, against the same net on the same images (two views of each) with cross-entropy only. The loss is bound
by memory: it reads every captured map and writes a gradient of its size. By default glibc returns blocks of
that size to the system, and the page faults of new ones cost as much as the arithmetic. An allocator that
keeps them speeds up both sides: jemalloc, tcmalloc, or
`GLIBC_TUNABLES={KEEPING_MALLOC["GLIBC_TUNABLES"]}`.

The authors' loss transforms the images, and the maps of every layer, one by one; we wrote it out from the
paper. Peak memory counts the tensors alive, without the parameters.
"""


def step_with_loss(net: nn.Module, x: Tensor, y: Tensor) -> Run:
    """Forward and backward with the loss on all layers that the paper compares."""
    objective = ien.EquivarianceLoss(R4, net.taps, net.feature_groups)

    def run() -> None:
        net.zero_grad()
        out = objective(net, x)
        (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()

    return run


def plain_step(net: nn.Module, x: Tensor, y: Tensor, views: int) -> Run:
    """Forward and backward with cross-entropy only, on one or two views of each image."""
    if views == 2:
        x = torch.cat([x, R4.act(x, R4.sample(len(x)))])
        y = y.repeat(2)

    def run() -> None:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()

    return run


def authors_step(net: nn.Module, x: Tensor, y: Tensor) -> Run:
    """The same as :func:`step_with_loss`, with a loop over images wherever something is rotated."""

    def pool(name: str, h: Tensor) -> Tensor:
        (size,) = net.feature_groups.sizes
        return h.unflatten(1, (-1, size)).max(2).values  # (B, N, size, H, W) -> (B, N, H, W)

    def loss(quarters: Sequence[int]) -> tuple[Tensor, Tensor]:
        copies = one_by_one(x, quarters)
        with ien.capture(net, net.taps, transform=pool) as features:
            scores = net(torch.cat([x, copies]))
        equivariance = torch.zeros(())
        for tap in net.taps:
            h, h_g = features[tap].chunk(2)
            rotated_back = one_by_one(h_g, [-k for k in quarters])
            equivariance = equivariance + F.mse_loss(rotated_back, h)
        return F.cross_entropy(scores, y.repeat(2)), equivariance

    def run() -> None:
        net.zero_grad()
        quarters = torch.randint(1, 4, (len(x),)).tolist()
        task, equivariance = loss(quarters)
        (task + equivariance).backward()

    # both compute the same
    g = R4.sample(len(x))
    ours = ien.EquivarianceLoss(R4, net.taps, net.feature_groups)(net, x, g=g).loss
    torch.testing.assert_close(loss(g.tolist())[1], ours)
    return run


def one_by_one(maps: Tensor, quarters: Sequence[int]) -> Tensor:
    """Rotate each of ``maps`` (B, C, H, W) by its quarter turns, and append it to those before."""
    result = torch.rot90(maps[:1], quarters[0], (-2, -1))
    for i in range(1, len(maps)):
        rotated = torch.rot90(maps[i : i + 1], quarters[i], (-2, -1))
        result = torch.cat([result, rotated])
    return result


def cnn6_and_images(channels: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The six-conv net with this many first channels, and a batch of images and classes."""
    torch.manual_seed(0)
    net = ien.models.create("cnn6", width=channels / 128)
    return net, torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))


def steps(channels: int) -> tuple[Run, Run]:
    """A step with the loss, and a plain one on the same number of views."""
    net, x, y = cnn6_and_images(channels)
    return step_with_loss(net, x, y), plain_step(net, x, y, views=2)


def actions() -> tuple[Run, Run]:
    """The group action on the pooled features of six layers, image by image and with ``act_on_features``."""
    shapes = zip([32, 48, 64, 64, 96, 128], [24, 24, 12, 12, 6, 2], strict=True)
    maps = [torch.rand(BATCH, groups, size, size, requires_grad=True) for groups, size in shapes]
    g = R4.sample(BATCH)

    def loop() -> None:
        for h in maps:
            one_by_one(h, g.tolist()).sum().backward()
            h.grad = None

    def at_once() -> None:
        for h in maps:
            R4.act_on_features(h, g).sum().backward()
            h.grad = None

    for h in maps:
        torch.testing.assert_close(one_by_one(h, g.tolist()), R4.act_on_features(h, g), rtol=0, atol=0)
    return loop, at_once


def variants(setting: str) -> tuple[Run, Run]:
    """A step of rot-mnist/ien-r4 at small with one setting changed, and without."""
    x, y = torch.randint(256, (BATCH, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (BATCH,))
    dataset = Dataset("rot-mnist", "random", x, y, x[:2], y[:2], classes=10)
    usual = change(experiments.config("rot-mnist/ien-r4", "small"), ["device=cpu"])
    changed, as_it_is = (
        CLASSIFY.prepare(config, dataset, ALONE) for config in (change(usual, [setting]), usual)
    )
    return (
        partial(take_step, changed, torch.arange(BATCH), 0, 0),
        partial(take_step, as_it_is, torch.arange(BATCH), 0, 0),
    )


def measure() -> Iterator[Row]:
    for channels, goal in GOALS.items():
        allocators = {"default malloc": {}, "malloc that keeps freed memory": KEEPING_MALLOC}
        for allocator, variables in allocators.items():
            printed = in_new_process(__file__, str(channels), **variables)
            what = f"training step, {channels} first channels, with loss / plain; {allocator}"
            yield Compared(**json.loads(printed)).row(what, goal)
    net, x, y = cnn6_and_images(32)
    found = ratio(authors_step(net, x, y), step_with_loss(net, x, y), rounds=15)
    yield found.row("training step, 32 first channels, authors' loop per image / ours", "–")
    what = "group action on six layers, loop per image / act_on_features"
    yield ratio(*actions(), rounds=15).row(what, "≥ 8")
    for channels in GOALS:
        with_loss, plain = (peak_memory(step) for step in steps(channels))
        what = f"peak memory of the step, {channels} first channels, with loss / plain"
        yield Row(what, "≤ 1.15", with_loss / plain, f"{with_loss:.0f} MB / {plain:.0f} MB")
    for setting in ("channels_last=true", "precision=bf16"):
        what = f"training step of rot-mnist/ien-r4 at small, {setting} / as it is"
        yield ratio(*variants(setting), rounds=25).row(what, "–")


if __name__ == "__main__":  # in a process of its own, whose malloc can be set
    first_channels = int(sys.argv[1])
    print(json.dumps(asdict(ratio(*steps(first_channels), ROUNDS[first_channels]))))
