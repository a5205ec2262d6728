"""Do these data have this symmetry? A small tied network finds out, without held-out images.

It is trained on the labels while its weights stay tied, and listens to the gradients in its
remainders (``listening.py`` says why that is a test). The certainty of each epoch has mean 0 and
variance 1 if every image is as likely in one orientation as in another, so the mean over epochs has
at most that variance. Above 4, chance is ruled out. Whether it is worth leaving the symmetry is
another question: the signal answers it, which compares what gradients have in common with noise.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import generator, seed_of
from .._text import columns, html_table, progress_bar
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..loss.feature_groups import GroupPool
from .listening import Evidence, Listener
from .tie import make_equivariant

__all__ = ["Symmetry", "symmetry"]

SIZE = 32
"""Pixels along a side that images are scaled to: even, so that pools of 2 stay exact."""
WIDTHS = (8, 16, 16, 32)
"""Feature groups after each convolution."""
NUM_POOLS = 2
"""Pools of 2, after the first convolutions."""
BATCH = 32
MIN_IMAGES = 20 * BATCH
"""Fewer images make too few steps an epoch to tell anything."""
FIRST_EPOCHS = 1
"""Epochs that are left out of the mean: a network that has learned nothing asks for nothing."""
MIN_EPOCHS, MAX_EPOCHS = 3, 6
"""By default: later on, a network knows few images by heart, and asks for nothing any more."""
MAX_CHANCE = 2.0
"""A certainty below this may well be chance."""
MIN_CERTAINTY = 4.0
"""Above this it is not chance, which gets there once in 30,000 trials."""
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Symmetry:
    """What a set of labelled images says about a group; prints as a table."""

    group: Group
    certainty: float
    """The mean over epochs of T / √V: about 0 for symmetric data, above 4 for others."""
    signal: float
    """The mean over epochs of T: above 1, more signal than noise."""
    deviation: float
    """The mean over epochs of √V, the standard deviation of T for symmetric data."""
    by_epoch: tuple[float, ...]
    by_layer: dict[str, float]
    images: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the signal."""
        return self.signal - 1.96 * self.deviation, self.signal + 1.96 * self.deviation

    @property
    def verdict(self) -> str:
        """``"exact"``, as far as these images tell, ``"unclear"``, ``"weak"`` or ``"broken"``."""
        if Evidence(0, self.signal, self.deviation).asks_for_slack:
            return "broken"
        if self.certainty > MIN_CERTAINTY:
            return "weak"
        if self.certainty > MAX_CHANCE:
            return "unclear"
        return "exact"

    @property
    def advice(self) -> str:
        """What to pick."""
        return {
            "exact": f'make_equivariant(model, "{self.group}", images): nothing speaks against it',
            "unclear": f'make_equivariant(model, "{self.group}", images, slack="auto"), or more images',
            "weak": f'make_equivariant(model, "{self.group}", images, slack="auto"): it may well stay tied',
            "broken": f'make_equivariant(model, "{self.group}", images, slack="auto"), or another group',
        }[self.verdict]

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self._rows()), *self._notes()])

    def __repr__(self) -> str:
        certainty = f"certainty {self.certainty:.1f}"
        return f"Symmetry({self.group}: {self.verdict}, {certainty}, {self.images:,} images)"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._rows(), self._notes())

    def _title(self) -> str:
        return {
            "exact": f"{self.group} is a symmetry, as far as {self.images:,} images tell",
            "unclear": f"{self.group} may not be a symmetry of these {self.images:,} images",
            "weak": f"{self.group} is nearly a symmetry: these {self.images:,} images prefer orientations "
            f"a little",
            "broken": f"{self.group} is not a symmetry: these {self.images:,} images prefer orientations",
        }[self.verdict]

    def _rows(self) -> list[list[str]]:
        """Return the table: a header, a row for each layer, and one for all of them."""
        rows = [["layer", "certainty"]]
        for name, certainty in self.by_layer.items():
            rows.append([name, f"{certainty:.1f}"])
        rows.append(["all together", f"{self.certainty:.1f}"])
        return rows

    def _notes(self) -> list[str]:
        low, high = self.interval
        signal = (
            f"signal: {self.signal:.1f} times the noise of an epoch, 95 % interval {low:.1f} … {high:.1f}"
        )
        return [signal, f"pick: {self.advice}"]


def symmetry(
    images: Tensor,
    labels: Tensor,
    group: Group | str,
    epochs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Symmetry:
    """Test whether the labels of images depend on how they are rotated or mirrored.

    A small equivariant network learns the labels, which takes a minute or two. Needs no held-out
    images: an equivariant network cannot remember how an image is oriented.

    Not for labels that cannot be learned from the images: of these nothing depends on anything, so
    any group looks like a symmetry.

    Args:
        images: Images (N, C, H, W), 640 or more; they are cut to squares and scaled to 32 pixels.
        labels: Their classes (N,), whole numbers from 0.
        group: Rotations and flips, such as ``"rot4"``, ``"flip"`` or ``"rot2"``.
        epochs: How often each image is seen; by default 3 to 6 times, by the number of images.
            More say less: a network that knows the images by heart asks for nothing.
        seed: Of the network's first weights and of the order of the images.
        progress: Show a progress bar.

    Returns:
        The certainty that orientation matters, and what to pick; ``print`` it for a table.

    >>> images = torch.rand(640, 1, 32, 32)
    >>> labels = (images[:, 0, 0].mean(-1) > 0.5).long()  # the upper row decides
    >>> result = symmetry(images, labels, "rot4", epochs=3)
    >>> result.verdict
    'broken'
    """
    parsed = parse_group(group)
    if not all(parsed.exact):
        raise ValueError(
            f"{parsed} has elements that resample, which cannot be tested: use quarter turns and flips, such "
            f"as rot4 or rot4xflip"
        )
    x = _prepared(images, labels)
    y = labels.long().to(x.device)
    if epochs is None:
        epochs = min(max(math.ceil(600 * BATCH / len(x)), MIN_EPOCHS), MAX_EPOCHS)
    elif epochs <= FIRST_EPOCHS:
        raise ValueError(f"epochs must be {FIRST_EPOCHS + 1} or more; got {epochs}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights"))
        net = _small_network(x.shape[1], len(parsed), int(y.max()) + 1).to(x.device)
    tied = make_equivariant(net, parsed, x[:8], slack=1.0)  # whose remainders never learn here
    listener = Listener(tied.remainders)
    tied_weights, _ = tied.parameter_groups(LEARNING_RATE)
    optimizer = torch.optim.Adam([tied_weights])
    net.train()
    steps = len(x) // BATCH
    heard: list[dict[str, Evidence]] = []
    with progress_bar(f"listening for {parsed}", epochs * steps, shown=progress) as advance:
        for epoch in range(epochs):
            order = torch.randperm(len(x), generator=generator(seed, "order", epoch))
            for batch in order[: steps * BATCH].split(BATCH):
                net.zero_grad()
                F.cross_entropy(net(x[batch]), y[batch]).backward()
                listener.hear(tied.gradients(), epoch)
                optimizer.step()
                advance()
            heard.append({name: listener.evidence(name) for name in ("", *tied.remainders)})
    means = {}
    for name in heard[0]:
        means[name] = statistics.mean(each[name].certainty for each in heard[FIRST_EPOCHS:])
    together = means.pop("")
    signal = statistics.mean(each[""].signal for each in heard[FIRST_EPOCHS:])
    deviation = statistics.mean(each[""].deviation for each in heard[FIRST_EPOCHS:])
    by_epoch = tuple(each[""].certainty for each in heard)
    return Symmetry(parsed, together, signal, deviation, by_epoch, means, len(x))


def _small_network(channels: int, members: int, classes: int) -> nn.Sequential:
    """Return four convolutions with norms, two pools, and a linear layer on means of maps."""
    net = nn.Sequential()
    before = channels
    for i, groups in enumerate(WIDTHS, start=1):
        after = groups * members
        net.add_module(f"conv{i}", nn.Conv2d(before, after, 3, padding=1, bias=False))
        net.add_module(f"norm{i}", nn.BatchNorm2d(after))
        net.add_module(f"relu{i}", nn.ReLU())
        if i <= NUM_POOLS:
            net.add_module(f"pool{i}", nn.AvgPool2d(2))
        before = after
    net.add_module("invariant", nn.Sequential(GroupPool(members), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    net.add_module("classifier", nn.Linear(WIDTHS[-1], classes))
    return net


def _prepared(images: Tensor, labels: Tensor) -> Tensor:
    """Check images and labels, and return the images as squares of 32 pixels."""
    given = type(images).__name__
    if isinstance(images, Tensor):
        given = f"{images.dtype} {tuple(images.shape)}"
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ValueError(f"images must be a batch (N, C, H, W); got {given}")
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1] or labels.is_floating_point():
        raise ValueError(f"labels must be {len(images)} whole numbers, one for each image; got {labels!r}")
    if len(images) < MIN_IMAGES:
        raise ValueError(f"{len(images)} images are too few to tell: use {MIN_IMAGES} or more")
    if len(labels.unique()) < 2 or int(labels.min()) < 0:
        raise ValueError("labels must be whole numbers from 0, of two classes or more")
    x = images.float()
    if not x.isfinite().all():
        raise ValueError("images hold NaN or infinite values: repair these images or leave them out")
    side = min(x.shape[-2:])
    top, left = (x.shape[-2] - side) // 2, (x.shape[-1] - side) // 2
    x = x[..., top : top + side, left : left + side]  # (N, C, side, side)
    if side != SIZE:
        x = F.interpolate(x, (SIZE, SIZE), mode="bilinear", antialias=True)  # (N, C, 32, 32)
    x = x - x.mean((0, 2, 3), keepdim=True)
    return x / x.std((0, 2, 3), keepdim=True).clamp(min=1e-6)
