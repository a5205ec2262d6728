"""Elements of a group: what each is made of, and what it does to maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from .similarity import Mode, Similarity, permute, resample, valid_pixels

__all__ = ["Action", "BlackBox", "Element", "compose", "coverage", "pixel_steps", "take_step", "unchanged"]

Action = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BlackBox:
    """A named function on images and the one that answers it on feature maps."""

    label: str
    action: Action
    feature_action: Action
    exact: ClassVar[bool] = False


Element = tuple[Similarity | BlackBox, ...]  # steps, the first one applied first; the identity is ()


def compose(a: Element, b: Element) -> Element:
    """The steps of ``b``, then those of ``a``; two similarities that meet become one."""
    match b, a:
        case (*before, Similarity() as last), (Similarity() as then, *after):
            merged = then.after(last)
            return (*before, *((merged,) if merged != Similarity() else ()), *after)
    return b + a


def unchanged(x: Tensor) -> Tensor:
    return x


def take_step(step: Similarity | BlackBox, x: Tensor, mode: Mode, on_features: bool) -> Tensor:
    if isinstance(step, Similarity):
        return permute(x, step) if step.exact else resample(x, [step], [len(x)], mode)
    action = step.feature_action if on_features else step.action
    # a copy, so that the caller's images survive an in-place action
    result = x if action is unchanged else action(x.clone())
    if not isinstance(result, Tensor) or result.shape != x.shape:
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"action {step.label!r} must keep the shape {tuple(x.shape)}; it returned {got}")
    return result


def pixel_steps(element: Element) -> tuple[Similarity, ...]:
    """What moves pixels: black boxes count as defined everywhere, and caches must not keep them alive."""
    return tuple(step for step in element if isinstance(step, Similarity))


@lru_cache(maxsize=4096)
def coverage(steps: tuple[Similarity, ...], height: int, width: int) -> float:
    mask = valid_pixels(steps, height, width, torch.device("cpu"))
    return 1.0 if mask is None else float(mask.double().mean())
