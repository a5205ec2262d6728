"""Doctor: from a model and an input size to the operations that break quarter turns or flips."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ._geometry.borrow import Pass, Run, borrowed
from ._geometry.explain import Finding

__all__ = ["Diagnosis", "Finding", "doctor"]

MOST = 8  # sizes to report
SECONDS = 5.0  # to look for them


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`doctor` found; ``print`` it for a report."""

    input_size: tuple[int, int, int]
    exact: bool
    """Whether quarter turns and flips commute with the model, end to end, once its kernels are symmetric.

    True is certain. False is what can be said where an operation cannot be followed (kind ``"unknown"``), or
    where two that are not exact make up for each other.
    """
    findings: tuple[Finding, ...]
    exact_sizes: tuple[int, ...]
    """The square input sizes nearest to the given one at which the model is exact, ascending, at most 8."""
    grid_sizes: tuple[int, ...]
    """The same, but what no size repairs (positions, flattening) is overlooked."""

    def __str__(self) -> str:
        height, width = self.input_size[1:]
        count = len(self.findings)
        verdict = "exact" if self.exact else f"not exact, {count} finding{'s' * (count != 1)}"
        lines = [f"quarter turns and flips at {height}×{width}: {verdict}"]
        for finding in self.findings:
            lines += ["", *_describe(finding)]
        return "\n".join([*lines, *([""] * (count > 0)), *self._sizes()])

    def _sizes(self) -> list[str]:
        given = min(self.input_size[1:])
        sizes = self.exact_sizes or self.grid_sizes
        if not sizes:
            return ["no exact input size was found near this one"]
        if not self.exact_sizes:
            what = "no input size repairs all of it; the sizes at which the rest is exact"
        else:
            what = "exact input sizes"
        below, above = [n for n in sizes if n < given], [n for n in sizes if n > given]
        nearest = [f"{below[-1]} below" if below else "", f"{above[0]} above" if above else ""]
        near = ", ".join(filter(None, nearest))
        return [f"{what}: {', '.join(map(str, sizes))}" + (f" (nearest: {near})" if near else "")]


def doctor(model: nn.Module, input_size: Sequence[int]) -> Diagnosis:
    """Which operations keep a model from commuting with quarter turns and flips, and at what size none does.

    ``input_size`` is (channels, height, width). Weights do not matter: the question is what the model could
    learn. It runs on tensors without data, in eval mode, and is left as it was. The search for exact sizes,
    from half to twice the given one, ends after five seconds.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
    >>> diagnosis = doctor(net, (3, 32, 32))
    >>> diagnosis.exact, diagnosis.exact_sizes
    (False, (25, 27, 29, 31, 33, 35, 37, 39))
    >>> diagnosis.findings[0].op
    'conv 3×3, stride 2, padding 1'
    """
    _, height, width = size = _checked(input_size)
    with borrowed(model) as run:
        try:
            seen = run(size, False)
        except Exception as error:
            raise ValueError(_failure(error, size)) from error
        findings = seen.findings
        if height != width:
            reason = "a quarter turn changes the shape of the input"
            findings.insert(0, Finding("", "input", (height, width), "input", reason, "a square input"))
        grid, exact = _search(run, seen, size)
    return Diagnosis(size, not findings, tuple(findings), exact, grid)


def _search(run: Run, seen: Pass, size: tuple[int, int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The nearest square sizes at which the grid is exact, and those of them at which everything is."""
    given = min(size[1:])
    grid: set[int] = set()
    exact: set[int] = set()
    end = time.monotonic() + SECONDS
    for n in sorted(range((given + 1) // 2, 2 * given + 1), key=lambda n: (abs(n - given), n)):
        if len(grid) == MOST or time.monotonic() > end:
            break
        square = (size[0], n, n)
        findings = seen.findings if square == size else _findings(run, seen, square)
        if findings is not None and all(finding.kind != "grid" for finding in findings):
            grid.add(n)
            exact |= set() if findings else {n}
    return tuple(sorted(grid)), tuple(sorted(exact))


def _findings(run: Run, seen: Pass, size: tuple[int, int, int]) -> list[Finding] | None:
    if not seen.may_fit(size[1]):
        return None
    try:
        return run(size, True).findings
    except Exception:  # the grid is not exact, or the model does not run at this size
        return None


def _checked(input_size: Sequence[int]) -> tuple[int, int, int]:
    given = tuple(input_size) if isinstance(input_size, Sequence) else input_size
    if (
        not isinstance(given, tuple)
        or len(given) != 3
        or not all(isinstance(n, int) and n > 0 for n in given)
    ):
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
    return f"the model fails on an input {shape}: {lines[0]}; give an input_size that it accepts"


def _describe(finding: Finding) -> list[str]:
    height, width = finding.size
    where = finding.module or "the model itself"
    what = finding.op + (f", on {height}×{width}" if height * width > 1 else "")
    price = []
    if finding.cost is not None:
        price.append(f"relative error {finding.cost:.2g} on noise")
    if finding.shift:
        price.append(f"the grid is off centre by {finding.shift:g} px of the input")
    lines = [f"{where}: {what}", f"  why: {finding.reason}"]
    lines += [f"  cost: {'; '.join(price)}"] if price else []
    return [*lines, f"  remedy: {finding.remedy}"]
