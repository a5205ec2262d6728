"""Doctor: the operations of a model that break quarter turns or flips, and exact input sizes."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from .._text import MODEL_ITSELF, html_table
from .dry_run import dry_runs
from .findings import Finding
from .sizes import MAX_LISTED_SIZES, search_sizes

__all__ = ["Diagnosis", "Finding", "doctor"]

WORDS_OF_FAKE_TENSORS = ("numpy", "tensor subclass", "FakeTensor", "data_ptr", "storage")
"""Words in torch's errors about fake tensors, which have no values."""


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`doctor` found; ``print`` it to read it.

    Do not take ``exact`` for a property of the trained weights: it says what the geometry allows.
    Use :func:`ien.measure` to see how equivariant the model is today.

    >>> print(doctor(nn.Conv2d(3, 8, 3, stride=2), (3, 9, 9)))
    quarter turns and flips at 9×9: exact
    exact input sizes: 5, 7, 9, 11, 13, 15, 17 (nearest: 7 below, 11 above; searched 5 to 18)
    """

    input_size: tuple[int, int, int]
    """Channels, height and width of the input."""
    exact: bool
    """Whether quarter turns and flips commute with the whole model once its kernels are symmetric.

    Kernels before a pixel shuffle are symmetric if the channels that become places rotate as well.
    True is certain. False is the answer where an operation cannot be followed (kind ``"unknown"``),
    and where two operations that are not exact make up for each other. Outputs that are no maps,
    such as tokens or a flattened map, are exact up to the order of the places, which a quarter turn
    of the image changes.
    """
    findings: tuple[Finding, ...]
    """What breaks quarter turns or flips, in the order of the forward pass."""
    exact_sizes: tuple[int, ...]
    """The nearest square input sizes at which the model is exact, ascending, at most 8."""
    grid_sizes: tuple[int, ...]
    """The same, but findings that a size seldom repairs (positions, flattening) do not count."""
    searched: tuple[int, int]
    """The smallest and the largest size that were tried."""

    def __str__(self) -> str:
        lines = [f"quarter turns and flips at {self._verdict()}"]
        for finding in self.findings:
            lines.append("")
            lines.extend(_lines_of(finding))
        if self.findings:
            lines.append("")
        lines.append(self._line_of_sizes())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Diagnosis({self._verdict()}; {self._line_of_sizes()})"

    def _repr_html_(self) -> str:
        rows = [["layer", "operation", "map", "why", "cost", "remedy"]]
        for finding in self.findings:
            place = finding.module or MODEL_ITSELF
            size = "×".join(map(str, finding.size))
            rows.append([place, finding.op, size, finding.reason, _cost_of(finding), finding.remedy])
        return html_table(f"quarter turns and flips at {self._verdict()}", rows, [self._line_of_sizes()])

    def _verdict(self) -> str:
        """Return the input size, and how many findings there are."""
        height, width = self.input_size[1:]
        count = len(self.findings)
        verdict = "exact"
        if count == 1:
            verdict = "not exact, 1 finding"
        elif count > 1:
            verdict = f"not exact, {count} findings"
        return f"{height}×{width}: {verdict}"

    @property
    def advice(self) -> str:
        """The first finding and its remedy in one line; empty if the model is exact.

        >>> print(doctor(nn.Conv2d(3, 8, 3, stride=2), (3, 8, 8)).advice.split("; ", 1)[1])
        remedy: a map of 7 or 9; exact input sizes: 5, 7, 9, 11, 13, 15
        """
        if not self.findings:
            return ""
        first = self.findings[0]
        found = f"{first.module or MODEL_ITSELF}, {first.op}: {first.reason}"
        if first.kind == "grid" and not self.grid_sizes:
            return (
                f"{found}, and no other input size is exact; remedy: 2×2 convolutions of stride 2, or a pool "
                f"of 2, instead of 3×3 convolutions of stride 2"
            )
        sizes = ""
        if self.exact_sizes:
            sizes = f"; exact input sizes: {', '.join(map(str, self.exact_sizes))}"
        return f"{found}; remedy: {first.remedy}{sizes}"

    def _line_of_sizes(self) -> str:
        low, high = sorted(self.input_size[1:])
        searched = f"searched {self.searched[0]} to {self.searched[1]}"
        sizes = self.exact_sizes or self.grid_sizes
        if not sizes:
            return f"no exact input size was found ({searched})"
        if not self.exact_sizes:
            title = f"no input size repairs everything ({searched}); the grid is exact at"
        elif low == high:
            title = "exact input sizes"
        else:
            title = "exact square input sizes"

        near = []
        below = [n for n in sizes if n < low]
        above = [n for n in sizes if n > high]
        if below:
            near.append(f"{below[-1]} below")
        if above:
            near.append(f"{above[0]} above")
        notes = []
        if near:
            notes.append(f"nearest: {', '.join(near)}")
        if self.exact_sizes and len(sizes) < MAX_LISTED_SIZES:
            notes.append(searched)
        line = f"{title}: {', '.join(map(str, sizes))}"
        if notes:
            line += f" ({'; '.join(notes)})"
        return line


def doctor(model: nn.Module, input_size: Sequence[int] | Tensor) -> Diagnosis:
    """Find the operations that keep a model from commuting with quarter turns and flips.

    Weights do not matter: the question is what the model could learn. It runs on tensors without
    data, in eval mode, without your forward hooks, and is left as it was. Exact input sizes are
    searched from half to twice the given one, or until a fixed budget is spent.

    Do not use it for other groups, such as rotations by 45° or scalings, whose resampling is never
    exact, nor for models that read values in their forward pass (``.item()``, an ``if`` on a
    tensor): use :func:`ien.measure` there.

    Args:
        model: Any module that takes one batch of images; it may return any container of tensors.
        input_size: (channels, height, width) of one image, or images (N, C, H, W) as
            :func:`ien.measure` takes them; only their size matters.

    Returns:
        The findings in the order of the forward pass, and the nearest exact input sizes.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``input_size`` is neither three positive integers nor images, or the model fails
            on such an input, reads values, is scripted or lazy, or returns no tensor.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
    >>> diagnosis = doctor(net, (3, 32, 32))
    >>> diagnosis.exact, diagnosis.exact_sizes
    (False, (25, 27, 29, 31, 33, 35, 37, 39))
    >>> diagnosis.findings[0].op
    'conv 3×3, stride 2, padding 1'
    """
    if not isinstance(model, nn.Module):
        given = f"a {type(model).__name__}"
        if isinstance(model, type):
            given = f"the class {model.__name__}"
        raise TypeError(f"doctor takes a torch.nn.Module, such as nn.Conv2d(3, 8, 3); got {given}")
    size = _checked_size(input_size)
    height, width = size[1:]
    with dry_runs(model) as run:
        try:
            notes = run(size, False)
        except Exception as error:
            raise ValueError(_failure(error, size)) from error
        if not notes.num_outputs:
            raise ValueError("the model returns no tensor: it must return one, or a container of tensors")
        sizes = search_sizes(run, notes, size)
    findings = _merged(notes.findings)
    # each flip still commutes with a model that is exact on such maps, but no quarter turn does
    if height != width:
        reason = "a quarter turn changes the shape of the input"
        findings.insert(0, Finding("", "input", (height, width), "input", reason, "use a square input"))
    return Diagnosis(
        input_size=size,
        exact=not findings,
        findings=tuple(findings),
        exact_sizes=sizes.exact,
        grid_sizes=sizes.grid,
        searched=sizes.searched,
    )


def _checked_size(input_size: Sequence[int] | Tensor) -> tuple[int, int, int]:
    shown: object = input_size
    if isinstance(input_size, Tensor):
        shown = f"a tensor of shape {tuple(input_size.shape)}"
    message = (
        f"input_size must be (channels, height, width), such as (3, 224, 224), or images (N, C, H, W); "
        f"got {shown}"
    )
    if isinstance(input_size, Tensor) and input_size.ndim == 4:
        input_size = input_size.shape[1:]
    try:
        given = tuple(map(operator.index, input_size))  # integers of any kind, NumPy's too
    except TypeError:
        raise ValueError(message) from None
    if len(given) != 3 or min(given) < 1 or any(isinstance(n, bool) for n in input_size):
        raise ValueError(message)
    return given


def _failure(error: Exception, size: tuple[int, int, int]) -> str:
    """Return one line on why the model failed, and what to do."""
    lines = [*str(error).strip().splitlines(), type(error).__name__]
    cause = lines[0]
    needs_values = type(error).__name__.startswith(("DataDependent", "DynamicOutput"))
    if needs_values or any(word in cause for word in WORDS_OF_FAKE_TENSORS):
        return (
            f"the model reads tensor values (.item(), an if on a tensor, a boolean index: {cause}), "
            f"but the doctor runs it without values: pass only the part of the model that computes the maps"
        )
    remedy = "pass an input_size that it accepts (in the shell: --size CxHxW)"
    has_other_arguments = isinstance(error, TypeError) and "argument" in cause
    if has_other_arguments or "scalar type" in cause:
        remedy = "wrap it in a module that takes one batch of images"
    return f"the model fails on an input {(2, *size)}: {cause}; {remedy}"


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Make one of findings of a module that differ only in the numbers of the operation."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        without_numbers = replace(finding, op=re.sub(r"\d+", "0", finding.op), cost=None, shift=None)
        alike.setdefault(without_numbers, []).append(finding)
    return [replace(same[0], times=len(same)) for same in alike.values()]


def _lines_of(finding: Finding) -> list[str]:
    height, width = finding.size
    line = f"{finding.module or MODEL_ITSELF}: {finding.op}"
    if height * width > 1:
        line += f", on {height}×{width}"
    if finding.times > 1:
        line += f", {finding.times} times with different numbers"
    lines = [line, f"  why: {finding.reason}"]
    cost = _cost_of(finding)
    if cost:
        lines.append(f"  cost: {cost}")
    lines.append(f"  remedy: {finding.remedy}")
    return lines


def _cost_of(finding: Finding) -> str:
    # an error on noise is only defined for the grid; what positions cost depends on the weights
    costs = []
    if finding.kind not in ("grid", "input"):
        costs.append("depends on the weights: see ien measure")
    if finding.cost is not None:
        costs.append(f"relative error {finding.cost:.2g} on noise")
    if finding.shift:
        costs.append(f"the grid is off centre by {finding.shift:g} px of the input")
    return "; ".join(costs)
