"""The features that a classifier's last layer reads.

Scores tell little of an image: most are near zero. The hundreds of features behind them tell what
the model saw, also for classes that no training image shows, so there is more to learn from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..measuring.inputs import try_model

__all__ = ["inputs_of", "last_linear"]


def last_linear(model: nn.Module, x: Tensor) -> str | None:
    """Return the name of the ``nn.Linear`` whose output is what the model returns for ``x``.

    None if the model ends in anything else.

    >>> last_linear(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), torch.rand(1, 3, 2, 2))
    '1'
    """
    outputs: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):

            def keep(_: nn.Module, args: object, output: Tensor, name: str = name) -> None:
                outputs[name] = output

            handles.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            returned = try_model(model, x)
    finally:
        for handle in handles:
            handle.remove()
    for name, output in outputs.items():
        if output is returned:
            return name
    return None


@contextmanager
def inputs_of(model: nn.Module, name: str | None) -> Iterator[list[Tensor]]:
    """Collect what a layer is given while the block runs; nothing if there is no such layer.

    Args:
        model: Any module.
        name: The layer, as in ``model.named_modules()``, or None.
    """
    seen: list[Tensor] = []
    if name is None:
        yield seen
        return

    def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0])

    handle = model.get_submodule(name).register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()
