"""Capture: from a model and layer names to what these layers return while one ``with`` block runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["Features", "capture", "hooked", "walk"]

Transform = Callable[[str, Tensor], Tensor]
Hook = Callable[[str, nn.Module, Any], None]


@dataclass
class _Call:
    """One output of a captured layer: itself, to see whether it is overwritten, and what is kept of it."""

    output: Tensor
    version: int | None
    kept: Tensor
    overwritten_by: str | None = None
    overwritten_version: int = 0

    @property
    def intact(self) -> bool:
        return self.version is None or self.output._version == self.version


class Features(Mapping[str, Tensor]):
    """Layer name → feature maps (B, C, H, W), for the layers that :func:`capture` was asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._calls: dict[str, list[_Call]] = {name: [] for name in names}
        self._times_run: dict[str, int] = {}

    def __getitem__(self, name: str) -> Tensor:
        maps = self.all(name)
        if len(maps) > 1:
            raise RuntimeError(
                f"layer {name!r} ran {len(maps)} times while it was captured; "
                f"features.all({name!r}) gives the list, in the order of the calls"
            )
        return maps[0]

    def all(self, name: str) -> list[Tensor]:
        """The maps of every call of the layer, in order."""
        if name not in self._calls:
            raise KeyError(f"layer {name!r} was not captured; captured: {', '.join(self._calls) or 'none'}")
        if not self._calls[name]:
            raise RuntimeError(
                f"layer {name!r} never ran while it was captured: call the model inside the with block "
                f"(not through a compiled function), and name a layer that its forward pass uses"
            )
        for call in self._calls[name]:
            if not call.intact:
                raise RuntimeError(self._overwritten(name, call))
        return [call.kept for call in self._calls[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._calls

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        shapes = (
            f"{name}: {[tuple(call.kept.shape) for call in calls]}" for name, calls in self._calls.items()
        )
        return f"Features({', '.join(shapes)})"

    def _overwritten(self, name: str, call: _Call) -> str:
        by = call.overwritten_by
        if by is None or call.overwritten_version != call.output._version:
            return (
                f"layer {name!r} was overwritten in place after it ran, by an operation that is not a module "
                f"(x += y, F.relu(x, inplace=True)): capture the module around it, or write it out of place"
            )
        times = self._times_run[by]
        advice = (
            f"capture {by!r} instead"
            if times == 1
            else f"capture {by!r} instead (it ran {times} times: features.all), or give it inplace=False"
        )
        return f"layer {name!r} was overwritten in place by {by!r} (an inplace activation?); {advice}"


@contextmanager
def capture(
    model: nn.Module, names: str | Iterable[str], transform: Transform | None = None
) -> Iterator[Features]:
    """Record what the named layers of ``model`` return while the block runs; no hook outlives the block.

    Names are those of ``model.named_modules()``, without the ``module.`` that DistributedDataParallel adds.
    ``transform(name, maps)``, if given, runs inside the forward pass, and its result is kept in their place.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    >>> with capture(net, ["1"]) as features:
    ...     _ = net(torch.rand(2, 1, 8, 8))
    >>> features["1"].shape
    torch.Size([2, 4, 6, 6])
    """
    names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    features = Features(names)
    handles = []
    try:
        if names:  # capturing nothing costs nothing
            modules = {name: (module, hidden) for name, module, hidden in walk(model)}
            for name in names:
                module = _find(name, modules)
                handles.append(module.register_forward_hook(_record(features, name, module, transform)))
            # a second hook on every module learns who overwrote a captured map, for the error message
            for name, (module, hidden) in modules.items():
                if not hidden:
                    handles.append(module.register_forward_hook(_watch(features, name, module)))
        yield features
    finally:
        for handle in handles:
            handle.remove()


def walk(
    module: nn.Module, name: str = "", hidden: bool = False, seen: set[nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module, bool]]:
    """Every module once, with its name, without wrappers, and whether it lies inside a compiled one."""
    module, seen = _without_parallel(module), set() if seen is None else seen
    if module in seen:
        return
    seen.add(module)
    yield name, module, hidden
    original = getattr(module, "_orig_mod", None)  # what torch.compile(module) wraps
    hidden = hidden or original is not None or module._compiled_call_impl is not None
    inner = module if original is None else _without_parallel(original)
    for key, child in inner.named_children():
        yield from walk(child, f"{name}.{key}" if name else key, hidden, seen)


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module], before: Hook | None = None, after: Hook | None = None
) -> Iterator[None]:
    """Call ``before`` with what comes into each module, and ``after`` with what it returns."""

    def entering(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            before(name, module, next(iter([*args, *kwargs.values()]), None))  # type: ignore[misc]

        return hook

    def leaving(name: str) -> Any:
        return lambda module, args, output: after(name, module, output)  # type: ignore[misc]

    handles = []
    try:
        for name, module in modules.items():
            if before is not None:
                handles.append(module.register_forward_pre_hook(entering(name), with_kwargs=True))
            if after is not None:
                handles.append(module.register_forward_hook(leaving(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _record(
    features: Features, name: str, module: nn.Module, transform: Transform | None
) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            raise TypeError(
                f"layer {name!r} returned {_describe(output)}; capture needs one tensor of shape (B, C, H, W)"
            )
        # inference tensors have no version to tell that they were overwritten: keep a copy
        version, kept = (None, output.clone()) if output.is_inference() else (output._version, output)
        if transform is not None:
            with _outside_checkpoint():
                kept = transform(name, kept)
        features._calls[name].append(_Call(output, version, kept))

    return _untraced(hook, module)


def _watch(features: Features, name: str, module: nn.Module) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, output: Any) -> None:
        features._times_run[name] = features._times_run.get(name, 0) + 1
        for call in (call for calls in features._calls.values() for call in calls if call.output is output):
            if not call.intact and call.overwritten_version != output._version:
                call.overwritten_by, call.overwritten_version = name, output._version

    return _untraced(hook, module)


def _untraced(hook: Callable[..., None], module: nn.Module) -> Callable[..., None]:
    """A module compiled in place traces its hooks, and again for each new one: keep them out."""
    return hook if module._compiled_call_impl is None else torch.compiler.disable(hook)


def _without_parallel(module: nn.Module) -> nn.Module:
    while isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        module = module.module
    return module


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's own module inside ``torch.compile``, DataParallel and DistributedDataParallel."""
    while True:
        inner = getattr(module, "_orig_mod", None)  # what torch.compile(module) wraps
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def tensors_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Yield every tensor in a model's output: in containers of any kind, and in attributes of objects."""
    if isinstance(value, Tensor):
        yield value
    plain = Tensor | int | float | str | bytes | type | nn.Module
    if isinstance(value, plain) or id(value) in inside:
        return
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        value = value.values()
    if not isinstance(value, Iterable):
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        value = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    for each in value:
        yield from tensors_in(each, inside)


def _find(name: str, modules: Mapping[str, tuple[nn.Module, bool]]) -> nn.Module:
    if name not in modules:
        close = difflib.get_close_matches(name, modules, n=3, cutoff=0.4)
        some = ", ".join([module for module in modules if module][:20])
        hint = f"did you mean {', '.join(map(repr, close))}?" if close else f"it has {some}"
        raise KeyError(f"the model has no layer {name!r}; {hint} (dotted names of model.named_modules())")
    module, hidden = modules[name]
    if hidden:
        raise RuntimeError(
            f"layer {name!r} lies inside a compiled module, which runs without the hooks that capture needs: "
            f"pass the model from before torch.compile, or compile the captured layers one by one, "
            f"as in model.layer1 = torch.compile(model.layer1)"
        )
    return module


def _outside_checkpoint() -> AbstractContextManager[object]:
    """Activation checkpointing around a layer must not count what a transform of its output saves."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()  # the usual case keeps torch's own check against in-place changes
    return saved_tensors_hooks(lambda x: x, lambda x: x)


def _describe(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, list | tuple):
        return f"a {type(output).__name__} of {len(output)} ({', '.join(map(_describe, output))})"
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with keys {', '.join(map(str, output))}"
    return f"a {type(output).__name__}"
