"""From a configuration to a network, its equivariance loss and its optimizer, for every task.

A network may train with tied weights, which torch's parametrizations compute from fewer numbers.
What is kept, tested and loaded is always the plain one.
"""

from __future__ import annotations

import inspect
import math
import platform
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._files import seed_of
from ..loss.objective import EquivarianceLoss
from ..loss.reach import out_of_reach
from ..measuring.measure import measure
from ..tying.slack import RATE, Remainder
from ..tying.tie import make_equivariant, make_plain, plain_copy
from ..tying.tied import Tied
from .config import Config
from .distributed import Processes
from .own_model import name_layers
from .task import kind_of

__all__ = [
    "autocast",
    "build",
    "channels_last",
    "check_target",
    "compile_blocks",
    "count_views",
    "create",
    "exported",
    "loss_names",
    "objective_of",
    "optimizer_of",
    "plain_of",
    "tie_weights",
    "trainable",
]

MAX_EXPORT_ERROR = 1e-3
"""By how much the outputs of an exported network may differ, relative to the largest of them."""
X86 = ("x86_64", "AMD64")
"""What platforms call the processors whose instructions torch tells."""
MAX_COMPILED_PROGRAMS = 64
"""One limit for all blocks, and each has a program for every size of a batch."""


def create(factory: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """Call a factory of networks with those of the options that it takes."""
    taken = inspect.signature(factory).parameters
    chosen = {name: value for name, value in options.items() if name in taken}
    return factory(**chosen)


def build(config: Config) -> nn.Module:
    """Build the network of a run with its initial weights, which depend on nothing but the seed."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    return kind_of(config).network(config)


def tie_weights(config: Config, network: nn.Module, some: Tensor) -> Tied | None:
    """Make a new network equivariant, by running ``some`` inputs, if the run asks for it.

    With ``tie=start`` it is a plain network again afterwards, whose first weights are equivariant.

    Returns:
        What became of it; None for a plain network.
    """
    objective = config.objective
    if objective.tie == "never":
        return None
    kernels: Any = "free"
    if objective.tied:
        kernels = objective.tie
    (group,) = objective.tying_groups
    spec: Any = getattr(network, "feature_groups", "auto")
    tied = make_equivariant(
        network, group, some, feature_groups=spec, kernels=kernels, slack=objective.slack_value
    )
    if objective.tied:
        return tied
    make_plain(network)
    return None


def trainable(
    config: Config, device: torch.device, processes: Processes, some: Tensor
) -> tuple[nn.Module, Tied | None]:
    """Build a network ready to train, with tied weights if the run asks for them.

    Args:
        config: The configuration of the run.
        device: Where the network goes.
        processes: Those that share each batch.
        some: A few inputs, to try the network on.

    Returns:
        The network, and what became of it when its weights were tied.
    """
    # built on the CPU, so that a seed gives the same weights on every device
    network = build(config).to(device)
    # before weights are tied: a tied norm is of a class of its own, which torch would not replace
    network = processes.synchronise_norms(network, device)
    is_ours = hasattr(network, "taps")
    try:
        tied = tie_weights(config, network, some.to(device))
    except ValueError as error:
        if is_ours:
            raise
        raise ValueError(f"{error}; --group none trains it as it is") from None
    if not is_ours:
        name_layers(network, next(iter(config.objective.groups)), some.to(device), tied is not None)
    if network.taps:
        _check_measurable(config, network, some[:2].to(device))
        check_target(config, network, some.to(device))
    elif config.objective.beta > 0 or config.objective.target is not None:
        raise ValueError(
            "no layer of the network returns a map (B, C, H, W), so the loss has nothing to compare: set "
            "beta=0, and no target"
        )
    network.train()
    if config.machine.channels_last:
        channels_last(network)
    if config.machine.compile:
        compile_blocks(network)
    return network, tied


def objective_of(config: Config, model: nn.Module) -> EquivarianceLoss | None:
    """Make the equivariance loss on all taps of a network; None for a run without views."""
    objective = config.objective
    if not objective.augment:
        return None
    # one weight for all layers, as in the paper; with beta 0 views are shown and only augment
    layers: Any = dict.fromkeys(model.taps, objective.beta)  # type: ignore[arg-type]
    groups: Any = objective.groups
    samples: Any = objective.samples
    if objective.orbits:
        samples = "all"
    return EquivarianceLoss(
        groups,
        layers,
        model.feature_groups,  # type: ignore[arg-type]
        samples=samples,
        normalize=objective.normalize,
        action=objective.action,
        target=objective.target,
        interpolation=objective.interpolation,
        corners=objective.corners,
    )


def count_views(objective: EquivarianceLoss | None) -> int:
    """Count how often an image is seen in a step: the original and its views."""
    if objective is None:
        return 1
    return objective.views


def loss_names(config: Config, objective: EquivarianceLoss | None) -> list[str]:
    """Name the parts of a step's loss: the task loss, and the term of each layer (and group)."""
    names = ["task_loss"]
    if objective is None or config.objective.beta == 0:
        return names  # EquivarianceLoss skips layers of weight 0
    if len(objective.groups) == 1:
        return [*names, *objective.layers]
    for group in objective.groups:
        names += [f"{group} {layer}" for layer in objective.layers]
    return names


def optimizer_of(config: Config, network: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of a network that is on its device, and tied if it will be."""
    lr = config.schedule.max_lr
    parameters = _parameter_groups(config, network)
    # one kernel for all parameters, where there is one
    fused = next(network.parameters()).device.type in ("cpu", "cuda")
    if config.optimizer.algorithm == "adam":
        return torch.optim.Adam(parameters, lr=lr, fused=fused)
    nesterov = config.optimizer.algorithm == "sgd"
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=nesterov, fused=fused)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass in the precision of the run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.machine.precision == "bf16")


def warn_of_slow_precision(config: Config) -> None:
    """Warn if bf16 is asked for on a CPU that has no instructions for it."""
    machine = config.machine
    if machine.precision != "bf16" or machine.device != "cpu" or platform.machine() not in X86:
        return
    # private, so that a version of torch may lack them: then nothing is known
    has_vectors = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)()
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)()
    if not has_vectors and not has_tiles:
        warnings.warn(
            "precision=bf16 will be slower than float32 here, 11 to 20 times on CPUs with AVX2 only: this "
            "CPU has neither avx512_bf16 nor amx; leave it at float32",
            stacklevel=3,
        )


def channels_last(network: nn.Module) -> None:
    """Put the kernels into the layout in which most CPUs and GPUs convolve faster.

    Tied kernels are computed in every pass, and stay in the layout in which they are.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and not parametrize.is_parametrized(module, "weight"):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def compile_blocks(network: nn.Module) -> None:
    """Compile the forward pass of each block by itself, so that the loss can look between them."""
    import torch._dynamo

    torch._dynamo.config.cache_size_limit = MAX_COMPILED_PROGRAMS
    for block in network.children():
        block.forward = torch.compile(block.forward, dynamic=False)


def plain_of(network: nn.Module) -> nn.Module:
    """Return the ordinary network.

    A steerable network is exported, one with tied weights is copied without the ties, and a
    compiled one no longer is.
    """
    for block in network.children():
        vars(block).pop("forward", None)  # what compile_blocks put there
    if _is_tied(network):
        return plain_copy(network)
    export: Callable[[], nn.Module] | None = getattr(network, "export", None)
    if export is None:
        return network
    return export()


def exported(network: nn.Module, some: Tensor) -> nn.Module:
    """Return :func:`plain_of` a trained network, and check that ``some`` outputs are the same."""
    plain = plain_of(network)
    if plain is network:
        return network
    with torch.no_grad():
        output = network.eval()(some)
        largest = output.abs().max().clamp(min=1)  # relative to 1 if all outputs are smaller
        difference = float((output - plain.eval()(some)).abs().max() / largest)
    if not difference < MAX_EXPORT_ERROR:  # NaN too
        raise RuntimeError(f"the exported network differs from the trained one by {difference:g}")
    return plain


def _is_tied(network: nn.Module) -> bool:
    for module in network.modules():
        if parametrize.is_parametrized(module):
            return True
    return False


def _check_measurable(config: Config, network: nn.Module, x: Tensor) -> None:
    """Fail before training, not after it, if an element leaves nothing to compare in some layer."""
    network.eval()  # so that these images leave no trace in the statistics of BatchNorm
    taps: Any = (network.taps, network.feature_groups)
    for group in dict.fromkeys([*config.objective.groups, *config.objective.measured_groups]):
        report = measure(network, x, group, *taps, floors=False)
        for name, layer in report.layers.items():
            empty = [label for label, error in layer.per_element.items() if math.isnan(error)]
            if empty:
                size = "×".join(map(str, layer.size))
                raise ValueError(
                    f"{group} {', '.join(empty)} leaves no valid pixel to compare on the {size} map of layer "
                    f"{name!r}: use elements that leave some, or larger images"
                )


def check_target(config: Config, network: nn.Module, x: Tensor) -> None:
    """Fail before training if no training could bring the errors down to the target."""
    target = config.objective.target
    if target is None:
        return
    network.eval()
    taps: Any = (network.taps, network.feature_groups)
    for group in config.objective.groups:
        report = measure(network, x, group, *taps)
        for name, layer in report.layers.items():
            # None for custom transformations, NaN on maps too small to tell: no floor is known
            if layer.floor is None:
                continue
            problem = out_of_reach(target, layer.floor, name, layer.size, group)
            if problem:
                raise ValueError(problem)


def _parameter_groups(config: Config, network: nn.Module) -> list[dict[str, Any]]:
    """Split the parameters into those with weight decay, those without, and remainders.

    ``rate`` is a factor on the learning rate; remainders have a penalty instead of decay.
    """
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    # by identity: == of two tensors compares their numbers
    undecayed: dict[int, nn.Parameter] = {}
    if config.optimizer.decay_weights_only:
        for module in network.modules():
            for name, parameter in _own_parameters(module):
                if isinstance(module, norms) or name.endswith("bias"):
                    undecayed[id(parameter)] = parameter
    remainders: dict[int, nn.Parameter] = {}
    for module in network.modules():
        if isinstance(module, Remainder):
            remainders[id(module.free)] = module.free
    # in the order of the network, which checkpoints rely on
    learning = [p for p in network.parameters() if id(p) not in remainders]
    decayed = [p for p in learning if id(p) not in undecayed]
    others = [p for p in learning if id(p) in undecayed]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.optimizer.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if remainders:
        groups.append({"params": list(remainders.values()), "weight_decay": 0.0, "rate": RATE})
    return groups


def _own_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return a module's own parameters, each with the name of the weight or bias it makes up."""
    found = list(module.named_parameters(recurse=False))
    if parametrize.is_parametrized(module):
        # a tied bias is computed from parametrizations.bias.original
        parametrizations: Any = module.parametrizations
        for name, each in parametrizations.items():
            for parameter in each.parameters():
                found.append((name, parameter))
    return found
