"""An element: the steps of a transformation, each a similarity or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from .similarity import Mode, Similarity, permute_pixels, resample, valid_pixels

__all__ = [
    "Action",
    "BlackBox",
    "Element",
    "composed",
    "share_of_valid",
    "similarities",
    "take_step",
    "unchanged",
]

Action = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BlackBox:
    """A function on images, and the function that corresponds to it on feature maps."""

    label: str
    action: Action
    feature_action: Action
    exact: ClassVar[bool] = False


Element = tuple[Similarity | BlackBox, ...]
"""The steps of a transformation, the first one applied first; the identity has none."""


def unchanged(x: Tensor) -> Tensor:
    """The feature action of a transformation that layers should be invariant to."""
    return x


def composed(a: Element, b: Element) -> Element:
    """The steps of ``b``, then those of ``a``; two similarities that meet become one."""
    match b, a:
        case (*before, Similarity() as last), (Similarity() as then, *after):
            merged = then.after(last)
            if merged == Similarity():
                return (*before, *after)
            return (*before, merged, *after)
    return b + a


def take_step(step: Similarity | BlackBox, x: Tensor, mode: Mode, on_features: bool) -> Tensor:
    """Apply one step to images or maps (B, C, H, W)."""
    if isinstance(step, Similarity):
        if step.exact:
            return permute_pixels(x, step)
        return resample(x, [step], [len(x)], mode)
    action = step.feature_action if on_features else step.action
    if action is unchanged:
        return x
    result = action(x.clone())  # a clone, so that an in-place action spares the caller's images
    needed = f"action {step.label!r} must keep the shape {tuple(x.shape)}"
    if not isinstance(result, Tensor):
        raise ValueError(f"{needed}; it returned {type(result).__name__}")
    if result.shape != x.shape:
        raise ValueError(f"{needed}; it returned {tuple(result.shape)}")
    return result


def similarities(element: Element) -> tuple[Similarity, ...]:
    """The steps that move pixels. Black boxes are left out, so no cache keeps one alive."""
    return tuple(step for step in element if isinstance(step, Similarity))


@lru_cache(maxsize=4096)
def share_of_valid(steps: tuple[Similarity, ...], height: int, width: int) -> float:
    """Return the share of pixels of a map that are made of pixels of the map alone."""
    mask = valid_pixels(steps, height, width, torch.device("cpu"))
    if mask is None:
        return 1.0
    return float(mask.double().mean())
