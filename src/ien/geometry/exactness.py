"""Exactness: whether spatial steps commute with quarter turns and flips on a map of a given size.

Nothing is derived. The steps run, with symmetric kernels, on maps of noise and on the same maps
transposed and flipped, and the results are compared. Most of the inside of a large map is left out:
only its edges and the remainder of its size by the strides decide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import lcm
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .._files import seeded
from ..measuring.floors import average_over_d4
from .dimensions import COLUMNS, ROWS

__all__ = [
    "DIM_OF_AXIS",
    "Size",
    "Step",
    "Window",
    "cost",
    "is_exact",
    "is_symmetric",
    "rows_and_columns",
    "size_after",
    "stride_of",
    "window_of",
    "with_real_tensors",
]

Size = tuple[int, int]
"""Rows and columns."""
P = ParamSpec("P")
R = TypeVar("R")

DIM_OF_AXIS = {ROWS: 2, COLUMNS: 3}
"""In the maps (N, 1, H, W) that steps are tried on."""
ZERO_TOLERANCE = 1e-20
"""Squared error relative to the mean square that counts as none; float64 leaves about 1e-32."""
KERNEL_TOLERANCE = 1e-10
"""The same for a fixed kernel, which may come in float32."""
MIN_COST_SIZE = 256
"""Rows and columns that remain of a large map when its cost is measured."""
NUM_COST_PIXELS = 2**17
"""Pixels of noise that are enough for a cost."""
PEAK = 16.0
"""Height of the one pixel of a probe that a max pool cannot miss."""


class Step(NamedTuple):
    """One operation on maps (N, 1, H, W), as a value that can be compared and cached."""

    kind: str
    """conv, pool, resize, pad, slice, move, repeat or reduce."""
    func: Callable[..., Any]
    args: tuple[tuple[str, Any], ...]

    @property
    def is_repairable(self) -> bool:
        """Whether a later step may undo what it breaks, as a slice at the opposite edge does."""
        return self.kind not in ("conv", "pool", "resize")

    @property
    def is_transposed(self) -> bool:
        """Whether it is a transposed convolution."""
        return bool(dict(self.args).get("transposed"))

    def __call__(self, x: Tensor) -> Tensor:
        args = dict(self.args)
        if self.kind == "conv":
            kernel = _kernel(args.pop("kernel")).to(x.device)
            bias = torch.ones(1, dtype=x.dtype, device=x.device)  # makes zero padding visible
            result = self.func(x, kernel, bias, **args, groups=1)
        else:
            result = self.func(x, **args)
        if isinstance(result, Tensor):
            return result
        return result[0]  # a max pool also returns indices


class Window(NamedTuple):
    """Kernel size, stride, padding and dilation of a convolution or pool, each (rows, columns)."""

    kernel: Size
    stride: Size
    padding: Size
    dilation: Size


def window_of(step: Step) -> Window:
    """Return the window of a convolution or pool."""
    args = dict(step.args)
    kernel = rows_and_columns(args.get("kernel") or args["kernel_size"])
    stride = rows_and_columns(args["stride"] or kernel)
    padding = rows_and_columns(args["padding"])
    dilation = rows_and_columns(args.get("dilation", 1))
    return Window(kernel, stride, padding, dilation)


def rows_and_columns(value: Any) -> Size:
    """Return a number for each axis; torch also takes one for both."""
    if isinstance(value, int):
        return (value, value)
    values = tuple(value)
    return (values[0], values[-1])


def with_real_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``function`` compute with real tensors while a mode replaces all others by fake ones."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            return function(*args, **kwargs)

    return run


# --- is it exact?


def is_exact(steps: tuple[Step, ...], size: Size) -> bool:
    """Return whether the steps commute with flips and, if such maps are square, the transpose."""
    is_square = size[0] == size[1]
    after = size
    for step in steps:
        after = size_after(step, after)
    if is_square and after[0] != after[1]:
        return False
    small_steps, small_size = _shrunk(steps, size)
    return _commutes(small_steps, small_size, is_square)


@lru_cache(maxsize=8192)
@with_real_tensors
def _commutes(steps: tuple[Step, ...], size: Size, is_square: bool) -> bool:
    # two generators are enough: the flip of columns, and the transpose (or the flip of rows)
    second = _rows_flipped
    if is_square:
        second = _transposed
    x = _probes(size)  # (N, 1, H, W)
    views = torch.cat([x, x.flip(-1), second(x)])  # (3 N, 1, H, W)
    y, y_flipped, y_second = _run(steps, views).split(len(x))
    limit = ZERO_TOLERANCE * float(y.square().mean())
    return _is_close(y_flipped, y.flip(-1), limit) and _is_close(y_second, second(y), limit)


def _is_close(a: Tensor, b: Tensor, limit: float) -> bool:
    if a.shape != b.shape:
        return False
    error = (a - b).square().mean()
    return float(error) <= limit


def _transposed(x: Tensor) -> Tensor:
    return x.mT


def _rows_flipped(x: Tensor) -> Tensor:
    return x.flip(-2)


def _run(steps: tuple[Step, ...], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x


@with_real_tensors
def is_symmetric(kernel: Tensor) -> bool:
    """Return whether quarter turns and flips leave the kernel (…, k, k) unchanged."""
    kernel = kernel.cpu().double()  # not every device has float64
    difference = average_over_d4(kernel) - kernel
    limit = KERNEL_TOLERANCE * kernel.square().mean()
    return bool(difference.square().mean() <= limit)


def cost(steps: tuple[Step, ...], size: Size) -> float | None:
    """Return the relative error on noise for the worst quarter turn or flip.

    It is max_g mean (f(g x) - g f(x))² / var f(x), and None where shapes differ.
    """
    small_steps, small_size = _shrunk(steps, size, MIN_COST_SIZE)
    return _cost(small_steps, small_size, size[0] == size[1])


@lru_cache(maxsize=1024)
@with_real_tensors
def _cost(steps: tuple[Step, ...], size: Size, is_square: bool) -> float | None:
    height, width = size
    count = NUM_COST_PIXELS // (height * width)
    x = _noise(max(1, min(64, count)), size)
    y = _run(steps, x)
    quarter_turns = [0, 1, 2, 3]
    if not is_square:
        quarter_turns = [0, 2]
    errors = []
    for turns in quarter_turns:
        for before, after in ((x, y), (x.flip(-1), y.flip(-1))):
            expected = after.rot90(turns, (-2, -1))
            actual = _run(steps, before.rot90(turns, (-2, -1)))
            if expected.shape != actual.shape:
                return None
            error = (expected - actual).square().mean()
            errors.append(float(error))
    variance = float(y.var(correction=0))
    return max(errors) / max(variance, 1e-300)


# --- sizes


def stride_of(step: Step, before: Size, after: Size) -> float:
    """Return how many rows of the map before the step fall on one row of the map after it."""
    if step.kind in ("conv", "pool"):
        stride = window_of(step).stride[0]
        if step.is_transposed:
            return 1 / stride
        return stride
    if step.kind == "resize":
        return before[0] / max(after[0], 1)
    return dict(step.args).get("step", 1)


def size_after(step: Step, size: Size) -> Size:
    """Return the size of the map after the step."""
    args = dict(step.args)
    if step.kind == "slice":
        bounds = slice(args["start"], args["stop"], args["step"])
        after = list(size)
        axis = args["dim"] - 2
        after[axis] = len(range(*bounds.indices(size[axis])))
        return after[0], after[1]
    if step.kind == "pad":
        left, right, top, bottom = args["pad"]
        return size[0] + top + bottom, size[1] + left + right
    if step.kind not in ("conv", "pool"):
        return _traced_size(step, size)
    # a small map has the same remainder, so that sizes far apart share one entry of the cache
    stride = window_of(step).stride
    removed = []
    for n, s in zip(size, stride, strict=True):
        removed.append(_multiple_below(n - _span(step), s))
    rows, columns = _traced_size(step, (size[0] - removed[0], size[1] - removed[1]))
    added = _scaled_by_stride(removed, stride, step.is_transposed)
    return rows + added[0], columns + added[1]


@lru_cache(maxsize=8192)
@with_real_tensors
def _traced_size(step: Step, size: Size) -> Size:
    """Ask torch for the size, with a tensor that has a shape and no values."""
    x = torch.empty(1, 1, *size, dtype=torch.float64, device="meta")
    rows, columns = step(x).shape[-2:]
    return rows, columns


def _shrunk(steps: tuple[Step, ...], size: Size, min_size: int = 0) -> tuple[tuple[Step, ...], Size]:
    """Return the same steps on a smaller map, from whose inside whole strides were removed.

    What the edges touch stays, and so does the remainder of the size by all strides together.
    """
    for step in steps:
        if step.kind not in ("conv", "pool", "slice", "pad"):
            return steps, size

    # pixels of the first map that the edges reach, and the period of all strides together
    num_edge_pixels = 0
    period = 1
    here = size
    for step in steps:
        num_edge_pixels += period * _edge_reach(step, here)
        if not step.is_transposed:
            period *= lcm(*_strides(step))
        here = size_after(step, here)
    removed = []
    for n in size:
        removed.append(_multiple_below(n - max(min_size, num_edge_pixels), period))

    # slices count from the start, so their end moves by what was removed before them
    small_steps = []
    here_removed = removed
    for step in steps:
        args = dict(step.args)
        if step.kind == "slice":
            args["stop"] -= here_removed[args["dim"] - 2]
        small_steps.append(step._replace(args=tuple(args.items())))
        here_removed = _scaled_by_stride(here_removed, _strides(step), step.is_transposed)
    return tuple(small_steps), (size[0] - removed[0], size[1] - removed[1])


def _multiple_below(n: int, period: int) -> int:
    """Return the largest multiple of ``period`` that is at most n, and not negative."""
    return max(n, 0) // period * period


def _scaled_by_stride(sizes: list[int], strides: Size, is_transposed: bool) -> list[int]:
    scaled = []
    for n, stride in zip(sizes, strides, strict=True):
        if is_transposed:
            scaled.append(n * stride)
        else:
            scaled.append(n // stride)
    return scaled


def _strides(step: Step) -> Size:
    if step.kind == "pad":
        return (1, 1)
    if step.kind != "slice":
        return window_of(step).stride
    args = dict(step.args)
    if args["dim"] == DIM_OF_AXIS[ROWS]:
        return (args["step"], 1)
    return (1, args["step"])


def _edge_reach(step: Step, size: Size) -> int:
    """Return how many rows or columns both edges touch together, with some to spare."""
    args = dict(step.args)
    if step.kind == "slice":
        removed_at_end = max(size[args["dim"] - 2] - args["stop"], 0)
        return args["start"] + removed_at_end + 2 * args["step"]
    if step.kind == "pad":
        return 2 * (1 + max(map(abs, args["pad"])))
    return _span(step)


def _span(step: Step) -> int:
    window = window_of(step)
    extent = max(window.dilation) * (max(window.kernel) - 1) + 1
    return 2 * (extent + max(window.padding) + max(window.stride))


# --- what the steps are tried on


def _probes(size: Size) -> Tensor:
    """Return maps of noise (N, 1, H, W), each with a peak elsewhere: a max sees little else.

    Small maps get a peak on every pixel, larger ones on corners, edges and centre, huge ones on a
    corner.
    """
    height, width = size
    peaks = []
    if height * width <= 64:
        for i in range(height):
            for j in range(width):
                peaks.append((i, j))
    else:
        for i in sorted({0, height // 2, height - 1}):
            for j in sorted({0, width // 2, width - 1}):
                peaks.append((i, j))
        if height * width > 64**2:
            peaks = peaks[:1]
    maps = _noise(len(peaks), size)
    for one, (i, j) in zip(maps, peaks, strict=True):
        one[0, i, j] += PEAK
    return maps


def _noise(count: int, size: Size) -> Tensor:
    """Return normal noise (count, 1, H, W), always the same."""
    return torch.randn(count, 1, *size, generator=seeded(0), dtype=torch.float64, device="cpu")


def _kernel(size: Size) -> Tensor:
    """Return a random kernel (1, 1, rows, columns), symmetric if it is square."""
    kernel = _noise(1, size)
    if size[0] == size[1]:
        return average_over_d4(kernel)
    return kernel
