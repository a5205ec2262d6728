"""The modules inside a model, and the tensors inside what it takes and returns.

Names are those of the user's own model: wrappers such as DistributedDataParallel and
``torch.compile`` are looked through, and parametrizations of weights do not count as layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["WRAPPERS", "hooked", "map_leaves", "tensors_in", "unwrapped", "walk"]

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
"""Modules that hold the user's model as ``module``."""

Hook = Callable[[str, nn.Module, Any], None]


def walk(
    module: nn.Module, name: str = "", hidden: bool = False, seen: set[nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield every module once: its name, itself, and whether it is hidden inside a compiled one.

    Wrappers are skipped, so names are those of the user's own model. So are the modules by which
    torch computes parametrized weights: they return weights, not features.
    """
    if seen is None:
        seen = set()
    module = _without_parallel(module)
    if module in seen:
        return
    seen.add(module)
    yield name, module, hidden
    original = getattr(module, "_orig_mod", None)  # what torch.compile(module) wraps
    compiled = original is not None or module._compiled_call_impl is not None
    inner = _without_parallel(original) if original is not None else module
    for key, child in inner.named_children():
        if key == "parametrizations" and parametrize.is_parametrized(inner):
            continue
        child_name = f"{name}.{key}".removeprefix(".")  # the model itself has no name
        yield from walk(child, child_name, hidden or compiled, seen)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's own module inside ``torch.compile`` and parallel wrappers."""
    while True:
        bare = _without_parallel(module)
        bare = getattr(bare, "_orig_mod", bare)  # what torch.compile(module) wraps
        if bare is module:
            return module
        module = bare


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module], before: Hook | None = None, after: Hook | None = None
) -> Iterator[None]:
    """Call ``before(name, module, input)`` and ``after(name, module, output)`` of each module."""

    def entering(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            inputs = [*args, *kwargs.values(), None]  # None for a module that is called with nothing
            before(name, module, inputs[0])  # type: ignore[misc]

        return hook

    def leaving(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            after(name, module, output)  # type: ignore[misc]

        return hook

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


def tensors_in(value: Any, in_objects: bool = True, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Yield every tensor in what a model returns.

    Args:
        value: A tensor, a container of any kind, or an object with tensors as attributes.
        in_objects: Whether to look into objects other than containers and dataclasses.
        inside: The containers around it, by ``id``, so that one that holds itself ends.
    """
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, int | float | str | bytes | type | nn.Module):
        return
    if id(value) in inside:  # a container that holds itself
        return
    inside = (*inside, id(value))
    parts: Iterable[Any]
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, Iterable):
        parts = value
    elif in_objects or is_dataclass(value):
        parts = _attributes(value)
    else:
        parts = ()
    for part in parts:
        yield from tensors_in(part, in_objects, inside)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``value`` with everything changed that is not a tuple, list or dict itself.

    >>> map_leaves({"a": (1, [2, 3])}, lambda leaf: 10 * leaf)
    {'a': (10, [20, 30])}
    """
    if isinstance(value, dict):
        changed = {}
        for key, part in value.items():
            changed[key] = map_leaves(part, change)
        return changed
    if isinstance(value, tuple | list):
        parts = []
        for part in value:
            parts.append(map_leaves(part, change))
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*parts)
        return type(value)(parts)
    return change(value)


def _attributes(value: Any) -> list[Any]:
    """The values of all attributes of an object, those in slots as well."""
    found = list(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        for name in getattr(cls, "__slots__", ()):
            found.append(getattr(value, name, None))
    return found


def _without_parallel(module: nn.Module) -> nn.Module:
    while isinstance(module, WRAPPERS):
        module = module.module
    return module
