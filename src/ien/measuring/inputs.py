"""Inputs: from what a user gives as images to checked batches, and a model that can be run on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = [
    "Images",
    "check_inputs",
    "checked_batches",
    "eval_mode",
    "number_of_batches",
    "shown",
    "try_model",
]

Images = Tensor | Iterable[Tensor | Sequence[Tensor]]


def check_inputs(model: object, images: object, labels: object, batch_size: int) -> None:
    """An error for what is not a model, images, their labels and a size of batches."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"measure takes a torch.nn.Module; got a {type(model).__name__}")
    if not isinstance(images, Iterable) or type(images).__module__ == "numpy":
        raise TypeError(
            f"images are a tensor (N, C, H, W) or an iterable of batches; got a {type(images).__name__} "
            f"(torch.from_numpy makes a tensor of an array)"
        )
    if labels is not None and (not isinstance(labels, Tensor) or labels.is_floating_point()):
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels are an integer tensor (N,), such as torch.tensor([3, 1, 4]); got {got}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")


def try_model(model: nn.Module, x: Tensor) -> None:
    """An error that says what the model was given, if it fails on the images ``x``."""
    try:
        model(x)
    except Exception as error:
        size = "×".join(map(str, x.shape[1:]))
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the model fails on images {size} of {x.dtype} ({type(error).__name__}: {reason}): "
            f"give images of the size, channels and type that it is made for (in the shell: --size CxHxW); a "
            f"model of several inputs needs a wrapper that takes images alone"
        ) from error


def checked_batches(images: Images, batch_size: int) -> Iterator[Tensor]:
    """Batches of images of one size, without NaN."""
    size: torch.Size | None = None
    for x in _batches(images, batch_size):
        if x.ndim != 4:
            raise ValueError(f"images must be of shape (N, C, H, W); got {tuple(x.shape)}")
        size = x.shape[1:] if size is None else size
        if x.shape[1:] != size:
            sizes = " and ".join("×".join(map(str, s)) for s in (size, x.shape[1:]))
            raise ValueError(f"images must have one size, and these are {sizes}: resize or crop them")
        if x.is_floating_point() and not x.isfinite().all():
            raise ValueError("images hold NaN or infinite values: repair or leave them out")
        if len(x):
            yield x


def number_of_batches(images: Images, batch_size: int) -> int | None:
    """None where that is not known beforehand."""
    if isinstance(images, Tensor):
        return math.ceil(len(images) / batch_size)
    return len(images) if isinstance(images, Sized) else None


def shown(batches: Iterator[Tensor], total: int | None, progress: bool) -> Iterable[Tensor]:
    """The batches, with a bar on a terminal if asked for."""
    if not progress:
        return batches
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        batches, "measuring", total, console=console, transient=True, disable=not console.is_terminal
    )


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model as it is tested, and afterwards as it was."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def _batches(images: Images, batch_size: int) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (N, C, H, W); got {tuple(images.shape)}")
        yield from images.split(batch_size)
        return
    for batch in images:
        x = (
            batch
            if isinstance(batch, Tensor)
            else batch[0]
            if isinstance(batch, Sequence) and batch
            else None
        )
        if not isinstance(x, Tensor):
            raise TypeError(
                f"a batch is a tensor, or a tuple that begins with one; got a {type(batch).__name__}"
            )
        yield x
