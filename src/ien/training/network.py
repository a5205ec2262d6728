"""What tasks are made of: from a configuration to network, objective, optimizer and images."""

from __future__ import annotations

import ctypes
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import baselines, models
from .._files import seed_of
from ..data import Dataset
from ..loss.objective import EquivarianceLoss
from ..measuring.measure import measure
from ..tying.keep import keep_equivariant
from ..tying.start import Start, start_equivariant
from .config import Config

__all__ = [
    "Forward",
    "autocast",
    "build",
    "channels_last",
    "compile_blocks",
    "exported",
    "images",
    "loss_names",
    "network_of",
    "objective_of",
    "optimizer_of",
    "plain_of",
    "started",
    "trainable",
]


class Forward(NamedTuple):
    """What the forward pass of a step gives, for this process's share of the batch."""

    loss: Tensor
    """Their mean, to descend."""
    parts: list[Tensor]
    """The task loss and the terms, as ``losses`` names them: means."""
    hits: Tensor
    """How many of the originals are right."""
    items: int
    """Images, or pairs, in the share; 0 where one was taken that does not count."""
    total: int
    """Those in the whole batch."""


def trainable(config: Config, device: torch.device, some: Tensor) -> tuple[nn.Module, Start | None]:
    """The network with its initial weights, in training mode, and how it starts equivariant, if it does.

    ``some`` are inputs to try it on.
    """
    keep_freed_memory()
    network = build(config).to(device)
    start = started(config, network, some.to(device))
    _check_measurable(config, network, some[:2].to(device))
    network.train()
    if config.channels_last:
        channels_last(network)
    if config.compile:
        compile_blocks(network)
    return network, start


def loss_names(config: Config, objective: EquivarianceLoss | None) -> list[str]:
    """The names of what a step sums up, besides hits and items."""
    if not (objective and config.beta):
        return ["task_loss"]
    groups, layers = objective.groups, objective.layers
    if len(groups) == 1:
        return ["task_loss", *layers]
    return ["task_loss", *(f"{group} {layer}" for group in groups for layer in layers)]


def autocast(config: Config, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def _check_measurable(config: Config, network: nn.Module, x: Tensor) -> None:
    """Fail before training, not after it, where an element leaves nothing to compare in some layer."""
    network.eval()
    for group in dict.fromkeys([*config.groups, *config.measured_groups]):
        report = measure(network, x, group, network.taps, network.feature_groups, floors=False)  # type: ignore[arg-type]
        for name, layer in report.layers.items():
            if empty := [label for label, error in layer.per_element.items() if math.isnan(error)]:
                size = "×".join(map(str, layer.size))
                raise ValueError(
                    f"{group} {', '.join(empty)} leaves no valid pixel to compare on the {size} map of layer "
                    f"{name!r}: take elements that leave some, or larger images"
                )


def build(config: Config) -> nn.Module:
    """The network of a run with its initial weights."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    return network_of(config)


def started(config: Config, network: nn.Module, some: Tensor) -> Start | None:
    """Make a new network equivariant if the configuration says so; ``some`` inputs are run to do that."""
    if config.start == "random":
        return None
    (group,) = config.groups
    spec: Any = network.feature_groups
    return start_equivariant(network, group, spec, some, kernels=config.kernels)


def network_of(config: Config) -> nn.Module:
    """The network of a run, made with those settings of the configuration that it takes."""
    factory = (models if config.model in models.NAMES else baselines).factory(config.model)
    settings = {
        "feature_groups": config.feature_groups,
        "group": config.group,
        "width": config.width,
        "num_classes": config.classes,
        "size": config.image_size,
        "plus": config.rescale > 1,
        "backbone": config.backbone,
    }
    taken = inspect.signature(factory).parameters
    return factory(**{name: value for name, value in settings.items() if name in taken})


def compile_blocks(network: nn.Module) -> None:
    """Compile the forward pass of each block, so that the loss can look between them."""
    import torch._dynamo

    # the limit is one for all blocks, and each has a program for every size of a batch
    torch._dynamo.config.cache_size_limit = 64
    for block in network.children():
        block.forward = torch.compile(block.forward, dynamic=False)


def plain_of(network: nn.Module) -> nn.Module:
    """The ordinary network that a built-in equivariant one is exported to; any other, no longer compiled."""
    for block in network.children():
        vars(block).pop("forward", None)
    export: Callable[[], nn.Module] | None = getattr(network, "export", None)
    return network if export is None else export()


def exported(network: nn.Module, some: Tensor) -> nn.Module:
    """:func:`plain_of` a trained network, after a look whether it computes the same of ``some`` inputs."""
    plain = plain_of(network)
    if plain is not network:
        with torch.no_grad():
            output = network.eval()(some)
            difference = float((output - plain.eval()(some)).abs().max() / output.abs().max().clamp(min=1))
        if not difference < 1e-3:
            raise RuntimeError(f"the exported network differs from the trained one by {difference:g}")
    return plain


def channels_last(network: nn.Module) -> None:
    """Put the kernels into the layout in which most CPUs and GPUs convolve faster."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def objective_of(config: Config, model: nn.Module) -> EquivarianceLoss | None:
    """The equivariance loss on all taps, or None for a run without transformed copies."""
    if not config.augment:
        return None
    layers: Any = dict.fromkeys(model.taps, config.beta)  # type: ignore[arg-type]
    groups: Any = config.groups
    return EquivarianceLoss(
        groups,
        layers,
        model.feature_groups,  # type: ignore[arg-type]
        samples="all" if config.orbits else config.samples,
        normalize=config.normalize,
        action=config.action,
    )


def images(config: Config, dataset: Dataset) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What a run trains on, or draws its subset from, and what it is tested on, as (images, labels)."""
    if dataset.classes != config.classes:
        raise ValueError(
            f"{dataset.name} has {dataset.classes} classes; the configuration says {config.classes}"
        )
    train, test = (dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)
    if config.test_on == "validation":
        kept = len(train[0]) - config.validation_images
        if kept < 2:
            raise ValueError(
                f"validation_images ({config.validation_images}) leaves none of {len(train[0])} to train on"
            )
        test = train[0][kept:], train[1][kept:]
        train = train[0][:kept], train[1][:kept]
    for name, asked, there in (
        ("train_images", config.train_images, len(train[0])),
        ("subset", config.subset, min(len(train[0]), config.train_images or len(train[0]))),
        ("test_images", config.test_images, len(test[0])),
    ):
        if asked is not None and asked > there:
            raise ValueError(
                f"{name} is {asked}, but {dataset.source} {dataset.name} has {there} of them: "
                f"--set {name}={there}, or another preset"
            )
    train = train[0][: config.train_images], train[1][: config.train_images]
    return train, (test[0][: config.test_images], test[1][: config.test_images])


def optimizer_of(config: Config, network: nn.Module, start: Start | None) -> torch.optim.Optimizer:
    """What descends on the weights of a network, which is on its device, and keeps them tied if it shall."""
    parameters = _parameter_groups(config, network)
    fused = next(network.parameters()).device.type in ("cpu", "cuda")
    optimizer: torch.optim.Optimizer
    if config.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, lr=config.max_lr, fused=fused)
    else:
        nesterov = config.optimizer == "sgd"
        optimizer = torch.optim.SGD(
            parameters, lr=config.max_lr, momentum=0.9, nesterov=nesterov, fused=fused
        )
    if config.tied and start:
        keep_equivariant(start, optimizer)
    return optimizer


def _parameter_groups(config: Config, network: nn.Module) -> list[dict[str, Any]]:
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    undecayed = {
        id(parameter)
        for module in network.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if config.decay_weights_only and (isinstance(module, norms) or name.endswith("bias"))
    }
    parameters = list(network.parameters())
    return [
        {"params": [p for p in parameters if id(p) not in undecayed], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if id(p) in undecayed], "weight_decay": 0.0},
    ]


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks: the page faults of new ones cost up to a tenth of a step."""
    if sys.platform.startswith("linux"):
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):  # another C library
            return
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)
