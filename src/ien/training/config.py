"""What determines a run: one frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from ..groups.families import group as parse_group
from ..groups.families import rotation
from ..groups.group import Group
from ..loss.feature_groups import FeatureGroups
from ..tracking.data.sets import SETS
from .checks import check

__all__ = ["MACHINE", "Config", "field_types"]

MACHINE = ("device", "threads", "workers", "processes", "channels_last")
"""Settings of how a run is computed, not of what it is: rounding, time and, in several processes, what a
BatchNorm sees."""


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults are the paper's Rot-MNIST run of IEN."""

    experiment: str
    """Name of the row, such as rot-mnist/ien-r4."""
    preset: str
    """paper, small, demo or smoke: the size of the run."""
    seed: int = 1
    """Of the initial weights, the order of the images and the elements drawn."""

    dataset: str = "rot-mnist"
    """Name of the data set (see ien data list). Those of clips, got10k (tested on otb, plain and rotated) and
    synthetic-clips, train trackers."""
    classes: int = 10
    """Classes of the data set."""
    data_seed: int | None = 0
    """Of a generated data set: which images, which angles. The same for all seeds of a row; none takes the
    seed of the run, so that a row has several realisations."""
    image_size: int = 64
    """Pixels of a side. rot-tim, r2-tim, stl10: smaller ones are scaled down. scale-mnist: 28, or 56 to
    double the digits inside of the network."""
    mask: bool = True
    """rot-tim, r2-tim: black outside of the disc that fits into the image."""
    train_images: int | None = None
    """Train on the first so many images, or sequences of clips, only; none for all."""
    subset: int | None = None
    """Train on so many of the training images, drawn by the seed, in epochs as long as those of all of them:
    as many steps and images seen; none for all."""
    test_images: int | None = None
    """Test on the first so many images, or sequences of clips, only; none for all."""
    test_on: Literal["test", "validation"] = "test"
    """validation holds out the last images of the training set, or the last tenth of its sequences, and
    tests on them: to choose settings."""
    validation_images: int = 2000
    """How many training images test_on=validation holds out."""
    filter: Literal["published", "wide"] = "published"
    """Clips: which frames to train on. published: targets of 20 to 500 pixels and 1 to 50 % of the frame to a
    side; wide: of 10 to 500 pixels and 1 to 75 %, for small sets."""
    pairs: int | None = None
    """Clips: pairs of frames in an epoch; none for one of each sequence."""
    apart: int = 100
    """Clips: the frames of a pair are less than so many apart."""

    model: str = "cnn6"
    """cnn6, resnet18, vgg, cnn3 or wide-resnet; with e2cnn- before one of the first three the steerable net
    with its channels at inference; sesn-vector, sesn-scalar, dss, ss-cnn, sesn-wrn, dss-wrn or ss-cnn-wrn.
    Trackers: siamfc, or the steerable re-siamfc."""
    backbone: str = "alexnet-v2"
    """Trackers: alexnet-v1 or alexnet-v2."""
    feature_groups: str = "4"
    """Members of a feature group, 4, or a mix, 4-2-1; the scale-equivariant nets have their own."""
    width: float = 1.0
    """Factor on the paper's number of feature groups in every layer; 1/8 gives 16 channels in the first."""

    group: str = "rot4"
    """The transformations: rot4, rot8, rot4xflip, scale0.7,0.84, …; several groups as rot4+scale0.7,0.84,
    with weights as rot4+0.5*scale0.7,0.84."""
    measured: str = ""
    """The transformations that the trained network is measured under; none for those of group."""
    augment: bool = True
    """Show the network transformed copies of each image too; the loss needs them."""
    transform: bool = False
    """Show each training image under a random element of the group, drawn anew in every epoch, in its place;
    without copies (augment=false) that is no more to compute."""
    samples: int = 1
    """Transformed copies of each image in a step; orbits=true shows all of them, at the same compute."""
    orbits: bool = False
    """Show images under all elements of the group at once, and so fewer of them: as many images seen in a
    step and in an epoch as with one copy of each, rounded. Under rot4 a step has the orbits of batch_size / 2
    images, and an epoch those of half of them all; the next has the others."""
    beta: float = 1.0
    """Weight of the equivariance loss in every layer; 0 is the augmented CNN."""
    action: Literal["pooled", "regular"] = "pooled"
    """What the loss compares of a feature group: pooled, the maximum over its members; regular, all of them,
    permuted by the element, which keeps orientation."""
    start: Literal["random", "equivariant"] = "random"
    """Of plain networks: equivariant ties the random weights, so that the network is equivariant before its
    first step; quarter turns and flips exactly."""
    kernels: Literal["free", "smooth"] = "free"
    """With start=equivariant: smooth, of patterns that turn by any angle; where an element of the group
    resamples, they always are."""
    tied: bool = False
    """With start=equivariant: train the weights as tied ones, so that every step leaves the network
    equivariant; it needs no loss, and no copies."""
    normalize: bool = False
    """Divide the equivariance loss of a layer by the variance of its maps: smaller maps do not lower it."""
    rotate: bool = False
    """Rotate each training image by a random angle of 0–360° in every epoch."""
    rescale: float = 1.0
    """Scale each training image in every epoch by a random factor, from one over this number up to it; more
    than 1 also gives the scale-equivariant nets the scales of that protocol (+ in their papers)."""
    shift: int = 0
    """Move each training image in every epoch by up to so many pixels in each direction."""
    mirror: bool = False
    """Mirror each training image in every epoch, left to right, with probability 1/2."""
    cutout: int = 0
    """Grey out a random square of so many pixels in each training image in every epoch."""
    average: bool = False
    """At test time, average the softmax over the group: as many passes as it has elements."""
    weights_of: str = ""
    """Test the weights of this experiment, trained first where they are missing, instead of training."""

    epochs: int = 90
    """Passes over the training images, or times that pairs are drawn."""
    batch_size: int = 64
    """Images, or pairs, in a step, copies not counted."""
    optimizer: Literal["adam", "sgd", "momentum"] = "adam"
    """sgd has Nesterov's momentum of 0.9; momentum is SGD with plain momentum of 0.9."""
    schedule: Literal["one-cycle", "exponential", "steps"] = "one-cycle"
    """Of the learning rate: one cosine cycle up and down and then flat; flat and then decaying; in steps."""
    cycle_epochs: int = 70
    """one-cycle: length of the cycle, a quarter of it rising; the epochs after it run at min_lr."""
    max_lr: float = 5e-3
    """Highest learning rate, with which exponential and steps start."""
    min_lr: float = 1e-5
    """one-cycle: lowest learning rate, at both ends of the cycle."""
    decay: float = 0.8
    """Factor on the learning rate; exponential: for each epoch after decay_after; steps: at each of them."""
    decay_after: int = 10
    """exponential: epochs before the decay."""
    steps_after: str = ""
    """steps: the epochs after which the learning rate falls, 20,40."""
    weight_decay: float = 1e-7
    """L2 term of the optimizer."""
    decay_weights_only: bool = False
    """Leave norm layers and biases out of the weight decay."""

    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads of each process; none for what torch takes."""
    workers: int | None = None
    """Clips: processes that decode frames, for each that trains; 0 for none but itself, none for as many as
    there are free cores, up to 2, or 8 beside a GPU. What is seen does not depend on it."""
    processes: int = 1
    """Processes that share each batch, set by torchrun."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: autocast of the forward pass."""
    channels_last: bool = False
    """Memory layout in training; some CPUs and most GPUs are faster with it, at other roundings."""
    compile: bool = False
    """torch.compile of each block; pays off for long runs only."""

    def __post_init__(self) -> None:
        check(self, field_types())

    @property
    def row(self) -> str:
        return self.experiment.split("/")[-1]

    @property
    def groups(self) -> dict[Group, float]:
        """What the objective holds, with weights; the first one is the one that plots show."""
        return _weighted(self.group)

    @property
    def measured_groups(self) -> tuple[Group, ...]:
        return tuple(_weighted(self.measured or self.group))

    @property
    def steerable(self) -> bool:
        """Whether the network is built with e2cnn and becomes a plain one when it is tested."""
        return self.plain_model != self.model

    @property
    def plain_model(self) -> str:
        """The model that a steerable one becomes when it is tested; of any other its own name."""
        return self.model.removeprefix("e2cnn-").removeprefix("re-")

    @property
    def tracks(self) -> bool:
        """Whether the run trains a tracker: its data set is one of clips."""
        return self.dataset in SETS

    @property
    def rotations(self) -> int:
        """Turns of its template that a tracker tries: those in the group, or 1 for plain SiamFC."""
        group = next(iter(self.groups))
        if FeatureGroups.of(self.feature_groups).sizes == (1,):
            return 1
        turns = range(1, len(group) + 1)
        return max(n for n in turns if set(rotation(n).elements) <= set(group.elements))

    @property
    def step_epochs(self) -> tuple[int, ...]:
        try:
            return tuple(int(epoch) for epoch in self.steps_after.split(",") if epoch)
        except ValueError:
            raise ValueError(f"steps_after lists epochs, as in 20,40; got {self.steps_after!r}") from None


def _weighted(text: str) -> dict[Group, float]:
    groups: dict[Group, float] = {}
    for part in text.split("+"):
        weight, star, name = part.rpartition("*")
        try:
            group, alpha = parse_group(name), float(weight) if star else 1.0
        except ValueError as error:
            raise ValueError(f"cannot read {part!r} of {text!r}: {error}") from None
        if not 0 < alpha < math.inf or group in groups:
            raise ValueError(
                f"groups are different and have positive weights, rot4+0.5*scale0.8; got {text!r}"
            )
        groups[group] = alpha
    return groups


def field_types() -> dict[str, Any]:
    return get_type_hints(Config)
