"""Checks of a configuration: a Config in, and an error that says what was needed if its fields do not fit."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from .. import baselines, models
from .._text import nearest
from ..groups.members import check_regular, permutes_members
from ..loss.feature_groups import FeatureGroups
from ..tracking.data.sets import SETS
from ..tracking.siamfc_network import BACKBONES

if TYPE_CHECKING:
    from .config import Config

__all__ = ["check", "wanted"]

DIGIT_NETS = ("cnn3", "sesn-vector", "sesn-scalar", "dss", "ss-cnn")
"""Those that see a digit at one of two sizes."""
TRACKERS = ("siamfc", "re-siamfc")
"""Those that are trained on clips."""
OF_IMAGES = ("average", "subset", "orbits", "transform", "rotate", "rescale", "shift", "mirror", "cutout")
"""What is done to images to be classified, and not to a tracker's pictures."""


def check(config: Config, kinds: dict[str, Any]) -> None:
    """An error for the first field that does not fit; ``kinds`` are the types of the fields."""
    for name, kind in kinds.items():
        _check_type(name, kind, getattr(config, name))
    for name, low, high in _RANGES:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            bounds = f"{low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
            raise ValueError(f"{name} must be {bounds}; got {value:g}")
    _check_model(config)
    _check_groups(config)
    _check_action(config)
    _check_schedule(config)


def wanted(kind: Any) -> str:
    """What a field of this type takes, in words."""
    texts = {
        bool: "true or false",
        int: "a whole number",
        float: "a number such as 0.3 or 1/8",
        str: "a text",
    }
    return texts[kind] if kind in texts else f"{texts[get_args(kind)[0]]} or none"


def _check_model(config: Config) -> None:
    if config.model not in (known := [*models.NAMES, *baselines.NAMES]):
        raise ValueError(f"there is no model {config.model!r}; {nearest(config.model, known)}")
    if config.model in DIGIT_NETS and config.image_size not in (28, 56):
        raise ValueError(f"image_size is 28 or 56 for {config.model}; got {config.image_size}")
    if config.model in TRACKERS and not config.tracks:
        raise ValueError(f"{config.model} is trained on clips, {' or '.join(SETS)}; got {config.dataset}")
    if not config.tracks:
        return
    if config.model not in TRACKERS:
        raise ValueError(f"{config.dataset} trains trackers, {' or '.join(TRACKERS)}; got {config.model}")
    if config.backbone not in BACKBONES:
        raise ValueError(f"there is no backbone {config.backbone!r}; {nearest(config.backbone, BACKBONES)}")
    usual = {field.name: field.default for field in fields(config)}
    if changed := [name for name in OF_IMAGES if getattr(config, name) != usual[name]]:
        raise ValueError(
            f"a tracker's pictures are stretched and moved as published, so that settings for images to be "
            f"classified do nothing; leave out {' and '.join(changed)}"
        )


def _check_groups(config: Config) -> None:
    sizes, others = FeatureGroups.of(config.feature_groups).sizes, [len(g) - 1 for g in config.groups]
    if config.beta and not config.augment:
        raise ValueError(
            f"beta {config.beta:g} needs augment=true: the loss compares images with their copies"
        )
    _ = config.measured_groups  # can be read
    if 0 in others:
        raise ValueError(f"group {config.group} has one element, the identity: take rot4, for example")
    if config.samples > min(others):
        raise ValueError(f"samples must be 1 to {min(others)} for {config.group}; got {config.samples}")
    if config.orbits and (not config.augment or config.samples > 1):
        raise ValueError(
            f"orbits shows every copy: it needs augment=true and samples=1; got augment={config.augment} and "
            f"samples={config.samples}"
        )
    if config.transform and len(others) > 1:
        raise ValueError(
            f"transform draws elements of one group, such as {next(iter(config.groups))}; got {config.group}"
        )
    if config.average and (len(others) > 1 or config.measured):
        raise ValueError(
            f"average takes one group, such as {next(iter(config.groups))}, and measures under it; "
            f"got group {config.group}, measured {config.measured or config.group}"
        )
    if config.steerable and config.precision == "bf16":
        raise ValueError(f"precision bf16 is not supported by {config.model}: leave it at float32")
    if config.steerable and len(sizes) > 1:
        raise ValueError(
            f"{config.model} has feature groups of one size, such as 4; got {config.feature_groups}"
        )
    if config.steerable and (len(others) > 1 or sizes[0] != others[0] + 1):
        raise ValueError(
            f"{config.model} under {config.group} has feature groups of {others[0] + 1}, the elements of one "
            f"group; got {config.feature_groups}"
        )


def _check_action(config: Config) -> None:
    """Whether the groups can permute the members of feature groups, where the run needs it."""
    if config.start == "equivariant":
        if config.model not in models.NAMES:
            raise ValueError(
                f"start=equivariant is for plain networks, {', '.join(models.NAMES)}; got {config.model}"
            )
        if len(config.groups) > 1 or not any(next(iter(config.groups)).exact[1:]):
            raise ValueError(
                f"start=equivariant takes one group with a half turn, quarter turn or flip, such as rot4; "
                f"got {config.group}"
            )
    if config.kernels == "smooth" and config.start == "random":
        raise ValueError("kernels=smooth is of networks that start equivariant: set start=equivariant too")
    if config.tied and config.start == "random":
        raise ValueError("tied=true keeps a network equivariant that starts so: set start=equivariant too")
    if config.start == "random" and (config.action == "pooled" or not config.beta):
        return
    why = "start=equivariant" if config.start == "equivariant" else "action=regular"
    groups = [group for group in config.groups if permutes_members(group)] or list(config.groups)  # one must
    for group in groups:
        try:
            check_regular(group, FeatureGroups.of(config.feature_groups).sizes)
        except ValueError as error:
            raise ValueError(f"{why}: {error}") from None


def _check_schedule(config: Config) -> None:
    if config.schedule == "one-cycle" and config.cycle_epochs > config.epochs:
        raise ValueError(
            f"cycle_epochs ({config.cycle_epochs}) cannot exceed epochs ({config.epochs}): set both"
        )
    if config.schedule == "one-cycle" and config.min_lr > config.max_lr:
        raise ValueError(f"min_lr ({config.min_lr:g}) cannot exceed max_lr ({config.max_lr:g})")
    steps = config.step_epochs
    if config.schedule == "steps" and not (steps and steps == tuple(sorted(set(steps)))):
        raise ValueError(f"steps_after lists rising epochs, as in 20,40; got {config.steps_after!r}")
    if config.schedule == "steps" and not 0 < steps[0] <= steps[-1] < max(config.epochs, 2):
        raise ValueError(
            f"steps_after ({config.steps_after}) must lie within the {config.epochs} epochs: set both"
        )


def _check_type(name: str, kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            *first, last = get_args(kind)
            raise ValueError(f"{name} is {', '.join(first)} or {last}; got {value!r}")
    elif type(value) not in ((int, float) if kind is float else get_args(kind) or (kind,)):
        raise ValueError(f"{name} must be {wanted(kind)}; got {value!r}")


_RANGES: list[tuple[str, float, float]] = [
    ("seed", 0, 2**63),
    ("data_seed", 0, 2**63),
    ("train_images", 2, math.inf),
    ("subset", 2, math.inf),
    ("test_images", 1, math.inf),
    ("classes", 2, math.inf),
    ("validation_images", 1, math.inf),
    ("image_size", 8, 96),
    ("pairs", 2, math.inf),
    ("apart", 2, math.inf),
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
    ("workers", 0, 4096),
    ("processes", 1, 1e6),
]
