"""Spatial operations: from steps on a map of some size to whether quarter turns and flips pass through them.

Nothing is derived: the steps run on a map of noise, with symmetric kernels, and on that map turned and
flipped; of a large one, what lies between the edges is left out. The formulas only explain what came out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import lcm
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..measuring.floors import average_over_d4

__all__ = [
    "Size",
    "Step",
    "cost",
    "exact",
    "for_real",
    "is_symmetric",
    "pair",
    "size_after",
    "stride",
    "windows",
]

Size = tuple[int, int]
P = ParamSpec("P")
R = TypeVar("R")
TINY = 1e-20  # relative to the mean square: float64 leaves about 1e-32
MANY = 256  # rows or columns that are enough for a cost


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
            bias = torch.ones(1, dtype=x.dtype, device=x.device)  # so that zero padding shows
            out = self.func(x, _kernel(args.pop("kernel")).to(x.device), bias, **args, groups=1)
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
    square, after = size[0] == size[1], size
    for step in steps:
        after = size_after(step, after)
    if square and after[0] != after[1]:
        return False
    return _commutes(*_shrunk(steps, size), square)


@lru_cache(maxsize=8192)
@for_real
def _commutes(steps: tuple[Step, ...], size: Size, square: bool) -> bool:
    x = _probes(size)
    other = _transpose if square else _flip_rows  # with the flip of columns, all of them
    y, *got = _run(steps, torch.cat([x, x.flip(-1), other(x)])).split(len(x))
    limit = TINY * float(y.square().mean())
    return all(
        a.shape == b.shape and float((a - b).square().mean()) <= limit
        for a, b in zip(got, [y.flip(-1), other(y)], strict=True)
    )


@for_real
def is_symmetric(kernel: Tensor) -> bool:
    """Whether quarter turns and flips leave the kernel (…, k, k) as it is."""
    kernel = kernel.double()
    return bool((average_over_d4(kernel) - kernel).square().mean() <= 1e-10 * kernel.square().mean())


def cost(steps: tuple[Step, ...], size: Size) -> float | None:
    """The relative error on noise for the worst of the turns and flips; None where shapes differ."""
    return _cost(*_shrunk(steps, size, MANY), size[0] == size[1])


@lru_cache(maxsize=1024)
@for_real
def _cost(steps: tuple[Step, ...], size: Size, square: bool) -> float | None:
    x = _noise(max(1, min(64, 2**17 // (size[0] * size[1]))), size)
    y = _run(steps, x)
    errors = []
    for turns in range(0, 4, 1 if square else 2):
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


def _shrunk(steps: tuple[Step, ...], size: Size, least: int = 0) -> tuple[tuple[Step, ...], Size]:
    """The same on a smaller map: whole strides less between edges that do not meet."""
    if not all(step.kind in ("conv", "pool", "slice", "pad") for step in steps):
        return steps, size
    edges, period, here = 0, 1, size
    for step in steps:
        edges += period * _reach(step, here)
        period *= 1 if dict(step.args).get("transposed") else lcm(*_strides(step))
        here = size_after(step, here)
    less = [max(n - max(least, edges), 0) // period * period for n in size]
    small, after = [], less
    for step in steps:
        args, strides = dict(step.args), _strides(step)
        if step.kind == "slice":
            args["stop"] -= after[args["dim"] - 2]
        small.append(step._replace(args=tuple(args.items())))
        after = [n * s if args.get("transposed") else n // s for n, s in zip(after, strides, strict=True)]
    return tuple(small), (size[0] - less[0], size[1] - less[1])


def _strides(step: Step) -> Size:
    args = dict(step.args)
    if step.kind == "slice":
        return (args["step"], 1) if args["dim"] == 2 else (1, args["step"])
    return (1, 1) if step.kind == "pad" else windows(step)[1]


def _reach(step: Step, size: Size) -> int:
    """How many rows or columns the edges touch, both together, with some to spare."""
    args = dict(step.args)
    if step.kind == "slice":
        return args["start"] + max(size[args["dim"] - 2] - args["stop"], 0) + 2 * args["step"]
    return 2 * (1 + max(map(abs, args["pad"]))) if step.kind == "pad" else _span(step)


def _span(step: Step) -> int:
    kernel, by, padding, dilation = map(max, windows(step))
    return 2 * (dilation * (kernel - 1) + 1 + padding + by)


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
    args = dict(step.args)
    if step.kind == "slice":
        n = len(range(*slice(args["start"], args["stop"], args["step"]).indices(size[args["dim"] - 2])))
        return (n, size[1]) if args["dim"] == 2 else (size[0], n)
    if step.kind == "pad":
        left, right, top, bottom = args["pad"]
        return size[0] + top + bottom, size[1] + left + right
    if step.kind not in ("conv", "pool"):
        return _size_after(step, size)
    period = windows(step)[1]
    less = [max(n - _span(step), 0) // s * s for n, s in zip(size, period, strict=True)]
    rows, columns = _size_after(step, (size[0] - less[0], size[1] - less[1]))
    more = [n * s if args.get("transposed") else n // s for n, s in zip(less, period, strict=True)]
    return rows + more[0], columns + more[1]


@lru_cache(maxsize=8192)
@for_real
def _size_after(step: Step, size: Size) -> Size:
    height, width = step(torch.empty(1, 1, *size, dtype=torch.float64, device="meta")).shape[-2:]
    return height, width


def _probes(size: Size) -> Tensor:
    """Noise, with a peak at the corners and edges, one in each map: a maximum sees little else."""
    h, w = size
    rows, columns = (sorted({0, n // 2, n - 1}) for n in size)
    at = [(i, j) for i in rows for j in columns]
    if h * w <= 64:
        at = [(i, j) for i in range(h) for j in range(w)]
    elif h * w > 64**2:
        at = at[:1]
    maps = _noise(len(at), size)
    for one, (i, j) in zip(maps, at, strict=True):
        one[0, i, j] += 16
    return maps


def _noise(count: int, size: Size) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(count, 1, *size, generator=generator, dtype=torch.float64, device="cpu")


def _kernel(size: Size) -> Tensor:
    return average_over_d4(_noise(1, size)) if size[0] == size[1] else _noise(1, size)


def pair(value: Any) -> Size:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1])


def windows(step: Step) -> tuple[Size, Size, Size, Size]:
    """Kernel, stride, padding and dilation of a convolution or pool."""
    args = dict(step.args)
    kernel = pair(args.get("kernel") or args["kernel_size"])
    return kernel, pair(args["stride"] or kernel), pair(args["padding"]), pair(args.get("dilation", 1))
