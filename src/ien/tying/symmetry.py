"""Do these data have this symmetry? Small tied networks find out, in two ways.

**Do the labels depend on how images lie?** A network is trained while its weights stay tied, and
listens to the gradients in its remainders (``listening.py`` says why that is a test). If every
image is as likely in one orientation as in another, the signal T of an epoch has mean 0 and the
standard deviation √V. The certainty is the mean T over the mean √V of several epochs, so it has a
variance of at most 1. Above 4, chance is ruled out, and above 4.4 in one of four layers.

**Does it matter?** Real images nearly always prefer some orientation a little. So tied and ordinary
networks are compared on held-out images (``folds.py``): where ordinary ones are better, the
symmetry is not there; where labels depend on orientation and tied ones are still as good, it is
there in part.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import generator, seed_of
from .._text import columns, html_table, progress_bar, type_name
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..loss.feature_groups import GroupPool
from .folds import FOLDS, HeldOut, held_out
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
MIN_CERTAINTY = 4.0
"""Above this it is not chance, which gets there once in 30,000 trials."""
MIN_LAYER_CERTAINTY = 4.4
"""The same for the largest certainty of four layers."""
DOUBT = 2.0
"""A certainty above this may or may not be chance: once in 40 trials it is."""
MAY_COST = 0.01
"""Accuracy that a symmetry may cost for all that held-out images tell, and still be recommended."""
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Symmetry:
    """What a set of labelled images says about a group; prints as a table."""

    group: Group
    together: Evidence
    """Of all layers: the mean over epochs."""
    layers: dict[str, Evidence]
    """Layer → the same."""
    held_out: HeldOut | None
    """Tied networks beside ordinary ones, on images that they have not seen; None if ``quick``."""
    images: int
    most_frequent: float = 0.0
    """The share of images in the most frequent class."""

    @property
    def certainty(self) -> float:
        """About 0 if labels do not depend on orientation, give or take 1; above 4 if they do."""
        return self.together.certainty

    @property
    def depends(self) -> bool:
        """Whether labels depend on how images lie, beyond chance."""
        largest = max(layer.certainty for layer in self.layers.values())
        return self.certainty > MIN_CERTAINTY or largest > MIN_LAYER_CERTAINTY

    @property
    def verdict(self) -> str:
        """``"exact"``, as far as these images tell, ``"partial"`` or ``"not there"``.

        If the test was ``quick``, it cannot tell the last two apart: ``"partial or not there"``.
        """
        if self.held_out is None:
            return "partial or not there" if self.depends else "exact"
        _, best = self.held_out.interval
        if best < 0:
            return "not there"
        return "partial" if self.depends else "exact"

    @property
    def advice(self) -> str:
        """What to pick."""
        call = f'make_equivariant(model, "{self.group}", images'
        if self.verdict == "not there":
            return f'{call}, slack="auto"), or an ordinary network, or another group'
        if self.verdict == "exact" and not self._doubts():
            return f"{call})"
        return f'{call}, slack="auto")'

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self._rows()), *self._notes()])

    def __repr__(self) -> str:
        certainty = f"certainty {self.certainty:.1f}"
        return f"Symmetry({self.group}: {self.verdict}, {certainty}, {self.images:,} images)"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._rows(), self._notes())

    def _doubts(self) -> list[str]:
        """Say what these images leave open, if the symmetry looks exact."""
        doubts = []
        if self.certainty > DOUBT:
            doubts.append("a certainty between 2 and 4 may be chance")
        if self.held_out is not None:
            if self._learned_nothing(self.held_out):
                doubts.append(
                    f"no network did better than naming the most frequent class ({self.most_frequent:.1%})"
                )
            worst, _ = self.held_out.interval
            if worst < -MAY_COST:
                doubts.append(f"the symmetry may cost up to {-100 * worst:.1f} points")
        return doubts

    def _learned_nothing(self, found: HeldOut) -> bool:
        """Return whether networks that always name the most frequent class may be as good."""
        guessed = self.most_frequent
        error = math.sqrt(guessed * (1 - guessed) / self.images)
        best = max(statistics.mean(found.tied), statistics.mean(found.ordinary))
        return best <= guessed + 2 * error

    def _title(self) -> str:
        if self.verdict == "exact" and self._doubts():
            return f"{self.group} may be a symmetry: {self.images:,} images leave it open"
        return {
            "exact": f"{self.group} is a symmetry, as far as {self.images:,} images tell",
            "partial": f"{self.group} is a symmetry in part of these {self.images:,} images",
            "not there": f"{self.group} is not a symmetry of these {self.images:,} images",
            "partial or not there": f"{self.group} is no exact symmetry of these {self.images:,} images",
        }[self.verdict]

    def _rows(self) -> list[list[str]]:
        """Return the table: a header, a row for each layer, and one for all of them."""
        rows = [["layer", "signal", "if symmetric", "certainty"]]
        for name, heard in {**self.layers, "all together": self.together}.items():
            limit = 1.96 * heard.deviation
            rows.append([name, f"{heard.signal:.2f}", f"within ±{limit:.2f}", f"{heard.certainty:.1f}"])
        return rows

    def _notes(self) -> list[str]:
        notes = []
        if self.held_out is not None:
            notes.append(str(self.held_out))
        if self.verdict == "exact" and self._doubts():
            notes.append(f"{', and '.join(self._doubts())}: more images would tell")
        return [*notes, f"pick: {self.advice}"]


def symmetry(
    images: Tensor,
    labels: Tensor,
    group: Group | str,
    epochs: int | None = None,
    seed: int = 0,
    quick: bool = False,
    progress: bool = False,
) -> Symmetry:
    """Test whether the labels of images depend on how they are rotated or mirrored.

    A small equivariant network learns the labels and listens, and ten others, tied and ordinary,
    are compared on held-out images: about two minutes for 2,000 images.

    Not for labels that cannot be learned from the images: of these nothing depends on anything, so
    any group looks like a symmetry (the table says if no network learned anything). And not for the
    last word on your own network: it has more layers, and ``slack="auto"`` listens while it trains.

    Args:
        images: Images (N, C, H, W), 640 or more; they are cut to squares and scaled to 32 pixels.
        labels: Their classes (N,), whole numbers of 0 or more.
        group: Rotations and flips, such as ``"rot4"``, ``"flip"`` or ``"rot2"``.
        epochs: How often the network that listens sees each image; by default 3 to 6 times, by the
            number of images. More say less: a network that knows the images by heart asks for
            nothing.
        seed: Of the networks' first weights, of folds and of the order of the images.
        quick: Listen only, which takes some seconds: nothing is compared on held-out images.
        progress: Show a progress bar.

    Returns:
        The certainty that orientation matters, what the symmetry is worth on held-out images, a
        verdict and what to pick; ``print`` it for a table.

    >>> images = torch.rand(640, 1, 32, 32)
    >>> labels = (images[:, 0, 0].mean(-1) > 0.5).long()  # the upper row decides
    >>> result = symmetry(images, labels, "rot4", epochs=3, quick=True)
    >>> result.verdict
    'partial or not there'
    """
    parsed = parse_group(group)
    if not all(parsed.exact):
        raise ValueError(
            f"{parsed} has elements other than quarter turns and flips, which cannot be tested: use rot4 or "
            f"rot4xflip, say"
        )
    x = _prepared(images, labels)
    y = _numbered(labels).to(x.device)
    if epochs is None:
        epochs = min(max(math.ceil(600 * BATCH / len(x)), MIN_EPOCHS), MAX_EPOCHS)
    elif not isinstance(epochs, Integral) or epochs <= FIRST_EPOCHS:
        raise ValueError(f"epochs must be a whole number, {FIRST_EPOCHS + 1} or more; got {epochs!r}")

    def make(purpose: str, number: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, purpose, number))
            return _small_network(x.shape[1], len(parsed), int(y.max()) + 1).to(x.device)

    def make_for_fold(fold: int, tied: bool) -> nn.Module:
        net = make("fold", fold)
        if tied:
            make_equivariant(net, parsed, x[:8])
        return net

    compared = None
    networks = 0 if quick else 2 * FOLDS
    with progress_bar(f"testing {parsed}", epochs + networks, shown=progress) as advance:
        heard = _listen(make("weights", 0), parsed, x, y, epochs, seed, advance)
        if not quick:
            compared = held_out(x, y, make_for_fold, BATCH, seed, advance)
    layers = {}
    for name in heard[0]:
        layers[name] = _mean([of_epoch[name] for of_epoch in heard[FIRST_EPOCHS:]])
    together = layers.pop("")
    most_frequent = int(y.bincount().max()) / len(y)
    return Symmetry(parsed, together, layers, compared, len(x), most_frequent)


def _listen(
    net: nn.Module,
    group: Group,
    x: Tensor,
    y: Tensor,
    epochs: int,
    seed: int,
    advance: Callable[[], None],
) -> list[dict[str, Evidence]]:
    """Train a tied network; return what was heard in each epoch, by layer, and as "" of all."""
    tied = make_equivariant(net, group, x[:8], slack=1.0)  # whose remainders never learn here
    listener = Listener(tied.remainders)
    tied_weights, _ = tied.parameter_groups(LEARNING_RATE)
    optimizer = torch.optim.Adam([tied_weights])
    net.train()
    steps = len(x) // BATCH
    heard: list[dict[str, Evidence]] = []
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator(seed, "order", epoch))
        for batch in order[: steps * BATCH].split(BATCH):
            net.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            listener.hear(tied.gradients(), epoch)
            optimizer.step()
        heard.append({name: listener.evidence(name) for name in ("", *tied.remainders)})
        advance()
    return heard


def _mean(heard: Sequence[Evidence]) -> Evidence:
    """Average the signal and the deviation of several epochs."""
    signal = statistics.mean(each.signal for each in heard)
    deviation = statistics.mean(each.deviation for each in heard)
    return Evidence(heard[0].steps, signal, deviation)


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


def _numbered(labels: Tensor) -> Tensor:
    """Return the classes as 0, 1, 2, …: some numbers may be missing among the labels."""
    _, numbered = labels.long().unique(return_inverse=True)
    return numbered


def _prepared(images: Tensor, labels: Tensor) -> Tensor:
    """Check images and labels, and return the images as squares of 32 pixels."""
    given = type_name(images)
    if isinstance(images, Tensor):
        given = f"{images.dtype} {tuple(images.shape)}"
    if not isinstance(images, Tensor) or images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"images must be a tensor, a batch (N, C, H, W); got {given}")
    given = type_name(labels)
    if isinstance(labels, Tensor):
        given = f"{labels.dtype} {tuple(labels.shape)}"
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels must be a tensor of {len(images)} whole numbers, one for each image; got {given}"
        )
    if len(images) < MIN_IMAGES:
        raise ValueError(f"{len(images)} images are too few to tell: use {MIN_IMAGES} or more")
    classes = len(labels.unique())
    if classes < 2 or int(labels.min()) < 0:
        raise ValueError("labels must be whole numbers of 0 or more, of two classes or more")
    if 2 * classes > len(images):
        raise ValueError(f"labels name {classes} classes of {len(images)} images: too few images of each")
    x = images.float()
    if not x.isfinite().all():
        raise ValueError("images hold NaN or infinite values: repair these images or leave them out")
    height, width = x.shape[-2:]
    side = min(height, width)
    top = (height - side) // 2
    left = (width - side) // 2
    x = x[..., top : top + side, left : left + side]  # (N, C, side, side)
    if side != SIZE:
        x = F.interpolate(x, (SIZE, SIZE), mode="bilinear", antialias=True)  # (N, C, 32, 32)
    x = x - x.mean((0, 2, 3), keepdim=True)  # of each channel
    spread = x.std((0, 2, 3), keepdim=True).clamp(min=1e-6)  # (1, C, 1, 1)
    return x / spread
