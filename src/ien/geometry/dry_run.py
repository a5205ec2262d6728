"""Borrow: from a model to a function that follows its forward pass, while the model itself stays as it is."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from .dimensions import dim
from .exactness import exact, size_after
from .facts import Facts, Notes, plain, set_facts, value_of
from .findings import Finding
from .interpreter import follow

__all__ = ["Pass", "Run", "borrowed"]

BATCH = 2  # with one image, x.squeeze() would take the batch too
KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
LEAVES = (Tensor, str, bytes, int, float, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


class Pass(NamedTuple):
    """What one forward pass showed."""

    findings: list[Finding]
    notes: Notes

    def may_fit(self, n: int) -> bool:
        """Whether the convolutions and pools that were seen are exact for a square input of size n."""
        program, sizes, fit = self.notes.program, {0: (n, n)}, set(self.notes.cut_to_size)
        try:
            for (before, step), node in program.items():
                here = sizes[before]
                sizes[node] = size_after(step, here)
                if node in fit or exact((step,), here):
                    continue
                next_steps = {m: s for (b, s), m in program.items() if b == node and m in self.notes.direct}
                repaired = {m for m, s in next_steps.items() if exact((step, s), here)}
                if not repaired:
                    return False
                fit |= repaired
        except RuntimeError:  # too small for a kernel
            return False
        return True


Run = Callable[[tuple[int, int, int], bool], Pass]


@contextmanager
def borrowed(model: nn.Module) -> Iterator[Run]:
    """A function from ``(input size, stop at the first finding of the grid)`` to what a forward pass shows.

    One that may stop does so too where the model fails, and raises nothing.
    While the block runs, the model holds fake parameters and is in eval mode; after it, it is as it was.
    """
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    modules = [""]
    with _unchanged(_containers(model)):
        bare = _prepare(model, fake_mode)
        _name_modules(bare, modules)
        containers = _containers(bare)
        like = next((p for p in bare.parameters() if p.is_floating_point()), torch.empty(0, device="cpu"))

        def run(input_size: tuple[int, int, int], stop_at_grid: bool) -> Pass:
            modules[:] = [""]
            notes = Notes(stop_at_grid, square=input_size[1] == input_size[2], modules=modules)
            with ExitStack() as stack:
                for context in (
                    _unchanged(containers),
                    torch.inference_mode(False),
                    torch.no_grad(),
                    _plain_attention(),
                    _silent(logging.getLogger("torch._subclasses.fake_tensor")),
                    fake_mode,
                ):
                    stack.enter_context(context)
                x = torch.empty(BATCH, *input_size, dtype=like.dtype, device=like.device)
                batch, channels, rows, columns = x.shape
                dims = (*plain((batch, channels)).dims, dim("H", rows), dim("W", columns))
                set_facts(x, Facts(dims, node=0))
                try:
                    follow(bare, x, notes)
                except Exception:
                    if not stop_at_grid:
                        raise
                    notes.stopped = True
            return Pass(list(notes.findings), notes)

        yield run


def _prepare(model: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Fake parameters, eval mode, and no wrappers; inside ``_unchanged``, which takes all of it back."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _bare(child)
    model = _bare(model)
    names: dict[int, str] = {}
    for prefix, module in model.named_modules():
        _check(module, prefix)
        module.training = False
        if "_compiled_call_impl" in module.__dict__:
            module.__dict__["_compiled_call_impl"] = None
        for key, hook in list(module._forward_hooks.items()):
            if not _is_torch(hook):  # it would see fake tensors, and may keep them
                del module._forward_hooks[key]
        for tensors in (module._parameters, module._buffers, module.__dict__):
            names |= {id(t): f"{prefix}.{name}" if prefix else name for name, t in tensors.items()}
    _fake_tensors(_containers(model), names, fake_mode)
    return model


def _fake_tensors(containers: list[Any], names: dict[int, str], fake_mode: FakeTensorMode) -> None:
    """Fake ones in place of all tensors, one for one; those of a kind that cannot be faked stay."""
    fakes: dict[int, Tensor] = {}
    for container in containers:
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in list(pairs) if isinstance(container, dict | list) else []:
            if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
                continue
            if value.is_nested or value.is_quantized:
                continue
            if id(value) not in fakes:
                fakes[id(value)] = fake_mode.from_tensor(value)
                known = replace(plain(value.shape), name=names.get(id(value), ""), value=value_of(value))
                set_facts(fakes[id(value)], known)
            container[key] = fakes[id(value)]


def _is_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "torch"


def _check(module: nn.Module, name: str) -> None:
    where = f"module {name!r}" if name else "the model"
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{where} is scripted, which hides what it does: give the model from before torch.jit"
        )
    tensors = (*module._parameters.values(), *module._buffers.values())
    if any(t is not None and nn.parameter.is_lazy(t) for t in tensors):
        raise ValueError(f"{where} is lazy and not set up yet: run the model once on real images first")


def _bare(module: nn.Module) -> nn.Module:
    while True:
        inner = getattr(module, "_orig_mod", None)  # what torch.compile wraps
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def _name_modules(model: nn.Module, running: list[str]) -> None:
    """``running`` holds the names of the modules that run, the innermost last."""

    def enter(name: str) -> Callable[..., None]:
        return lambda module, args: running.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(enter(name), prepend=True)
        module.register_forward_hook(leave)


@contextmanager
def _unchanged(containers: list[Any]) -> Iterator[None]:
    """Takes back what the block does to the contents of dicts, lists, sets and deques."""
    before = [dict(each) if isinstance(each, dict) else list(each) for each in containers]
    try:
        yield
    finally:
        for each, contents in zip(containers, before, strict=True):
            kind = next(kind for kind in KINDS if isinstance(each, kind))
            kind.clear(each)
            kind.extend(each, contents) if hasattr(kind, "extend") else kind.update(each, contents)


def _containers(model: nn.Module) -> list[Any]:
    """What a forward pass may change: attributes, and the dicts, lists, sets and deques in them."""
    found: dict[int, Any] = {}
    left: list[Any] = [model]
    while left:
        value = left.pop()
        if id(value) in found or isinstance(value, LEAVES):
            continue
        found[id(value)] = value
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, tuple | list | set | deque):
            left += value
        if isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not _is_torch(value)):
            left.append(vars(value))
    return [value for value in found.values() if isinstance(value, KINDS)]


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """A model may fail at some sizes; torch logs that, and raises it too."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as products of matrices, which can be followed."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
