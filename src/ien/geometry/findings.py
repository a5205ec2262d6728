"""Findings: what the doctor says about steps that are not exact: reason, remedy, cost and shift."""

from __future__ import annotations

from dataclasses import dataclass

from .exactness import Size, Step, cost, is_exact, rows_and_columns, size_after, stride_of, window_of

__all__ = ["Finding", "explain"]

RESIZE_MODES = ("nearest_exact", "nearest", "bilinear", "bicubic")


@dataclass(frozen=True)
class Finding:
    """One operation that breaks quarter turns or flips, as :func:`ien.doctor` reports it.

    Do not read it as a measurement: ``cost`` is what the operation does to noise, not to your
    images. Use :func:`ien.measure` for those.

    >>> import ien
    >>> from torch import nn
    >>> finding = ien.doctor(nn.MaxPool2d(2), (3, 9, 9)).findings[0]
    >>> finding.op, finding.remedy
    ('max pool 2×2, stride 2, padding 0', 'a map of 8 or 10')
    """

    module: str
    """Dotted name of the module in which the operation ran; ``""`` is the model itself."""
    op: str
    """The operation in words, for example ``"conv 3×3, stride 2, padding 1"``."""
    size: tuple[int, int]
    """Height and width of the map that the operation received; 1 where there is none."""
    kind: str
    """What is wrong.

    ``"grid"``: strides, padding or slices do not fit the size of the map; ``"position"``: values
    that differ from place to place, such as a position embedding; ``"flatten"``: a linear layer on
    a flattened map; ``"kernel"``: a fixed kernel that is not symmetric; ``"input"``: the input is
    not square; ``"unknown"``: the doctor cannot follow the operation.
    """
    reason: str
    """Why it is not exact."""
    remedy: str
    """What to do about it."""
    cost: float | None = None
    """Relative error of this operation alone on noise, for the worst element; None: not defined.

    Large maps are tried without most of their inside.
    """
    shift: float | None = None
    """How far the operation moves the centre of the grid, in input pixels; None: not defined."""
    times: int = 1
    """How often the module does this, up to numbers in ``op``: a loop over rows slices each one."""


def explain(steps: tuple[Step, ...], size: Size, module: str, pitch: float) -> Finding:
    """Return the finding for steps that are not exact; ``pitch``: input pixels per map pixel."""
    sizes = [size]  # before each step, and after the last
    for step in steps:
        sizes.append(size_after(step, sizes[-1]))
    words = []
    for step, before, after in zip(steps, sizes[:-1], sizes[1:], strict=True):
        words.append(_in_words(step, before, after))
    # the first step is to blame: those after it were tried as repairs
    reason, remedy = _reason_and_remedy(steps[0], sizes[0], sizes[1])
    return Finding(
        module=module,
        op=", then ".join(words),
        size=size,
        kind="grid",
        reason=reason,
        remedy=remedy,
        cost=cost(steps, size),
        shift=_shift(steps, sizes, pitch),
    )


# --- how far the centre of the grid moves


def _shift(steps: tuple[Step, ...], sizes: list[Size], pitch: float) -> float | None:
    """Return the shift along the axis that moves more, in input pixels."""
    shifts = []
    for axis in (0, 1):
        total = 0.0
        scale = pitch  # input pixels per pixel of the map before the step
        for step, before, after in zip(steps, sizes[:-1], sizes[1:], strict=True):
            shift = _shift_of_step(step, axis, before[axis], after[axis])
            if shift is None:
                return None
            total += shift * scale
            scale *= stride_of(step, before, after)
        shifts.append(abs(total))
    return max(shifts)


def _shift_of_step(step: Step, axis: int, before: int, after: int) -> float | None:
    """Return how far the centre of an axis moves, in pixels of the map before, if defined."""
    args = dict(step.args)
    if step.kind in ("conv", "pool"):
        k, s, p, d = (value[axis] for value in window_of(step))
        if step.is_transposed:
            # output pixel j lies at (j + p - d (k-1)/2) / s of the input
            centre = ((after - 1) / 2 + p - d * (k - 1) / 2) / s
            return centre - (before - 1) / 2
        # window i is centred on s i + d (k-1)/2 - p
        centre = ((after - 1) * s + d * (k - 1)) / 2 - p
        return centre - (before - 1) / 2
    if step.kind == "slice":
        if args["dim"] != 2 + axis:
            return 0.0
        centre = args["start"] + (after - 1) * args["step"] / 2
        return centre - (before - 1) / 2
    if step.kind == "pad":
        left, right, top, bottom = args["pad"]
        if axis == 0:
            return (bottom - top) / 2
        return (right - left) / 2
    return None


# --- the operation in words


def _in_words(step: Step, before: Size, after: Size) -> str:
    args = dict(step.args)
    name = _name(step)
    if step.kind in ("conv", "pool"):
        return _window_in_words(step)
    if step.kind == "resize":
        return f"{_resize_in_words(name)} {_by(before)} → {_by(after)}"
    if step.kind == "pad":
        left, right, top, bottom = args["pad"]
        return f"{args['mode']} padding: left {left}, right {right}, top {top}, bottom {bottom}"
    if step.kind == "repeat":
        return f"repeat {_by(before)} → {_by(after)}"
    if step.kind == "move":
        words = f"{name} of {_axis_in_words(args['dims'])}"
        if "shifts" in args:
            shifts = ", ".join(map(str, args["shifts"]))
            words += f" by {shifts}"
        return words
    axis = _axis_in_words(args["dim"])
    if step.kind == "slice":
        bounds = f"{args['start']}:{args['stop']}"
        if args["step"] > 1:
            bounds += f":{args['step']}"
        count = before[args["dim"] - 2]
        return f"slice {bounds} of {count} {axis}"
    return f"{name} over {axis}"


def _window_in_words(step: Step) -> str:
    args = dict(step.args)
    if step.kind == "pool":
        name = "avg pool" if "avg" in _name(step) else "max pool"
    elif step.is_transposed:
        name = "transposed conv"
    else:
        name = "conv"
    kernel, stride, padding, dilation = window_of(step)
    words = [f"{name} {_by(kernel)}", f"stride {_short(stride)}", f"padding {_short(padding)}"]
    if dilation != (1, 1):
        words.append(f"dilation {_short(dilation)}")
    output_padding = rows_and_columns(args.get("output_padding", 0))
    if any(output_padding):
        words.append(f"output_padding {_short(output_padding)}")
    if args.get("ceil_mode"):
        words.append("ceil_mode")
    return ", ".join(words)


def _resize_in_words(name: str) -> str:
    if "adaptive" in name:
        return "adaptive avg pool" if "avg" in name else "adaptive max pool"
    for mode in RESIZE_MODES:
        if mode in name:
            return mode.replace("_", "-") + " resize"
    return f"{name} resize"


def _axis_in_words(dims: int | tuple[int, ...]) -> str:
    first, last = rows_and_columns(dims)
    if first != last:
        return "both"
    return {2: "rows", 3: "columns"}.get(first, "")


def _name(step: Step) -> str:
    """Return the name of the function, without torch's name for the variant of its arguments."""
    return step.func.__name__.split(".")[0]


def _by(size: Size) -> str:
    return f"{size[0]}×{size[1]}"


def _short(size: Size) -> str:
    if size[0] == size[1]:
        return str(size[0])
    return _by(size)


# --- why, and what to do


def _reason_and_remedy(step: Step, before: Size, after: Size) -> tuple[str, str]:
    if step.kind in ("conv", "pool"):
        if _is_same_for_both_axes(step):
            return _window_reason(step, before)
        k = max(window_of(step).kernel)
        remedy = f"use a {k}×{k} kernel, with the same stride, padding and dilation for rows and columns"
        return "rows and columns are treated differently", remedy
    if step.kind == "resize" and after[0] == after[1]:
        return _resize_reason(step, before[0], after[0])
    if step.kind == "pad":
        return "the edges are padded differently", "pad all four sides alike"
    if step.kind == "slice":
        return "more is cut off at one edge than at the other", "cut all four edges alike"
    if step.kind == "repeat":
        return "rows and columns are repeated differently", "repeat both the same way"
    if step.kind == "move":
        return "it moves the map to one side, or reverses one axis", "leave the map in place"
    return "rows and columns are treated differently", "treat both the same way"


def _is_same_for_both_axes(step: Step) -> bool:
    output_padding = rows_and_columns(dict(step.args).get("output_padding", 0))
    for rows, columns in (*window_of(step), output_padding):
        if rows != columns:
            return False
    return True


def _window_reason(step: Step, before: Size) -> tuple[str, str]:
    """Return reason and remedy; exact is a stride that divides n + 2 p - d (k - 1) - 1."""
    if step.is_transposed:
        return (
            "output_padding adds at one edge only",
            "use output_padding=0, for example with a 2×2 or 4×4 kernel",
        )
    k, s, p, d = (value[0] for value in window_of(step))
    remedy = _fitting_sizes(step, before, s) or "use a padding that fits the kernel"
    for n in before:
        room = n + 2 * p - d * (k - 1) - 1
        if room % s:
            reason = f"{n} + 2·{p} − {d}·({k}−1) − 1 = {room} is not divisible by the stride {s}"
            if dict(step.args).get("ceil_mode"):
                reason += ": ceil_mode reaches over one edge"
            return reason, remedy
    return "its windows do not lie symmetrically on the map", remedy


def _fitting_sizes(step: Step, before: Size, reach: int) -> str:
    """Return the nearest map sizes at which the step is exact; per axis if not square."""
    # within one stride there is a size that fits, unless the step is not symmetric at any
    fitting = {}
    for axis, n in (("rows", before[0]), ("columns", before[1])):
        nearby = range(max(n - reach, 1), n + reach + 1)
        sizes = [m for m in nearby if _is_exact_at(step, m)]
        if sizes and n not in sizes:
            fitting[axis] = " or ".join(map(str, sizes))
    if not fitting:
        return ""
    if before[0] == before[1]:
        return f"a map of {fitting['rows']}"
    return ", ".join(f"{sizes} {axis}" for axis, sizes in fitting.items())


def _is_exact_at(step: Step, n: int) -> bool:
    try:
        return is_exact((step,), (n, n))
    except RuntimeError:  # too small for the kernel
        return False


def _resize_reason(step: Step, before: int, after: int) -> tuple[str, str]:
    scale = dict(step.args).get("scales_h")
    # torch rounds the size, but samples with the scale as it is given
    if scale and before * scale != after:
        reason = f"{before} × {scale:g} = {before * scale:g} is not a whole number"
        return reason, "pass size=…, not scale_factor"
    reason = f"{before} → {after} does not enlarge by a whole factor, so it picks pixels to one side"
    return reason, "use mode='bilinear', or enlarge by a whole factor"
