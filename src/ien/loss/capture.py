"""A layer's output during one forward pass.

:func:`watch` shows the output of each named layer to a function and keeps it only to notice if it
is overwritten in place later; :func:`capture` uses it to keep the maps. No hook outlives the
``with`` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from .._text import nearest
from .modules import walk

__all__ = ["Calls", "Features", "capture", "watch"]


See = Callable[[str, Tensor], None]
Transform = Callable[[str, Tensor], Tensor]


class Features(Mapping[str, Tensor]):
    """Layer name → feature maps (B, C, H, W), for the layers that :func:`capture` was asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._maps: dict[str, list[Tensor]] = {name: [] for name in names}
        self._calls = Calls()

    def __getitem__(self, name: str) -> Tensor:
        maps = self.all(name)
        if len(maps) > 1:
            raise RuntimeError(
                f"layer {name!r} ran {len(maps)} times while it was captured; "
                f"features.all({name!r}) gives the list, in the order of the calls"
            )
        return maps[0]

    def all(self, name: str) -> list[Tensor]:
        """The maps of every call of the layer, in the order of the calls."""
        if name not in self._maps:
            raise KeyError(f"layer {name!r} was not captured; captured: {', '.join(self._maps) or 'none'}")
        self._calls.check(name)
        return list(self._maps[name])

    def __contains__(self, name: object) -> bool:
        return name in self._maps

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __repr__(self) -> str:
        texts = []
        for name, maps in self._maps.items():
            texts.append(f"{name}: {[tuple(h.shape) for h in maps]}")
        return f"Features({', '.join(texts)})"


@contextmanager
def capture(
    model: nn.Module, names: str | Iterable[str], transform: Transform | None = None
) -> Iterator[Features]:
    """Keep what the named layers of ``model`` return while the block runs.

    Use :class:`ien.EquivarianceLoss` instead if all you want is the paper's loss on these layers.
    Do not run one model in two threads inside such blocks: hooks sit on the model, so each block
    sees the passes of both, and says that a layer ran twice. Give each thread a model of its own.

    Args:
        model: Any module. It is not changed.
        names: Layers, as in ``model.named_modules()``, without the ``module.`` that
            DistributedDataParallel puts in front.
        transform: ``transform(name, maps)`` runs inside the forward pass; its result is kept
            instead.

    Yields:
        :class:`Features`, filled while the model runs.

    Raises:
        KeyError: The model has no layer of that name.
        RuntimeError: On access, if a layer never ran, or was overwritten by an in-place operation.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    >>> with capture(net, ["1"]) as features:
    ...     _ = net(torch.rand(2, 1, 8, 8))
    >>> features["1"].shape
    torch.Size([2, 4, 6, 6])
    """
    names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    features = Features(names)

    def keep(name: str, maps: Tensor) -> None:
        if transform is not None:
            maps = transform(name, maps)
        features._maps[name].append(maps)

    with watch(model, names, keep) as calls:
        features._calls = calls
        yield features


@dataclass
class _Output:
    """One output of a watched layer, held to find out whether it is overwritten in place."""

    tensor: Tensor
    version: int | None
    """torch's count of in-place changes when the layer returned; None for inference tensors."""
    overwritten_by: str | None = None
    overwritten_version: int = 0

    @property
    def intact(self) -> bool:
        return self.version is None or self.tensor._version == self.version


class Calls:
    """The calls of watched layers: how often each ran, and whether its output is intact."""

    def __init__(self) -> None:
        self._outputs: dict[str, list[_Output]] = {}
        self._times_run: dict[str, int] = {}

    def count(self, name: str) -> int:
        """How often a watched layer ran."""
        return len(self._outputs.get(name, ()))

    def check(self, name: str) -> None:
        """Raise a RuntimeError if the layer never ran, or if one of its outputs was overwritten."""
        if self.count(name) == 0:
            raise RuntimeError(
                f"layer {name!r} never ran while it was captured: call the model inside the with block "
                f"(not through a compiled function), and name a layer that its forward pass uses"
            )
        for output in self._outputs[name]:
            if not output.intact:
                raise RuntimeError(self._overwritten(name, output))

    def _overwritten(self, name: str, output: _Output) -> str:
        by = output.overwritten_by
        if by is None or output.overwritten_version != output.tensor._version:
            return (
                f"layer {name!r} was overwritten in place after it ran, by an operation that is not a module "
                f"(x += y, F.relu(x, inplace=True)): capture the module around it, or write it out of place"
            )
        advice = f"capture {by!r} instead"
        times = self._times_run[by]
        if times > 1:
            advice += f" (it ran {times} times: features.all), or give it inplace=False"
        return f"layer {name!r} was overwritten in place by {by!r} (an inplace activation?); {advice}"

    def _record(self, name: str, output: _Output) -> None:
        self._outputs.setdefault(name, []).append(output)

    def _note(self, name: str, returned: Any) -> None:
        """Note what a module returned: an output of a watched layer was changed in place."""
        self._times_run[name] = self._times_run.get(name, 0) + 1
        for outputs in self._outputs.values():
            for output in outputs:
                if output.tensor is not returned or output.intact:
                    continue
                if output.overwritten_version != returned._version:
                    output.overwritten_by = name
                    output.overwritten_version = returned._version


@contextmanager
def watch(model: nn.Module, names: Iterable[str], see: See) -> Iterator[Calls]:
    """Call ``see(name, maps)`` inside the forward pass with what each named layer returns.

    Args:
        model: Any module.
        names: Layers, as in ``model.named_modules()``.
        see: Gets the name of a layer and its maps (B, C, H, W).

    Yields:
        :class:`Calls`, to check afterwards that every layer ran and none was overwritten in place.
    """
    calls = Calls()
    names = list(names)
    handles = []
    try:
        if names:  # watching nothing costs nothing
            modules = {name: (module, hidden) for name, module, hidden in walk(model)}
            for name in names:
                module = _find(name, modules)
                handles.append(module.register_forward_hook(_seeing(calls, name, module, see)))
            # a second hook on every module learns who overwrote a map, for the error message
            for name, (module, hidden) in modules.items():
                if not hidden:
                    handles.append(module.register_forward_hook(_noting(calls, name, module)))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _seeing(calls: Calls, name: str, module: nn.Module, see: See) -> Callable[..., None]:
    """The hook of a watched layer."""

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            raise TypeError(
                f"layer {name!r} returned {_describe(output)}; capture needs one tensor of shape (B, C, H, W)"
            )
        if output.is_inference():
            # it has no version that would tell that it was overwritten: show a copy
            call, maps = _Output(output, None), output.clone()
        else:
            call, maps = _Output(output, output._version), output
        with _outside_checkpoint():
            see(name, maps)
        calls._record(name, call)  # only now: if `see` fails, the layer counts as not run

    return _untraced(hook, module)


def _noting(calls: Calls, name: str, module: nn.Module) -> Callable[..., None]:
    """The hook of any module, which may overwrite the output of a watched layer."""

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        calls._note(name, output)

    return _untraced(hook, module)


def _untraced(hook: Callable[..., None], module: nn.Module) -> Callable[..., None]:
    """A module compiled in place traces its hooks, and again for each new one: keep them out."""
    if module._compiled_call_impl is None:
        return hook
    return torch.compiler.disable(hook)


def _find(name: str, modules: Mapping[str, tuple[nn.Module, bool]]) -> nn.Module:
    if name not in modules:
        known = [module for module in modules if module]
        hint = nearest(name, known)
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
    """Activation checkpointing around a layer must not count what ``see`` saves for backward."""
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
