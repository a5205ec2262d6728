"""Doctor: from a model and an input size to the operations that break quarter turns or flips."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from .dry_run import Pass, Run, borrowed
from .findings import Finding

__all__ = ["Diagnosis", "Finding", "doctor"]

MOST = 8  # sizes to report
REACH = 512  # pixels smaller or larger to look for them
OPERATIONS = 6000  # of forward passes to look for them: some seconds, and on all machines the same sizes
OVERHEAD = 20  # operations that take as long as what comes before and after a pass


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`doctor` found; ``print`` it for a report."""

    input_size: tuple[int, int, int]
    exact: bool
    """Whether quarter turns and flips commute with the model, end to end, once its kernels are symmetric.

    True is certain. False is what can be said where an operation cannot be followed (kind ``"unknown"``), or
    where two that are not exact make up for each other. Outputs that are no maps, such as tokens or a
    flattened map, are exact up to the order of the places, which a turn of the image changes.
    """
    findings: tuple[Finding, ...]
    exact_sizes: tuple[int, ...]
    """The square input sizes nearest to the given one at which the model is exact, ascending, at most 8."""
    grid_sizes: tuple[int, ...]
    """The same, but what a size seldom repairs (positions, flattening) is overlooked."""
    searched: tuple[int, int]
    """The smallest and the largest size that were tried."""

    def __str__(self) -> str:
        height, width = self.input_size[1:]
        count = len(self.findings)
        verdict = "exact" if self.exact else f"not exact, {count} finding{'s' * (count != 1)}"
        lines = [f"quarter turns and flips at {height}×{width}: {verdict}"]
        for finding in self.findings:
            lines += ["", *_describe(finding)]
        return "\n".join([*lines, *([""] * (count > 0)), *self._sizes()])

    def _sizes(self) -> list[str]:
        low, high = sorted(self.input_size[1:])
        sizes = self.exact_sizes or self.grid_sizes
        searched = f"searched {self.searched[0]} to {self.searched[1]}"
        if not sizes:
            return [f"no exact input size was found ({searched})"]
        if not self.exact_sizes:
            what = f"no input size was found that repairs all of it ({searched}); the rest is exact at"
        else:
            what = "exact input sizes" if low == high else "exact square input sizes"
        below, above = [n for n in sizes if n < low], [n for n in sizes if n > high]
        nearest = [f"{below[-1]} below" if below else "", f"{above[0]} above" if above else ""]
        near = ", ".join(filter(None, nearest))
        short = self.exact_sizes and len(sizes) < MOST
        notes = "; ".join(filter(None, [f"nearest: {near}" if near else "", searched if short else ""]))
        return [f"{what}: {', '.join(map(str, sizes))}" + (f" ({notes})" if notes else "")]


def doctor(model: nn.Module, input_size: Sequence[int]) -> Diagnosis:
    """Which operations keep a model from commuting with quarter turns and flips, and at what size none does.

    ``input_size`` is (channels, height, width). Weights do not matter: the question is what the model could
    learn. It runs on tensors without data, in eval mode, without your forward hooks, and is left as it was.
    Exact sizes are looked for from half to twice the given one, or until enough was tried.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
    >>> diagnosis = doctor(net, (3, 32, 32))
    >>> diagnosis.exact, diagnosis.exact_sizes
    (False, (25, 27, 29, 31, 33, 35, 37, 39))
    >>> diagnosis.findings[0].op
    'conv 3×3, stride 2, padding 1'
    """
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(f"doctor takes a torch.nn.Module, such as nn.Conv2d(3, 8, 3); got {what}")
    _, height, width = size = _checked(input_size)
    with borrowed(model) as run:
        try:
            seen = run(size, False)
        except Exception as error:
            raise ValueError(_failure(error, size)) from error
        if not seen.notes.outputs:
            raise ValueError(
                "the model returns no tensor: let it return what it computes, as tensor, list or dict"
            )
        found = _search(run, seen, size)
    findings = _merged(seen.findings)
    if height != width:
        reason = "a quarter turn changes the shape of the input"
        findings.insert(0, Finding("", "input", (height, width), "input", reason, "a square input"))
    return Diagnosis(size, not findings, tuple(findings), *found)


class _Found(NamedTuple):
    exact: tuple[int, ...]
    grid: tuple[int, ...]
    searched: tuple[int, int]


def _search(run: Run, seen: Pass, size: tuple[int, int, int]) -> _Found:
    """The nearest square sizes at which everything is exact, and those at which the grid is."""
    low, high = sorted(size[1:])

    def distance(n: int) -> tuple[int, int, int]:
        return max(low - n, n - high, 0), abs(2 * n - low - high), n

    left, tried = OPERATIONS, {low, high}
    grid: list[int] = []
    exact: list[int] = []
    sizes = range(max((low + 1) // 2, low - REACH), min(2 * high, high + REACH) + 1)
    for n in sorted(sizes, key=distance):
        if len(exact) == MOST or left <= 0:
            break
        tried.add(n)
        square = (size[0], n, n)
        if square != size and not seen.may_fit(n):
            continue
        there = seen if square == size else run(square, True)
        left -= there.notes.operations + OVERHEAD
        if not there.notes.stopped and all(finding.kind != "grid" for finding in there.findings):
            grid.append(n)
            exact += [] if there.findings else [n]
    return _Found(tuple(sorted(exact)), tuple(sorted(grid[:MOST])), (min(tried), max(tried)))


def _checked(input_size: Sequence[int]) -> tuple[int, int, int]:
    try:
        given = tuple(map(operator.index, input_size))
    except TypeError:
        given = ()
    if len(given) != 3 or min(given) < 1 or any(isinstance(n, bool) for n in input_size):
        raise ValueError(
            f"input_size must be (channels, height, width), such as (3, 224, 224); got {input_size!r}"
        )
    return given


def _failure(error: Exception, size: tuple[int, int, int]) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    shape = f"({', '.join(map(str, (2, *size)))})"
    fake = ("numpy", "tensor subclass", "FakeTensor", "data_ptr", "storage")
    if type(error).__name__.startswith(("DataDependent", "DynamicOutput")) or any(
        w in lines[0] for w in fake
    ):
        return (
            f"the model reads values of tensors (.item(), an if on a tensor, a boolean index: {lines[0]}), "
            f"and the doctor runs it without values: give it the part of the model that makes the maps"
        )
    remedy = "give an input_size that it accepts"
    if "scalar type" in lines[0] or (isinstance(error, TypeError) and "argument" in lines[0]):
        remedy = "wrap it in a module that takes one batch of images"
    return f"the model fails on an input {shape}: {lines[0]}; {remedy}"


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Those of one module that differ in nothing but the numbers in the operation, as one."""
    groups: dict[Finding, list[Finding]] = {}
    for each in findings:
        alike = replace(each, op=re.sub(r"\d+", "0", each.op), cost=None, shift=None)
        groups.setdefault(alike, []).append(each)
    return [replace(group[0], times=len(group)) for group in groups.values()]


def _describe(finding: Finding) -> list[str]:
    height, width = finding.size
    where = finding.module or "the model itself"
    what = finding.op + (f", on {height}×{width}" if height * width > 1 else "")
    what += f", {finding.times} times with other numbers" if finding.times > 1 else ""
    price = [] if finding.kind in ("grid", "input") else ["depends on the weights: ien measure tells"]
    if finding.cost is not None:
        price.append(f"relative error {finding.cost:.2g} on noise")
    if finding.shift:
        price.append(f"the grid is off centre by {finding.shift:g} px of the input")
    lines = [f"{where}: {what}", f"  why: {finding.reason}"]
    lines += [f"  cost: {'; '.join(price)}"] if price else []
    return [*lines, f"  remedy: {finding.remedy}"]
