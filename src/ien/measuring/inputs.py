"""Turn the images a user passes into checked batches, and run a model without changing it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._text import progress_bar, type_name
from ..loss.arguments import Arguments, check_arguments, cut_for_batch

__all__ = [
    "ImageArguments",
    "Images",
    "check_floating",
    "check_images",
    "check_inputs",
    "check_tensor",
    "checked_batches",
    "device_of",
    "eval_mode",
    "number_of_batches",
    "try_model",
    "with_progress_bar",
]

Images = Tensor | Iterable[Tensor | Sequence[Tensor]]
"""A tensor (N, C, H, W), or batches: tensors (B, C, H, W) or tuples whose first entry is one."""

MAX_ERROR_LENGTH = 300
"""Characters of a model's own error message that are repeated in ours."""


def check_inputs(model: object, images: object, labels: object, batch_size: int) -> None:
    """Raise an error if an argument of ``measure`` has the wrong type."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type_name(model)}")
    check_images(images)
    if labels is not None:
        _check_labels(labels)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")


def check_images(images: object) -> None:
    """Raise a TypeError if this is neither a tensor nor an iterable of batches."""
    # a NumPy array is iterable too, but its "batches" would be single images
    # and text is an iterable of its letters
    if not isinstance(images, Iterable) or isinstance(images, str) or type(images).__module__ == "numpy":
        raise TypeError(
            f"images must be a tensor (N, C, H, W) or an iterable of batches; got {type_name(images)}"
        )


def check_tensor(images: object) -> None:
    """Raise a TypeError if these are not images as a model takes them, all in one tensor."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor (B, C, H, W); got {type_name(images)}")


def check_floating(images: Tensor) -> None:
    """Raise a ValueError if images are whole numbers, as files have them."""
    if not images.is_floating_point():
        raise ValueError(
            f"images must be in floating point, as the model takes them; got {images.dtype}: "
            f"use .float() / 255"
        )


def device_of(model: nn.Module, default: torch.device) -> torch.device:
    """Return the device of the model's parameters, or the default if it has none."""
    return next((parameter.device for parameter in model.parameters()), default)


def try_model(
    model: nn.Module, x: Tensor, arguments: Arguments = ((), {}), images_alone: bool = False
) -> Any:
    """Run the model on the images ``x`` and, if it fails, say what it was given.

    Args:
        model: Any module.
        x: A few images (B, C, H, W).
        arguments: What it takes besides these images.
        images_alone: Whether the caller takes images only, so that the error offers no ``args=``.

    Returns:
        What the model returns.

    Raises:
        ValueError: The model failed. The message quotes its error and the shape and dtype of ``x``.
    """
    args, kwargs = arguments
    try:
        return model(x, *args, **kwargs)
    except Exception as error:
        reason = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
        remedy = (
            "pass images of the size, channels and dtype it expects (in the shell: --size CxHxW), and what "
            "else it takes as args=(…,) and kwargs={…} (in the shell: wrap it in a module that takes images "
            "alone)"
        )
        if images_alone:
            remedy = (
                "pass images of the size, channels and dtype it expects (in the shell: --size CxHxW), and "
                "wrap a model that takes more in a module that takes images alone"
            )
        if x.dtype == torch.uint8:  # pixels from 0 to 255
            remedy = "use images.float() / 255"
        raise ValueError(
            f"the model fails on images {_size_text(x.shape[1:])} of {x.dtype} "
            f"({type(error).__name__}: {reason}): {remedy}"
        ) from error


class ImageArguments:
    """What the model takes besides the images, batch by batch.

    Args:
        images: All images, or batches of them.
        args: Positional arguments after the images.
        kwargs: Arguments by name; None for nothing.
        device: Where the model runs.
    """

    def __init__(
        self, images: Images, args: Sequence[Any], kwargs: Mapping[str, Any] | None, device: torch.device
    ) -> None:
        self._args, self._kwargs = check_arguments(args, kwargs)
        self._device = device
        self._num_images: int | None = None
        if isinstance(images, Tensor):
            self._num_images = len(images)

    def of(self, start: int, stop: int) -> Arguments:
        """Return the arguments for the images from ``start`` to ``stop``."""
        if self._num_images is None:
            # how many images there will be is not known, and so not what has an entry for each
            return self._args, self._kwargs
        return cut_for_batch(self._args, self._kwargs, self._num_images, slice(start, stop), self._device)


def checked_batches(images: Images, batch_size: int) -> Iterator[Tensor]:
    """Yield batches (B, C, H, W), and raise an error at the first that cannot be measured.

    Args:
        images: A tensor, which is cut into batches, or an iterable that already yields them.
        batch_size: Images per batch; used only if ``images`` is a tensor.

    Raises:
        ValueError: Images of another number of dims, of different sizes, or with NaN or infinity.
        TypeError: A batch that is neither a tensor nor a tuple that starts with one.
    """
    first_size: torch.Size | None = None
    for x in _batches(images, batch_size):
        _check_dims(x)
        size = x.shape[1:]
        if first_size is None:
            first_size = size
        if size != first_size:
            raise ValueError(
                f"all images must have the same size; got {_size_text(first_size)} and {_size_text(size)}: "
                f"resize or crop them"
            )
        if x.is_floating_point() and not x.isfinite().all():
            raise ValueError("images contain NaN or infinite values: fix or remove those images")
        if len(x) > 0:
            yield x


def number_of_batches(images: Images, batch_size: int) -> int | None:
    """Return how many batches there will be, or None if the iterable does not say."""
    if isinstance(images, Tensor):
        return math.ceil(len(images) / batch_size)
    if isinstance(images, Sized):
        return len(images)
    return None


def with_progress_bar(batches: Iterable[Tensor], total: int | None) -> Iterator[Tensor]:
    """Yield the batches and show on a terminal how many are done."""
    with progress_bar("measuring", total) as advance:
        for batch in batches:
            yield batch
            advance()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch the model to eval mode while the block runs, then restore the mode of every module."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training


def _batches(images: Images, batch_size: int) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        _check_dims(images)
        yield from images.split(batch_size)
        return
    for batch in images:
        first = batch
        if isinstance(batch, Sequence) and batch:
            first = batch[0]
        if not isinstance(first, Tensor):
            raise TypeError(
                f"a batch must be a tensor, or a tuple whose first entry is one; got {type_name(batch)}"
            )
        yield first


def _check_labels(labels: object) -> None:
    needed = "labels must be an integer tensor (N,), such as torch.tensor([3, 1, 4])"
    if not isinstance(labels, Tensor):
        raise TypeError(f"{needed}; got {type_name(labels)}")
    if labels.is_floating_point():
        raise TypeError(f"{needed}; got {labels.dtype}")


def _check_dims(x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W); got {tuple(x.shape)}")


def _size_text(size: Sequence[int]) -> str:
    return "×".join(map(str, size))
