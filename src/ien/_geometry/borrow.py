"""Borrow: from a model to a function that follows its forward pass, while the model itself stays as it is."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from .axes import dim
from .explain import Finding
from .follow import follow
from .steps import exact, size_after
from .tracks import Notes, Track, plain, set_track

__all__ = ["Pass", "Run", "borrowed"]

BATCH = 2  # with one image, x.squeeze() would take the batch too


class Pass(NamedTuple):
    """What one forward pass showed."""

    findings: list[Finding]
    notes: Notes

    def may_fit(self, n: int) -> bool:
        """Whether the convolutions and pools that were seen are exact for a square input of size n."""
        sizes = {0: (n, n)}
        try:
            for (before, step), node in self.notes.program.items():
                if node not in self.notes.cut_to_size and not exact((step,), sizes[before]):
                    return False
                sizes[node] = size_after(step, sizes[before])
        except RuntimeError:  # too small for a kernel
            return False
        return True


Run = Callable[[tuple[int, int, int], bool], Pass]


@contextmanager
def borrowed(model: nn.Module) -> Iterator[Run]:
    """A function from ``(input size, stop at the first finding of the grid)`` to what a forward pass shows.

    While the block runs, the model holds fake parameters and is in eval mode; after it, it is as it was.
    """
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    modules = [""]
    with _unchanged(model):
        bare = _prepare(model, fake_mode)
        _name_modules(bare, modules)
        like = next((p for p in bare.parameters() if p.is_floating_point()), torch.empty(0, device="cpu"))

        def run(input_size: tuple[int, int, int], stop_at_grid: bool) -> Pass:
            modules[:] = [""]
            notes = Notes(stop_at_grid, modules=modules)
            with ExitStack() as stack:
                for context in (
                    _unchanged(bare),
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
                set_track(x, Track(dims, node=0))
                follow(bare, x, notes)
            return Pass(list(notes.findings), notes)

        yield run


def _prepare(model: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Fake parameters, eval mode, and no wrappers; inside ``_unchanged``, which takes all of it back."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _bare(child)
    model = _bare(model)
    fakes: dict[int, Tensor] = {}
    for prefix, module in model.named_modules():
        _check(module, prefix)
        module.training = False
        if "_compiled_call_impl" in module.__dict__:
            module.__dict__["_compiled_call_impl"] = None
        for tensors in (module._parameters, module._buffers, module.__dict__):
            for name, tensor in tensors.items():
                if not isinstance(tensor, Tensor):
                    continue
                if id(tensor) not in fakes:
                    fakes[id(tensor)] = fake_mode.from_tensor(tensor)
                    known = plain(tensor.shape)
                    known.name = f"{prefix}.{name}" if prefix else name
                    set_track(fakes[id(tensor)], known)
                tensors[name] = fakes[id(tensor)]
    return model


def _check(module: nn.Module, name: str) -> None:
    where = f"module {name!r}" if name else "the model"
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{where} is scripted, which hides what it does: give the model from before torch.jit"
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module._parameters.values()):
        raise ValueError(
            f"{where} is lazy and has no parameters yet: run the model once on real images first"
        )


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
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Takes back what the block does to the modules, their attributes, dicts, lists and sets."""
    modules = list(model.modules())
    before = [dict(module.__dict__) for module in modules]
    held: dict[int, tuple[Any, Any]] = {}
    for attributes in before:
        _keep(list(attributes.values()), held)
    try:
        yield
    finally:
        for module, attributes in zip(modules, before, strict=True):
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for value, contents in held.values():
            value.clear()
            value.extend(contents) if isinstance(value, list) else value.update(contents)


def _keep(values: Iterable[Any], held: dict[int, tuple[Any, Any]]) -> None:
    """Adds the contents of all dicts, lists and sets, and of those in them."""
    for value in values:
        if type(value) in (dict, OrderedDict, defaultdict, list, set) and id(value) not in held:
            held[id(value)] = value, value.copy()
            _keep(value.values() if isinstance(value, dict) else value, held)


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
