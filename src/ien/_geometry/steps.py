"""Spatial operations: from steps on a map of some size to whether quarter turns and flips pass through them.

Nothing is derived: the steps run on a small map of noise, with symmetric kernels, and on that map turned and
flipped. The formulas only explain what came out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import lcm
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .._kernels import average_over_d4

__all__ = ["Size", "Step", "cost", "exact", "for_real", "noise", "pair", "size_after", "stride", "windows"]

Size = tuple[int, int]
P = ParamSpec("P")
R = TypeVar("R")
TINY = 1e-20  # relative to the mean square: float64 leaves about 1e-32


class Step(NamedTuple):
    """One operation on maps (N, 1, H, W), as a value that can be compared."""

    kind: str
    func: Callable[..., Any]
    args: tuple[tuple[str, Any], ...]

    @property
    def passes_on(self) -> bool:
        """Whether what it breaks may be repaired by the next step, as by a slice at the other edge."""
        return self.kind not in ("conv", "pool", "resize")

    def __call__(self, x: Tensor) -> Tensor:
        args = dict(self.args)
        if self.kind == "conv":
            out = self.func(x, _kernel(args.pop("kernel")), None, **args, groups=1)
        else:
            out = self.func(x, **args)
        return out if isinstance(out, Tensor) else out[0]


def for_real(function: Callable[P, R]) -> Callable[P, R]:
    """With plain tensors, also where a mode makes fake ones of all that is computed."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            return function(*args, **kwargs)

    return run


def exact(steps: tuple[Step, ...], size: Size) -> bool:
    """Whether the steps commute with the flips of a map of that size, and with its transpose if square."""
    if len(steps) == 1 and size[0] == size[1] and steps[0].kind in ("conv", "pool"):
        size = _smallest(steps[0], size[0])
    return _commutes(steps, size)


@lru_cache(maxsize=8192)
@for_real
def _commutes(steps: tuple[Step, ...], size: Size) -> bool:
    x = _probes(size)
    other = _transpose if size[0] == size[1] else _flip_rows  # with the flip of columns, all of them
    y, *got = _run(steps, torch.cat([x, x.flip(-1), other(x)])).split(len(x))
    limit = TINY * float(y.square().mean())
    return all(
        a.shape == b.shape and float((a - b).square().mean()) <= limit
        for a, b in zip(got, [y.flip(-1), other(y)], strict=True)
    )


@lru_cache(maxsize=1024)
@for_real
def cost(steps: tuple[Step, ...], size: Size) -> float | None:
    """The relative error on noise for the worst of the turns and flips; None where shapes differ."""
    x = noise(max(1, min(64, 2**17 // (size[0] * size[1]))), size)
    y = _run(steps, x)
    errors = []
    for turns in range(0, 4, 1 if size[0] == size[1] else 2):
        for flipped in (x, x.flip(-1)):
            got = _run(steps, flipped.rot90(turns, (-2, -1)))
            expected = (y if flipped is x else y.flip(-1)).rot90(turns, (-2, -1))
            if expected.shape != got.shape:
                return None
            errors.append(float((expected - got).square().mean()))
    return max(errors) / max(float(y.var(correction=0)), 1e-300)


def stride(step: Step, before: Size, after: Size) -> float:
    """Rows of the map before in one of the map after."""
    if step.kind in ("conv", "pool"):
        along = windows(step)[1][0]
        return 1 / along if dict(step.args).get("transposed") else along
    if step.kind == "resize":
        return before[0] / max(after[0], 1)
    return dict(step.args).get("step", 1)


def _smallest(step: Step, n: int) -> Size:
    """A smaller map with the same answer: whole strides less between edges that do not meet."""
    kernel, stride, padding, dilation = map(max, windows(step))
    period = lcm(*windows(step)[1])
    edges = 2 * (dilation * (kernel - 1) + 1 + padding + stride)
    m = n - max(n - edges, 0) // period * period
    return m, m


def _transpose(x: Tensor) -> Tensor:
    return x.mT


def _flip_rows(x: Tensor) -> Tensor:
    return x.flip(-2)


def _run(steps: tuple[Step, ...], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x


def size_after(step: Step, size: Size) -> Size:
    """Height and width of what comes out."""
    if size[0] != size[1] or step.kind not in ("conv", "pool"):
        return _size_after(step, size)
    small = _smallest(step, size[0])
    (rows, columns), (down, right) = _size_after(step, small), windows(step)[1]
    more = size[0] - small[0]
    if dict(step.args).get("transposed"):
        return rows + more * down, columns + more * right
    return rows + more // down, columns + more // right


@lru_cache(maxsize=8192)
@for_real
def _size_after(step: Step, size: Size) -> Size:
    height, width = step(noise(1, size)).shape[-2:]
    return height, width


@lru_cache(maxsize=64)
def _probes(size: Size) -> Tensor:
    """Noise, with a peak at the corners and edges, one in each map: a maximum sees little else."""
    h, w = size
    rows, columns = (sorted({0, n // 2, n - 1}) for n in size)
    at = [(i, j) for i in rows for j in columns]
    if h * w <= 64:
        at = [(i, j) for i in range(h) for j in range(w)]
    maps = noise(len(at), size).clone()
    for one, (i, j) in zip(maps, at, strict=True):
        one[0, i, j] += 16
    return maps


@lru_cache(maxsize=64)
def noise(count: int, size: Size) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(count, 1, *size, generator=generator, dtype=torch.float64, device="cpu")


@lru_cache(maxsize=64)
def _kernel(size: Size) -> Tensor:
    return average_over_d4(noise(1, size)) if size[0] == size[1] else noise(1, size)


def pair(value: Any) -> Size:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1])


def windows(step: Step) -> tuple[Size, Size, Size, Size]:
    """Kernel, stride, padding and dilation of a convolution or pool."""
    args = dict(step.args)
    kernel = pair(args.get("kernel") or args["kernel_size"])
    return kernel, pair(args["stride"] or kernel), pair(args["padding"]), pair(args.get("dilation", 1))
