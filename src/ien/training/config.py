"""What determines a run: one frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .._feature_groups import FeatureGroups
from .._groups import Group
from .._groups import group as parse_group
from .._names import nearest
from ..baselines import BASELINES
from ..models import MODELS

__all__ = ["Config", "field_types", "wanted"]


DIGIT_NETS = ("cnn3", "sesn-vector", "sesn-scalar", "dss", "ss-cnn")
"""Those that see a digit at one of two sizes."""


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
    """Name of the data set (see ien data list)."""
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
    """Train on the first so many images only; none for all."""
    test_images: int | None = None
    """Test on the first so many images only; none for all."""
    test_on: Literal["test", "validation"] = "test"
    """validation holds out the last images of the training set and tests on them: to choose settings."""
    validation_images: int = 2000
    """How many training images test_on=validation holds out."""

    model: str = "cnn6"
    """cnn6, resnet18, vgg, cnn3 or wide-resnet; with e2cnn- before one of the first three the steerable net
    with its channels at inference; sesn-vector, sesn-scalar, dss, ss-cnn, sesn-wrn, dss-wrn or ss-cnn-wrn."""
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
    samples: int = 1
    """Transformed copies of each image in a step."""
    beta: float = 1.0
    """Weight of the equivariance loss in every layer; 0 is the augmented CNN."""
    normalize: bool = False
    """Divide the equivariance loss of a layer by the variance of its maps."""
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
    """Passes over the training images."""
    batch_size: int = 64
    """Images in a step, copies not counted."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """sgd has Nesterov's momentum of 0.9."""
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
    processes: int = 1
    """Processes that share each batch, set by torchrun."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: autocast of the forward pass."""
    channels_last: bool = False
    """Memory layout in training; no faster on the CPUs measured, often faster on a GPU."""
    compile: bool = False
    """torch.compile of each block; pays off for long runs only."""

    def __post_init__(self) -> None:
        for name, kind in field_types().items():
            _check_type(name, kind, getattr(self, name))
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                bounds = f"{low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
                raise ValueError(f"{name} must be {bounds}; got {value:g}")
        sizes, others = FeatureGroups.of(self.feature_groups).sizes, [len(g) - 1 for g in self.groups]
        if self.model not in (known := [*MODELS, *BASELINES]):
            raise ValueError(f"there is no model {self.model!r}; {nearest(self.model, known)}")
        if self.model in DIGIT_NETS and self.image_size not in (28, 56):
            raise ValueError(f"image_size is 28 or 56 for {self.model}; got {self.image_size}")
        if self.schedule == "one-cycle" and self.cycle_epochs > self.epochs:
            raise ValueError(
                f"cycle_epochs ({self.cycle_epochs}) cannot exceed epochs ({self.epochs}): set both"
            )
        if self.schedule == "one-cycle" and self.min_lr > self.max_lr:
            raise ValueError(f"min_lr ({self.min_lr:g}) cannot exceed max_lr ({self.max_lr:g})")
        if self.beta and not self.augment:
            raise ValueError(
                f"beta {self.beta:g} needs augment=true: the loss compares images with their copies"
            )
        _ = self.measured_groups  # can be read
        if 0 in others:
            raise ValueError(f"group {self.group} has one element, the identity: take rot4, for example")
        if self.samples > min(others):
            raise ValueError(f"samples must be 1 to {min(others)} for {self.group}; got {self.samples}")
        if self.average and (len(others) > 1 or self.measured):
            raise ValueError(
                f"average takes one group, such as {next(iter(self.groups))}, and measures under it; "
                f"got group {self.group}, measured {self.measured or self.group}"
            )
        if self.steerable and self.precision == "bf16":
            raise ValueError(f"precision bf16 is not supported by {self.model}: leave it at float32")
        if self.steerable and len(sizes) > 1:
            raise ValueError(
                f"{self.model} has feature groups of one size, such as 4; got {self.feature_groups}"
            )
        if self.steerable and (len(others) > 1 or sizes[0] != others[0] + 1):
            raise ValueError(
                f"{self.model} under {self.group} has feature groups of {others[0] + 1}, the elements of one "
                f"group; got {self.feature_groups}"
            )
        steps = self.step_epochs
        if self.schedule == "steps" and not (steps and steps == tuple(sorted(set(steps)))):
            raise ValueError(f"steps_after lists rising epochs, as in 20,40; got {self.steps_after!r}")
        if self.schedule == "steps" and not 0 < steps[0] <= steps[-1] < max(self.epochs, 2):
            raise ValueError(
                f"steps_after ({self.steps_after}) must lie within the {self.epochs} epochs: set both"
            )

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
        return self.model.startswith("e2cnn-")

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


_RANGES: list[tuple[str, float, float]] = [
    ("seed", 0, 2**63),
    ("data_seed", 0, 2**63),
    ("train_images", 2, math.inf),
    ("test_images", 1, math.inf),
    ("classes", 2, math.inf),
    ("validation_images", 1, math.inf),
    ("image_size", 8, 96),
    ("width", 1 / 256, 16),
    ("samples", 1, math.inf),
    ("beta", 0, 1e9),
    ("rescale", 1, 16),
    ("shift", 0, 96),
    ("cutout", 0, 96),
    ("epochs", 1, 1e6),
    ("batch_size", 2, 1e6),
    ("cycle_epochs", 1, 1e6),
    ("max_lr", 1e-12, 100),
    ("min_lr", 0, 100),
    ("decay", 1e-6, 1),
    ("decay_after", 0, 1e6),
    ("weight_decay", 0, 1e3),
    ("threads", 1, 4096),
    ("processes", 1, 1e6),
]


def field_types() -> dict[str, Any]:
    return get_type_hints(Config)


def _check_type(name: str, kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            *first, last = get_args(kind)
            raise ValueError(f"{name} is {', '.join(first)} or {last}; got {value!r}")
    elif type(value) not in ((int, float) if kind is float else get_args(kind) or (kind,)):
        raise ValueError(f"{name} must be {wanted(kind)}; got {value!r}")


def wanted(kind: Any) -> str:
    texts = {
        bool: "true or false",
        int: "a whole number",
        float: "a number such as 0.3 or 1/8",
        str: "a text",
    }
    return texts[kind] if kind in texts else f"{texts[get_args(kind)[0]]} or none"
