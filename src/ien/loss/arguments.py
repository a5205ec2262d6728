"""Extra arguments of a model's ``forward``: what it takes besides the images.

A model that is called as ``model(images, mask, scale=2.0)`` has ``args=(mask,)`` and
``kwargs={"scale": 2.0}``. An argument with an entry for each image has to follow the images when
these are repeated for their views, or cut into batches; all others are passed as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._text import type_name
from .modules import map_leaves

__all__ = ["Arguments", "check_arguments", "cut_for_batch", "repeat_for_views"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments after the images, and those by name."""


def check_arguments(args: Any, kwargs: Any) -> Arguments:
    """Return the arguments as a tuple and a dict; None stands for no named ones.

    Raises:
        TypeError: ``args`` is not a tuple or list, or ``kwargs`` not a mapping with names as keys.

    >>> check_arguments([3], None)
    ((3,), {})
    """
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args must be a tuple of what forward takes after the images, such as args=(mask,); "
            f"got {type_name(args)}"
        )
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(
            f"kwargs must be a dict from names of forward's arguments to their values, such as "
            f'kwargs={{"mask": mask}}; got {_described(kwargs)}'
        )
    return tuple(args), dict(kwargs)


def repeat_for_views(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, batch_size: int, views: int
) -> Arguments:
    """Repeat what belongs to single images for all their views.

    A batch of views is laid out view after view: all images, then all images under the first
    element, and so on. A tensor (batch_size, …), also inside lists, tuples and dicts, therefore
    becomes (views * batch_size, …), itself repeated as a whole. Everything else is passed on.

    Do not use it for what has to move with the image, such as a mask: it is repeated as it is.

    Args:
        args: What forward takes after the images.
        kwargs: What it takes by name; None for nothing.
        batch_size: Number of images. A tensor whose first dimension has this size counts as one
            entry per image, even if it is something else.
        views: How often each image occurs in the batch.

    Returns:
        The tuple and the dict for ``model(images_of_all_views, *args, **kwargs)``.

    >>> args, kwargs = repeat_for_views((torch.tensor([1, 2]), 0.5), {}, batch_size=2, views=3)
    >>> args
    (tensor([1, 2, 1, 2, 1, 2]), 0.5)
    """

    def repeated(value: Tensor) -> Tensor:
        return value.repeat(views, *[1] * (value.ndim - 1))  # (views * B, …)

    return _with_each(args, kwargs, batch_size, repeated)


def cut_for_batch(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, num_images: int, batch: slice, device: torch.device
) -> Arguments:
    """Return the arguments for some of the images.

    Args:
        args: What forward takes after the images.
        kwargs: What it takes by name; None for nothing.
        num_images: A tensor whose first dimension has this size has one entry per image.
        batch: Which of the images.
        device: Where the batch runs; what is cut is moved there.

    >>> cut_for_batch((torch.tensor([1, 2, 3]), 0.5), {}, 3, slice(1, 3), torch.device("cpu"))
    ((tensor([2, 3]), 0.5), {})
    """

    def cut(value: Tensor) -> Tensor:
        return value[batch].to(device)  # (images of the batch, …)

    return _with_each(args, kwargs, num_images, cut)


def _with_each(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, count: int, change: Callable[[Tensor], Tensor]
) -> Arguments:
    """Apply ``change`` to each tensor whose first dimension has ``count`` entries."""
    args, kwargs = check_arguments(args, kwargs)

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > 0 and len(value) == count:
            return change(value)
        return value

    new_args = []
    for value in args:
        new_args.append(map_leaves(value, changed))
    new_kwargs = {}
    for name, value in kwargs.items():
        new_kwargs[name] = map_leaves(value, changed)
    return tuple(new_args), new_kwargs


def _described(kwargs: Any) -> str:
    if isinstance(kwargs, Mapping):
        return f"the keys {list(kwargs)}"
    return f"a {type(kwargs).__name__}"
