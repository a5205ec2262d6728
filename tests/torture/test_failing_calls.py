"""An exception in the middle of a call, at any of its moments, leaves the user's model as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

import ien
from tests.torture.tally import Tally

SHORT = 2
"""Moments at which each call fails in ``make test``, spread evenly."""
FULL = 10**6
"""In ``make torture``: all of them."""
SAMPLED = {"symmetry": 60}
"""At most so many, spread evenly: it trains a network of its own, in hundreds of steps that are alike."""

IMAGES = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(0))
MANY_IMAGES = IMAGES.repeat(10, 1, 1, 1)
LABELS = torch.arange(640) % 2


class Failure(RuntimeError):
    """Raised in the middle of a call."""


ERRORS: tuple[type[BaseException], ...] = (Failure, KeyboardInterrupt, MemoryError)


def users_model(training: bool) -> nn.Sequential:
    """With statistics, a frozen layer, a layer in the other mode, a hook and gradients of the user's."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    net.train(training)
    net[4].train(not training)
    net[3].bias.requires_grad_(False)
    net[2].register_forward_hook(lambda module, given, output: None)
    net[7].weight.grad = torch.ones(4, 8)
    return net


def loss(model: nn.Module) -> None:
    ien.EquivarianceLoss("rot4", ["0", "3"], feature_groups=4)(model, IMAGES[:4]).loss.backward()


def measure(model: nn.Module) -> None:
    ien.measure(model, IMAGES[:8], "rot4", ["0", "3"])


def doctor(model: nn.Module) -> None:
    ien.doctor(model, (3, 12, 12))


def make_equivariant(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a net this small learns little
        ien.make_equivariant(model, "rot4", IMAGES[:4])


def symmetry(model: nn.Module) -> None:
    """Trains a network of its own."""
    ien.symmetry(MANY_IMAGES, LABELS, "rot4", epochs=2, quick=True)


def average(model: nn.Module) -> None:
    ien.GroupAverage(model, "rot4")(IMAGES[:4])


def canonicalize(model: nn.Module) -> None:
    ien.Canonicalize(model, "rot4").fit(IMAGES, steps=2, seed=0)(IMAGES[:4])


def adapt(model: nn.Module) -> None:
    ien.adapt(model, IMAGES, "rot4", minutes=1e-5, batch_size=8, progress=False)


CALLS: dict[str, Callable[[nn.Module], None]] = {
    "EquivarianceLoss": loss,
    "measure": measure,
    "doctor": doctor,
    "make_equivariant": make_equivariant,
    "symmetry": symmetry,
    "GroupAverage": average,
    "Canonicalize": canonicalize,
    "adapt": adapt,
}
ALLOWED = {
    "EquivarianceLoss": ("random", "grad", "buffers"),  # it is a training step, on elements that are drawn
    "GroupAverage": ("buffers",),  # a forward pass, in which norms take their statistics
    "Canonicalize": ("buffers",),
}
"""What a call may change, since it is meant to."""


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a call must not change."""
    modules = list(model.modules())
    hooks = []
    for module in modules:
        kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        hooks.append([list(kind) for kind in kinds])
    return {
        "weights": {name: weight.detach().clone() for name, weight in model.named_parameters()},
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "grad": {name: _copy(weight.grad) for name, weight in model.named_parameters()},
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "mode": [module.training for module in modules],
        "types": [type(module) for module in modules],
        "forward": ["forward" in vars(module) for module in modules],
        "hooks": hooks,
        "random": torch.get_rng_state(),
        "gradients on": torch.is_grad_enabled(),
    }


def _copy(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return gradient.clone()


def differences(before: Any, after: Any) -> bool:
    """Whether two states differ; tensors to the bit."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return not torch.equal(before, after)
    if isinstance(before, dict):
        return before.keys() != after.keys() or any(differences(before[k], after[k]) for k in before)
    return bool(before != after)


@contextmanager
def failing_at(number: int, error: type[BaseException]) -> Iterator[list[int]]:
    """Raise in the ``number``-th call of any module; yields a list with the count of calls."""
    calls = [0]

    def count(module: nn.Module, given: object) -> None:
        calls[0] += 1
        if calls[0] == number:
            raise error("in the middle")

    handle = register_module_forward_pre_hook(count)
    try:
        yield calls
    finally:
        handle.remove()


def fails_everywhere(name: str, most: int) -> Tally:
    """Let a call fail at about ``most`` moments, with another kind of error and mode each time."""
    tally = Tally(f"{name} that fails half way")
    call = CALLS[name]
    with failing_at(0, Failure) as calls:
        call(users_model(training=False))
    tally.of = calls[0]
    step = max(1, calls[0] // min(most, SAMPLED.get(name, most)))
    for i, number in enumerate(range(1, calls[0] + 1, step)):
        error = ERRORS[i % len(ERRORS)]
        training = i % 2 == 1
        case = f"module call {number}, {error.__name__}, training={training}"
        tally.add(case, problem_after(call, name, number, error, training))
    return tally


def problem_after(
    call: Callable[[nn.Module], None], name: str, number: int, error: type[BaseException], training: bool
) -> str | None:
    model = users_model(training)
    before = state(model)
    with failing_at(number, error) as calls, suppress(*ERRORS, ValueError):
        call(model)
    after = state(model)
    if calls[0] < number:
        return f"only {calls[0]} calls"
    for what in before:
        if what in ALLOWED.get(name, ()) and (training or what == "random"):
            continue
        if differences(before[what], after[what]):
            return f"{what} changed"
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_leaves_the_model_as_it_was(name: str) -> None:
    fails_everywhere(name, SHORT).check(at_least=SHORT)
