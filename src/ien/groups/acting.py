"""Elements act on a batch: exact ones move pixels, all others are resampled at once.

Run as it is, Python looks at the elements and moves each run of images with the same one. A trace
(torch.compile, vmap) does not know which element an image has, so there all of them act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .devices import sent
from .elements import Element, take_step
from .similarity import Matrix, Mode, Similarity, permute_quarters, resample, resample_by_matrix

__all__ = [
    "Planned",
    "constant_in_a_trace",
    "is_traced",
    "transform",
    "transform_all_traced",
    "transform_traced",
]

F = TypeVar("F", bound=Callable[..., object])


def transform(
    x: Tensor, g: Tensor, steps_of: Callable[[int], Element], mode: Mode, on_features: bool
) -> Tensor:
    """Transform image ``i`` by element ``g[i]``.

    Args:
        x: Images or maps (B, C, H, W).
        g: Elements (B,) on the CPU.
        steps_of: Returns the steps of an element.
        mode: Interpolation.
        on_features: Whether functions of the user's act as they do on feature maps.

    Returns:
        A new tensor with the memory format of ``x``.
    """
    runs = _runs(g)
    if len(runs) == len({i for i, _ in runs}):  # each element in one run, as sample() draws them
        result = _transform_runs(x, runs, steps_of, mode, on_features)
    else:
        # sort the images by element, transform, and put them back in their order
        order = g.argsort(stable=True)
        together = x.index_select(0, sent(order, x.device))
        result = _transform_runs(together, _runs(g[order]), steps_of, mode, on_features)
        result = result.index_select(0, sent(order.argsort(), x.device))
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        result = result.contiguous(memory_format=torch.channels_last)
    return result


class Planned(NamedTuple):
    """What an element does to pixels, in plain numbers: torch.compile cannot trace fractions."""

    is_similarity: bool
    resamples: bool
    quarters: int
    flip: bool
    matrix: Matrix
    """Where a resampled pixel is read; the identity for elements that do not resample."""


def transform_traced(
    x: Tensor,
    g: Tensor,
    plan: Sequence[Planned],
    elements: Sequence[Element],
    mode: Mode,
    on_features: bool,
) -> Tensor:
    """Transform images without looking at the values of ``g``, which a trace does not know.

    Every element that permutes pixels acts on all images and ``where`` selects, which torch.compile
    fuses into one kernel; whatever resamples does so in one ``grid_sample``.

    Args:
        x: Images or maps (B, C, H, W).
        g: Elements (B,) on the device of ``x``.
        plan: What each element does.
        elements: Their steps, for functions of the user's.
        mode: Interpolation.
        on_features: Whether these act as they do on feature maps.
    """
    result = x
    if any(step.resamples for step in plan):
        result = resample_by_matrix(x, [step.matrix for step in plan], g, mode)
    for i, step in enumerate(plan):
        if step.resamples:
            continue
        moved = x
        if step.is_similarity:
            moved = permute_quarters(x, step.quarters, step.flip)
        else:
            for own in elements[i]:
                moved = take_step(own, moved, mode, on_features)
        chosen = (g == i).view(-1, 1, 1, 1)  # (B, 1, 1, 1)
        result = torch.where(chosen, moved, result)
    return result


def transform_all_traced(x: Tensor, step: Planned, element: Element, mode: Mode, on_features: bool) -> Tensor:
    """Transform all images by the same element, in a trace that may not know how many there are.

    Args:
        x: Images or maps (B, C, H, W).
        step: What the element does.
        element: Its steps, for functions of the user's.
        mode: Interpolation.
        on_features: Whether these act as they do on feature maps.
    """
    if step.resamples:
        first = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)  # (B,)
        return resample_by_matrix(x, [step.matrix], first, mode)
    if step.is_similarity:
        return permute_quarters(x, step.quarters, step.flip)
    for own in element:
        x = take_step(own, x, mode, on_features)
    return x


def _transform_runs(
    x: Tensor, runs: list[tuple[int, int]], steps_of: Callable[[int], Element], mode: Mode, on_features: bool
) -> Tensor:
    """Transform consecutive images; ``runs`` are (element, number of images)."""
    if not runs:
        return x.clone()
    parts = list(x.split([n for _, n in runs]))  # split has one backward for all, unlike slices

    resampled: dict[int, Similarity] = {}  # part -> its only step, done for all of them at once
    for k, (i, _) in enumerate(runs):
        match steps_of(i):
            case (Similarity(exact=False) as only,):
                resampled[k] = only
            case steps:
                for step in steps:
                    parts[k] = take_step(step, parts[k], mode, on_features)

    if resampled:
        waiting = [parts[k] for k in resampled]
        lengths = [len(part) for part in waiting]
        done = resample(torch.cat(waiting), list(resampled.values()), lengths, mode)
        for k, part in zip(resampled, done.split(lengths), strict=True):
            parts[k] = part
    return torch.cat(parts)


def _runs(g: Tensor) -> list[tuple[int, int]]:
    """(element, number of images) of each run of equal elements."""
    runs = []
    for i, run in groupby(g.tolist()):
        runs.append((i, len(list(run))))
    return runs


def is_traced() -> bool:
    """Whether torch.compile, or a transform of torch.func such as vmap, runs this code."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def constant_in_a_trace(function: F) -> F:
    """Let ``torch.compile`` call a function once, and take its result for a constant.

    The same as ``torch.compiler.assume_constant_result``, which would import the compiler together
    with ``ien``.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
