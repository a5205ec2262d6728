"""Dry run: a forward pass on fake tensors, for any input size, with the model left as it was."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from ..loss.modules import unwrapped
from .dimensions import COLUMNS, ROWS, dimension
from .facts import Facts, no_places, set_facts, value_of
from .interpreter import interpret
from .notes import Notes

__all__ = ["DryRun", "dry_runs"]

BATCH_SIZE = 2
"""With one image, ``x.squeeze()`` would drop the batch dimension too."""
CONTAINER_TYPES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
"""Containers whose contents are put back after a pass."""
OPAQUE_TYPES = (
    *(Tensor, str, bytes, int, float, type),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)
"""Values that a forward pass cannot change, or not in a way that we could undo."""

DryRun = Callable[[tuple[int, int, int], bool], Notes]
"""From an input size, and whether to stop at the first grid finding, to the notes of a pass."""


@contextmanager
def dry_runs(model: nn.Module) -> Iterator[DryRun]:
    """Give a function from ``(input size, stop at the first grid finding)`` to the notes of a pass.

    A pass that may stop also stops, without an error, where the model fails. While the block runs,
    the model holds fake parameters and is in eval mode; after it, everything is as it was.
    """
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    running_modules = [""]
    with _restored(_containers(model)):
        inner = _prepare(model, fake_mode)
        _record_running(inner, running_modules)
        containers = _containers(inner)
        # images get the dtype and device of the model
        like = torch.empty(0, device="cpu")
        for parameter in inner.parameters():
            if parameter.is_floating_point():
                like = parameter
                break

        def run(input_size: tuple[int, int, int], stop_at_grid: bool) -> Notes:
            running_modules[:] = [""]
            is_square = input_size[1] == input_size[2]
            notes = Notes(stop_at_grid, is_square=is_square, modules=running_modules)
            with ExitStack() as stack:
                stack.enter_context(_restored(containers))
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
                stack.enter_context(_attention_as_products())
                stack.enter_context(_silenced(logging.getLogger("torch._subclasses.fake_tensor")))
                stack.enter_context(fake_mode)
                x = _fake_images(input_size, like)
                try:
                    interpret(inner, x, notes)
                except Exception:
                    if not stop_at_grid:
                        raise
                    notes.is_stopped = True
            return notes

        yield run


def _fake_images(input_size: tuple[int, int, int], like: Tensor) -> Tensor:
    """Return a batch (B, C, H, W) whose last dimensions are rows and columns of the image."""
    x = torch.empty(BATCH_SIZE, *input_size, dtype=like.dtype, device=like.device)
    batch, channels, height, width = x.shape
    lead = no_places((batch, channels)).dims
    dims = (*lead, dimension(ROWS, height), dimension(COLUMNS, width))
    set_facts(x, Facts(dims, node=0))
    return x


# --- the model as it runs


def _prepare(model: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Give the model fake parameters and eval mode, and return it without wrappers.

    To be called inside :func:`_restored`, which undoes all of it.
    """
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = unwrapped(child)
    inner = unwrapped(model)
    names: dict[int, str] = {}  # by the id of the tensor
    for prefix, module in inner.named_modules():
        _check(module, prefix)
        module.training = False
        # module.compile() keeps its compiled forward pass here
        if "_compiled_call_impl" in module.__dict__:
            module.__dict__["_compiled_call_impl"] = None
        _drop_users_hooks(module)
        for tensors in (module._parameters, module._buffers, module.__dict__):
            for name, value in tensors.items():
                names[id(value)] = f"{prefix}.{name}".removeprefix(".")
    for prefix, module in list(inner.named_modules()):
        for name, weight in _compute_parametrized(module).items():
            names[id(weight)] = f"{prefix}.{name}".removeprefix(".")
    _make_fake(_containers(inner), names, fake_mode)
    return inner


def _check(module: nn.Module, name: str) -> None:
    where = f"module {name!r}" if name else "the model"
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{where} is scripted, which hides its operations: pass the model from before torch.jit"
        )
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{where} is lazy and not initialised yet: run the model once on real images first"
            )


def _compute_parametrized(module: nn.Module) -> dict[str, Tensor]:
    """Compute the parametrized weights of a module once, let passes read them, and return them.

    How a weight comes about does not matter to the doctor: it is learnt, like any other.
    """
    computed: dict[str, Tensor] = {}
    if not parametrize.is_parametrized(module):
        return computed
    for name, parametrization in module.parametrizations.items():  # type: ignore[union-attr, operator]
        with torch.inference_mode(False), torch.no_grad():
            weight = getattr(module, name).detach()
        is_learnt = any(True for _ in parametrization.parameters())
        if is_learnt:
            weight = nn.Parameter(weight, requires_grad=False)
        # plain attributes, which are made fake and taken off again like all others
        attributes = vars(parametrization)
        attributes["computed"] = weight
        attributes["forward"] = partial(attributes.get, "computed")
        computed[name] = weight
    return computed


def _drop_users_hooks(module: nn.Module) -> None:
    """Take off the user's forward hooks, which might keep fake tensors; torch's own are needed."""
    for key, hook in list(module._forward_hooks.items()):
        if not _is_from_torch(hook):
            del module._forward_hooks[key]


def _make_fake(containers: list[Any], names: dict[int, str], fake_mode: FakeTensorMode) -> None:
    """Replace each tensor by a fake one, always the same for the same tensor."""
    fakes: dict[int, Tensor] = {}
    for container in containers:
        if isinstance(container, dict):
            entries: list[tuple[Any, Any]] = list(container.items())
        elif isinstance(container, list):
            entries = list(enumerate(container))
        else:
            continue
        for key, value in entries:
            if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
                continue
            if value.is_nested or value.is_quantized:  # these cannot be faked
                continue
            if id(value) not in fakes:
                fake = fake_mode.from_tensor(value)
                name = names.get(id(value), "")
                set_facts(fake, replace(no_places(value.shape), name=name, value=value_of(value)))
                fakes[id(value)] = fake
            container[key] = fakes[id(value)]


def _record_running(model: nn.Module, running: list[str]) -> None:
    """Let ``running`` hold the names of the modules that are running, the innermost last."""

    def entering(name: str) -> Callable[..., None]:
        return lambda module, args: running.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    for name, module in model.named_modules():
        # inside dry_runs: taken off again with the rest
        module.register_forward_pre_hook(entering(name), prepend=True)
        module.register_forward_hook(leave)


# --- everything as it was


@contextmanager
def _restored(containers: list[Any]) -> Iterator[None]:
    """Undo what the block does to the contents of dicts, lists, sets and deques."""
    saved = []
    for container in containers:
        saved.append(dict(container) if isinstance(container, dict) else list(container))
    try:
        yield
    finally:
        for container, contents in zip(containers, saved, strict=True):
            _refill(container, contents)


def _refill(container: Any, contents: Any) -> None:
    """Replace the contents by the methods of the built-in type, not by those of a subclass."""
    for kind in CONTAINER_TYPES:
        if isinstance(container, kind):
            kind.clear(container)
            if hasattr(kind, "extend"):
                kind.extend(container, contents)
            else:
                kind.update(container, contents)
            return


def _containers(model: nn.Module) -> list[Any]:
    """Return what a pass may change: attributes, and dicts, lists, sets and deques inside them."""
    visited: dict[int, Any] = {}
    to_visit: list[Any] = [model]
    while to_visit:
        value = to_visit.pop()
        if id(value) in visited or isinstance(value, OPAQUE_TYPES):
            continue
        visited[id(value)] = value
        if isinstance(value, dict):
            to_visit.extend(value.values())
        elif isinstance(value, tuple | list | set | deque):
            to_visit.extend(value)
        has_attributes = hasattr(value, "__dict__") and not _is_from_torch(value)
        if has_attributes or isinstance(value, nn.Module):
            to_visit.append(vars(value))
    return [value for value in visited.values() if isinstance(value, CONTAINER_TYPES)]


def _is_from_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "torch"


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    """A model may fail at some sizes; torch logs what it also raises."""
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def _attention_as_products() -> Iterator[None]:
    """Let attention run as matrix products, which have rules, instead of as one fused operation."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
