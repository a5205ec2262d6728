"""A network of your own in a run: its code is named in the configuration, and runs only if given.

A run folder may come from somebody else, so nothing that it names is executed. Whoever trains,
resumes or loads such a run says again where the code is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._files import digest
from ..groups.group import Group
from ..loss.capture import capture
from ..measuring.choose_layers import NoMaps, choose_layers
from ..measuring.inputs import eval_mode
from ..measuring.measure import measure
from .fields import setting
from .sections import Network

__all__ = [
    "OWN",
    "NotGiven",
    "OwnNetwork",
    "build_own",
    "check_code",
    "check_output",
    "code_of",
    "given",
    "name_layers",
]

OWN = "own"
"""The name of the model in the configuration of a run that trains a network of your own."""
MAX_TIED_ERROR = 1e-3
"""Relative error up to which a layer of a tied network counts as equivariant channel by channel."""

Build = Callable[..., nn.Module]
"""Makes the network; called with ``num_classes`` and ``in_channels``, which it may ignore."""

_given: dict[str, Build] = {}


class NotGiven(ValueError):
    """The code of a network was not given again."""


@dataclass(frozen=True)
class OwnNetwork(Network):
    """Which network, and how wide; or a network of your own."""

    PLAIN: ClassVar[tuple[str, ...]] = (*Network.PLAIN, OWN)

    code: str = setting("", "model=own: the function that makes the network, /path/to/net.py:build.")
    code_sha256: str = setting("", "model=own: SHA-256 of the file when the run began.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model == OWN) != bool(self.code):
            raise ValueError(
                f"model=own goes with the code of the network: ien train FOLDER --model net.py:build; got "
                f"model {self.model} and code {self.code!r}"
            )


def code_of(target: str) -> tuple[str, str]:
    """Return ``target`` with the whole path of its file, and the SHA-256 of that file.

    Args:
        target: ``path/to/net.py:build``, or ``package.module:build``, which keeps its name.
    """
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        place = str(path)
    else:
        spec = importlib.util.find_spec(place)
        if spec is None or not spec.origin:
            raise ValueError(f"there is no module {place!r} with the code of a network; got {target!r}")
        path = Path(spec.origin)
    if not path.is_file():
        raise FileNotFoundError(f"there is no code file {path}")
    return f"{place}:{name}", digest(path.read_bytes())


@contextmanager
def given(code: str, build: Build) -> Iterator[None]:
    """Let networks that a configuration calls ``code`` be built, while the block runs."""
    _given[code] = build
    try:
        yield
    finally:
        del _given[code]


def build_own(network: OwnNetwork, **options: Any) -> nn.Module:
    """Build the network that a configuration names, if its code was given.

    Args:
        network: The section of the configuration.
        **options: ``num_classes`` and ``in_channels``, for code that takes them.
    """
    if network.code not in _given:
        raise NotGiven(
            f"the network is your own, {network.code}, and code that a run names is never executed by "
            f"itself{_state(network)}: give it again, --model {network.code}, or ien.load(run, build=…) with "
            f"the function that makes it"
        )
    return _given[network.code](**options)


def check_code(network: OwnNetwork, sha256: str, run: Path) -> None:
    """Raise if a file of code is not the one that a run was begun with."""
    if sha256 != network.code_sha256:
        raise ValueError(
            f"{network.code.rpartition(':')[0]} has changed since {run} began (SHA-256 "
            f"{network.code_sha256[:10]}…, now {sha256[:10]}…): restore it, or begin another run with --name"
        )


def name_layers(network: nn.Module, group: Group, images: Tensor, tied: bool) -> None:
    """Give a network of your own ``taps`` and ``feature_groups``, by which ours are measured.

    An ordinary network none of whose layers returns a map, such as a vision transformer, has none:
    its predictions are measured alone. A layer of a tied network has feature groups if it is not
    equivariant channel by channel.

    Args:
        network: The network, on its device.
        group: The group that it was tied under.
        images: A few images (B, C, H, W).
        tied: Whether its weights are tied.
    """
    with eval_mode(network), torch.no_grad():
        try:
            taps = choose_layers(network, images[:2].clone())
        except NoMaps:
            if tied:
                raise
            taps = []
        with capture(network, taps) as features:
            network(images[:2].clone())
    sizes = dict.fromkeys(taps, 1)
    if tied:
        report = measure(network, images, group, taps, floors=False)
        for name, layer in report.layers.items():
            # quarter turns and flips alone: other elements resample, and are never exact
            error = layer.exact
            channels = features[name].shape[1]
            if error is not None and error > MAX_TIED_ERROR and channels % len(group) == 0:
                sizes[name] = len(group)
    ours: Any = network
    ours.taps = tuple(taps)
    ours.feature_groups = sizes


def _state(network: OwnNetwork) -> str:
    """Say what has become of the file since the run began; nothing if it is as it was."""
    path = Path(network.code.rpartition(":")[0])
    if path.suffix != ".py":
        return ""
    if not path.is_file():
        return " (the file is missing now)"
    if digest(path.read_bytes()) != network.code_sha256:
        return " (the file has changed since)"
    return ""


def check_output(
    output: object, wanted: tuple[int, ...], name: str, *, expected: str, key: str, remedy: str
) -> None:
    """Raise a ValueError if what a network returned is not a tensor of scores of this shape.

    Args:
        output: What it returned.
        wanted: The shape.
        name: What the network is called.
        expected: What was expected, in words.
        key: What an example takes the scores with, if the network returns several things.
        remedy: What to do if the shape is another one.
    """
    if not isinstance(output, Tensor):
        inside = ""
        if isinstance(output, dict):
            inside = f" with {', '.join(map(str, output))}"
        raise ValueError(
            f"{name} returns a {type(output).__name__}{inside}: {expected}; return the scores alone, as in "
            f"def forward(self, x): return self.net(x)[{key}]"
        )
    if tuple(output.shape) != wanted or not output.is_floating_point():
        kind = str(output.dtype).removeprefix("torch.")
        raise ValueError(f"{name} returns {kind} {tuple(output.shape)}: {expected}; {remedy}")
