"""The sections of a configuration: every setting of a run, with default, help text and limits.

The help texts are what ``ien show`` prints. Checks of one section stand below its fields; those
across sections are in :mod:`ien.training.config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from .. import baselines, models
from .._text import nearest
from ..groups.families import group as parse_group
from ..groups.group import MAX_ELEMENTS, Group
from ..loss.feature_groups import FeatureGroups
from .fields import Section, setting

__all__ = [
    "MAX_COUNT",
    "MAX_IMAGES",
    "MAX_SEED",
    "Data",
    "Machine",
    "Network",
    "Objective",
    "Optimizer",
    "Schedule",
]

MAX_SEED = 2**63
"""More is a typing error: seeds are hashed before they are used."""
MAX_COUNT = 1e6
"""Of epochs, classes, images in a batch and processes: more is a typing error."""
MAX_IMAGES = 1e12
"""Of images, clips or pairs to use: more is a typing error."""
MAX_GROUP_SIZE = 256
"""Of a feature group in the networks here: the paper's largest is 8."""
DEFAULT_BETA = 1.0
"""Weight of the loss in every layer, which a target replaces."""


@dataclass(frozen=True)
class Data(Section):
    """Which images a run trains on and is tested on, and how the training images are augmented."""

    dataset: str = setting("rot-mnist", "Name of the data set (ien data list).")
    classes: int = setting(10, "Number of classes.", low=2, high=MAX_COUNT)
    data_seed: int | None = setting(
        0,
        "Seed of a generated data set: which images, which angles. By default the same for all seeds of a "
        "row; none: the seed of the run, so that each seed has its own data.",
        low=0,
        high=MAX_SEED,
    )
    max_angle: float = setting(
        180.0,
        "rot-mnist: digits are rotated by up to N degrees either way; 180: all angles, 0: upright.",
        low=0,
        high=180,
    )
    image_size: int = setting(
        64,
        "Pixels along a side. tiny-imagenet, rot-tim, r2-tim, stl10: images are scaled down to it; "
        "folders of pictures: scaled to it. scale-mnist: 28, or 56 to double the digits inside the network.",
        low=8,
        high=512,
    )
    channels: int | None = setting(
        None,
        "Channels of the images, 1 for grey ones; none: what the network is usually given, 1 for cnn6 and "
        "the other networks for digits, 3 for the rest.",
        low=1,
        high=3,
    )
    train_images: int | None = setting(
        None, "Use only the first N training images (or clips); none: all.", low=2, high=MAX_IMAGES
    )
    subset: int | None = setting(
        None,
        "Train on N images drawn by the seed, in epochs as long as those of the whole set: the same steps "
        "and images seen; none: all.",
        low=2,
        high=MAX_IMAGES,
    )
    test_images: int | None = setting(
        None, "Use only the first N test images (or clips); none: all.", low=1, high=MAX_IMAGES
    )
    test_on: Literal["test", "validation"] = setting(
        "test",
        "validation: hold out the last training images (or the last tenth of the clips) and test on them, "
        "to choose settings.",
    )
    validation_images: int = setting(
        2000, "How many training images test_on=validation holds out.", low=1, high=MAX_IMAGES
    )
    rotate: bool = setting(False, "Rotate each training image by a random angle in every epoch.")
    rescale: float = setting(
        1.0,
        "Scale each training image by a random factor between 1/N and N in every epoch. Above 1, the "
        "scale-equivariant networks also use the scales of that protocol (+ in their papers).",
        low=1,
        high=16,
    )
    shift: int = setting(
        0, "Shift each training image by up to N pixels in each direction in every epoch.", low=0, high=96
    )
    mirror: bool = setting(False, "Mirror each training image left to right with probability 1/2.")
    cutout: int = setting(
        0, "Grey out a random square of N pixels a side in each training image.", low=0, high=96
    )


@dataclass(frozen=True)
class Network(Section):
    """Which network, and how wide."""

    PLAIN: ClassVar[tuple[str, ...]] = tuple(models.MODELS)
    """Ordinary networks, whose weights can be tied."""
    BUILT_IN: ClassVar[tuple[str, ...]] = tuple(baselines.BASELINES)
    """Networks with built-in equivariance."""

    model: str = setting(
        "cnn6",
        "cnn6, resnet18, vgg, cnn3 or wide-resnet; e2cnn-cnn6, e2cnn-resnet18 or e2cnn-vgg, the steerable "
        "networks with the same channels at inference; sesn-vector, sesn-scalar, dss, ss-cnn, sesn-wrn, "
        "dss-wrn or ss-cnn-wrn; ss-cnn-published or ss-cnn-wrn-published, with the published kernels.",
    )
    feature_groups: str = setting(
        "4", "Size of the feature groups, 4, or a mix, 4-2-1. Scale-equivariant networks have their own."
    )
    width: float = setting(
        1.0,
        "Factor on the paper's number of feature groups in every layer; 1/8 gives 16 channels in the first.",
        low=1 / 256,
        high=16,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # known to the class: TrackingConfig has a Network of its own, with trackers
        known = (*self.PLAIN, *self.BUILT_IN)
        if self.model not in known:
            raise ValueError(f"there is no model {self.model!r}; {nearest(self.model, known)}")
        sizes = FeatureGroups.of(self.feature_groups).sizes
        if max(sizes) > MAX_GROUP_SIZE:
            raise ValueError(
                f"feature_groups can have sizes of up to {MAX_GROUP_SIZE}, such as 4 or 4-2-1; "
                f"got {self.feature_groups}"
            )
        if self.steerable and len(sizes) > 1:
            raise ValueError(
                f"{self.model} needs feature groups of one size, such as 4; got {self.feature_groups}"
            )

    @property
    def steerable(self) -> bool:
        """Whether it is steerable, and exported to a plain network to be tested."""
        return self.plain_model != self.model

    @property
    def plain_model(self) -> str:
        """The model that a steerable one is exported to; for any other its own name."""
        # re-siamfc is the tracker among the steerable networks
        return self.model.removeprefix("e2cnn-").removeprefix("re-")


@dataclass(frozen=True)
class Objective(Section):
    """Which transformations there are, and what makes the network equivariant under them."""

    group: str = setting(
        "rot4",
        "The transformations: rot4, rot8, rot4xflip, scale0.7,0.84, …; several groups as "
        "rot4+scale0.7,0.84, with weights as rot4+0.5*scale0.7,0.84.",
    )
    measured: str = setting(
        "", "The transformations under which the trained network is measured; none: those of group."
    )
    augment: bool = setting(True, "Show the network views of each image too; the loss needs them.")
    transform: bool = setting(
        False,
        "Replace each training image by itself under a random element, drawn again in every epoch. Without "
        "views (augment=false) this costs nothing extra.",
    )
    samples: int = setting(
        1,
        "Views of each image in a step; orbits=true shows all of them at the same compute.",
        low=1,
        high=MAX_ELEMENTS,
    )
    orbits: bool = setting(
        False,
        "Show images under all elements at once, and so fewer of them: a step and an epoch show as many "
        "images as with one view of each, rounded. Under rot4 a step has the orbits of batch_size / 2 "
        "images and an epoch has half of the images; the next epoch has the other half.",
    )
    beta: float = setting(
        DEFAULT_BETA,
        "Weight of the equivariance loss in every layer; 0 is the augmented CNN.",
        low=0,
        high=1e9,
    )
    target: float | None = setting(
        None,
        "The relative error wanted in every layer, such as 0.05, in place of beta: the weight of each layer "
        "grows while its error is above it, and shrinks while it is below; none: beta.",
        low=1e-9,
        high=2,
    )
    action: Literal["pooled", "regular"] = setting(
        "pooled",
        "What the loss compares. pooled: the maximum over each feature group; regular: every channel of it, "
        "permuted by the element, which keeps orientation.",
    )
    interpolation: Literal["bilinear", "nearest"] = setting(
        "bilinear",
        "How views and maps are resampled by elements such as 45°. nearest: as in the authors' code. The "
        "trained network is measured with bilinear in any case.",
    )
    corners: bool = setting(
        False,
        "Let the loss count every pixel of a map, also those from outside of it, which are 0, as in the "
        "authors' code; false: only pixels that are known on both sides.",
    )
    tie: Literal["never", "start", "free", "smooth"] = setting(
        "never",
        "Tie the weights of a plain network, which makes it equivariant, exactly for quarter turns and "
        "flips. start: before the first step only; free or smooth: throughout training, which needs neither "
        "the loss nor views. smooth: kernels made of patterns that rotate by any angle, always used where an "
        "element of the group resamples; free: any tied kernels.",
    )
    tie_group: str = setting(
        "", "The group that weights are tied under, if the loss has another, such as scale; none: group."
    )
    slack: str = setting(
        "0",
        "How far tied weights may leave the symmetry, if the data want it: 0, not at all; a number, such as "
        "1; or auto: they stay tied until the training images say that they prefer an orientation.",
    )
    normalize: bool = setting(
        False,
        "Divide each layer's equivariance loss by the variance of its maps, so that shrinking them does not "
        "lower it.",
    )
    average: bool = setting(
        False, "At test time, average the softmax over the group: one pass for each element."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_groups()
        self._check_beta()
        self._check_target()
        self._check_pixels()
        self._check_tying()
        self._check_views()
        self._check_needs_of_one_group()

    def _check_groups(self) -> None:
        groups = self.groups  # raises if it cannot be read, as does the next line
        _ = self.measured_groups
        if any(len(group) == 1 for group in groups):
            raise ValueError(f"group {self.group} has one element, the identity: use rot4, for example")

    def _check_beta(self) -> None:
        if self.beta and not self.augment:
            raise ValueError(
                f"beta {self.beta:g} needs augment=true: the loss compares images with their views"
            )

    def _check_target(self) -> None:
        if self.target is None:
            return
        if not self.augment:
            raise ValueError(
                f"target {self.target:g} needs augment=true: the loss compares images with their views"
            )
        if self.beta != DEFAULT_BETA:
            raise ValueError(
                f"target {self.target:g} takes the place of beta {self.beta:g}: give one of them, with "
                f"beta={DEFAULT_BETA:g} beside a target"
            )
        for group, weight in self.groups.items():
            if weight not in (0, 1):
                raise ValueError(
                    f"target takes the place of weights: write {group} without one; got {self.group}"
                )

    def _check_pixels(self) -> None:
        if self.interpolation != "bilinear" and not self.augment:
            raise ValueError(
                f"interpolation={self.interpolation} needs augment=true: views are resampled by it"
            )
        if self.corners and not self.beta:
            raise ValueError(
                "corners=true needs the loss, whose pixels it counts: set beta above 0, or a target"
            )

    def _check_tying(self) -> None:
        if self.tie_group and self.tie == "never":
            raise ValueError(f"tie_group={self.tie_group} needs tie=smooth, free or start")
        if self.slack_value != 0 and not self.tied:
            raise ValueError(f"slack={self.slack} needs tie=smooth or tie=free: only tied weights have it")

    def _check_views(self) -> None:
        # views of an image are different, and none of them is the image itself
        most = min(len(group) - 1 for group in self.groups)
        if self.samples > most:
            raise ValueError(f"samples must be 1 to {most} for {self.group}; got {self.samples}")
        if self.orbits and (not self.augment or self.samples > 1):
            raise ValueError(
                f"orbits=true shows every view, so it needs augment=true and samples=1; "
                f"got augment={self.augment} and samples={self.samples}"
            )

    def _check_needs_of_one_group(self) -> None:
        first, *others = self.groups
        # an image can only be replaced by its view under one group
        if self.transform and others:
            raise ValueError(f"transform=true needs a single group, such as {first}; got {self.group}")
        # the test averages over one group and measures under the same
        if self.average and (others or self.measured):
            raise ValueError(
                f"average=true needs a single group, such as {first}, and measures under it; "
                f"got group {self.group}, measured {self.measured or self.group}"
            )

    @property
    def slack_value(self) -> float | Literal["auto"]:
        """The slack as :func:`make_equivariant` takes it."""
        if self.slack == "auto":
            return "auto"
        try:
            value = float(self.slack)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ValueError(f"slack must be auto, or a number of 0 or more; got {self.slack}")
        return value

    @property
    def tied(self) -> bool:
        """Whether the weights are tied throughout training."""
        return self.tie in ("free", "smooth")

    @property
    def tying_groups(self) -> dict[Group, float]:
        """The group that weights are tied under; a configuration checks that it is a single one."""
        return _weighted(self.tie_group or self.group)

    @property
    def groups(self) -> dict[Group, float]:
        """The groups of the objective and their weights; plots show the first one."""
        return _weighted(self.group)

    @property
    def measured_groups(self) -> tuple[Group, ...]:
        """The groups under which the trained network is measured."""
        return tuple(_weighted(self.measured or self.group))


@dataclass(frozen=True)
class Optimizer(Section):
    """How a gradient becomes a step."""

    algorithm: Literal["adam", "sgd", "momentum"] = setting(
        "adam", "sgd: Nesterov's momentum of 0.9; momentum: plain momentum of 0.9."
    )
    weight_decay: float = setting(1e-7, "L2 term of the optimizer.", low=0, high=1e3)
    decay_weights_only: bool = setting(False, "Leave norm layers and biases out of the weight decay.")


@dataclass(frozen=True)
class Schedule(Section):
    """How long a run is, and its learning rate."""

    epochs: int = setting(90, "Passes over the training images.", low=1, high=MAX_COUNT)
    batch_size: int = setting(64, "Images in a step, views not counted.", low=2, high=MAX_COUNT)
    shape: Literal["one-cycle", "exponential", "steps"] = setting(
        "one-cycle",
        "Learning rate. one-cycle: a cosine up and down, then flat; exponential: flat, then decaying; "
        "steps: in steps.",
    )
    cycle_epochs: int = setting(
        70,
        "one-cycle: length of the cycle, a quarter of it rising; later epochs run at min_lr.",
        low=1,
        high=MAX_COUNT,
    )
    max_lr: float = setting(
        5e-3, "Highest learning rate; exponential and steps start with it.", low=1e-12, high=100
    )
    min_lr: float = setting(
        1e-5, "one-cycle: lowest learning rate, at both ends of the cycle.", low=0, high=100
    )
    decay: float = setting(
        0.8,
        "Factor on the learning rate. exponential: in each epoch after decay_after; steps: at each step.",
        low=1e-6,
        high=1,
    )
    decay_after: int = setting(10, "exponential: epochs before the decay.", low=0, high=MAX_COUNT)
    steps_after: str = setting("", "steps: the epochs after which the learning rate falls, 20,40.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # read in any case: a list that cannot be read is an error whatever the shape
        steps = self.step_epochs
        if self.shape == "one-cycle" and self.cycle_epochs > self.epochs:
            raise ValueError(
                f"cycle_epochs ({self.cycle_epochs}) cannot exceed epochs ({self.epochs}): set both"
            )
        if self.shape == "one-cycle" and self.min_lr > self.max_lr:
            raise ValueError(f"min_lr ({self.min_lr:g}) cannot exceed max_lr ({self.max_lr:g})")
        if self.shape == "steps" and (not steps or list(steps) != sorted(set(steps))):
            raise ValueError(f"steps_after must list rising epochs, such as 20,40; got {self.steps_after!r}")
        # max(…, 2): a run of a single epoch may keep a step after 1, which is never reached
        if self.shape == "steps" and not 0 < steps[0] <= steps[-1] < max(self.epochs, 2):
            raise ValueError(
                f"steps_after ({self.steps_after}) must lie within the {self.epochs} epochs: set both"
            )

    @property
    def step_epochs(self) -> tuple[int, ...]:
        """The epochs after which the learning rate falls."""
        try:
            return tuple(int(epoch) for epoch in self.steps_after.split(",") if epoch)
        except ValueError:
            raise ValueError(
                f"steps_after must list epochs, such as 20,40; got {self.steps_after!r}"
            ) from None


@dataclass(frozen=True)
class Machine(Section):
    """Where and how a run is computed."""

    device: str = setting("auto", "cpu, cuda, cuda:1 or mps; auto: a GPU if there is one.")
    threads: int | None = setting(
        None, "CPU threads of each process; none: torch's default.", low=1, high=4096
    )
    workers: int | None = setting(
        None,
        "Processes that decode frames of clips, for each process that trains; 0: it decodes them itself; "
        "none: the free cores, up to 2, or 8 beside a GPU. Does not change what is seen.",
        low=0,
        high=4096,
    )
    processes: int = setting(1, "Processes that share each batch, set by torchrun.", low=1, high=MAX_COUNT)
    precision: Literal["float32", "bf16"] = setting("float32", "bf16: autocast the forward pass.")
    channels_last: bool = setting(
        False, "Memory layout in training; faster on some CPUs and most GPUs, rounds differently."
    )
    compile: bool = setting(False, "torch.compile each block; pays off in long runs only.")
    checkpoint_minutes: float = setting(
        10.0,
        "Save a checkpoint at least this often, within an epoch too; 0: only after each epoch. Does not "
        "change what is computed.",
        low=0,
        high=MAX_COUNT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device.split(":")[0] == "meta":
            raise ValueError("device meta computes shapes without numbers, and cannot train: use cpu or auto")


def _weighted(text: str) -> dict[Group, float]:
    """Read groups with weights: ``rot4+0.5*scale0.8``."""
    groups: dict[Group, float] = {}
    for part in text.split("+"):
        # from the right: a name has no star
        weight, star, name = part.rpartition("*")
        try:
            group = parse_group(name)
            alpha = float(weight) if star else 1.0
        except ValueError as error:
            if part == text:
                raise
            raise ValueError(f"cannot read {part!r} in {text!r}: {error}") from None
        if not 0 < alpha < math.inf:
            raise ValueError(f"the weight of {name} in {text!r} must be positive; got {weight}")
        if group in groups:
            raise ValueError(f"groups must be distinct: {name} is in {text!r} twice")
        groups[group] = alpha
    return groups
