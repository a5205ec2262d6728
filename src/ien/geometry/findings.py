"""Explain: from steps that are not exact to a finding in words, with what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from .exactness import Size, Step, cost, exact, pair, size_after, stride, windows

__all__ = ["Finding", "explain"]


@dataclass(frozen=True)
class Finding:
    """One operation that quarter turns or flips do not pass through."""

    module: str
    """Dotted name of the module in which it ran; ``""`` is the model itself."""
    op: str
    """The operation in words, as in ``"conv 3×3, stride 2, padding 1"``."""
    size: tuple[int, int]
    """Height and width of the map that it met; 1 where there is none."""
    kind: str
    """``"grid"``, ``"position"``, ``"flatten"``, ``"kernel"``: it is fixed and not symmetric, ``"input"``, or
    ``"unknown"``: it could not be followed."""
    reason: str
    remedy: str
    cost: float | None = None
    """Relative error that the operation alone makes on noise, for the worst element; None: not defined.

    A large map is tried with the rows and columns far from its edges left out.
    """
    shift: float | None = None
    """How far it moves the centre of the grid, in pixels of the input; None: not defined."""
    times: int = 1
    """How often the module does this, give or take a number: a loop over rows slices every one."""


def explain(steps: tuple[Step, ...], size: Size, module: str, pitch: float) -> Finding:
    """What to say about steps that are not exact; ``pitch`` is the pixels of the input in one of the map."""
    sizes = _sizes(steps, size)
    reason, remedy = _reason(steps[0], sizes[0], sizes[1])
    return Finding(
        module=module,
        op=", then ".join(_text(*each) for each in zip(steps, sizes, sizes[1:], strict=False)),
        size=size,
        kind="grid",
        reason=reason,
        remedy=remedy,
        cost=cost(steps, size),
        shift=_shift(steps, sizes, pitch),
    )


def _sizes(steps: tuple[Step, ...], size: Size) -> list[Size]:
    """The size before each step, and after the last."""
    sizes = [size]
    for step in steps:
        sizes.append(size_after(step, sizes[-1]))
    return sizes


def _shift(steps: tuple[Step, ...], sizes: list[Size], pitch: float) -> float | None:
    total, scale = [0.0, 0.0], pitch
    for step, before, after in zip(steps, sizes, sizes[1:], strict=False):
        for i in (0, 1):
            moved = _moved(step, i, before[i], after[i])
            if moved is None:
                return None
            total[i] += moved * scale
        scale *= stride(step, before, after)
    return max(map(abs, total))


def _moved(step: Step, i: int, n: int, m: int) -> float | None:
    """How far the centre of one axis moves, in pixels of the map before."""
    args = dict(step.args)
    if step.kind in ("conv", "pool"):
        k, s, p, d = (value[i] for value in windows(step))
        if args.get("transposed"):
            return ((m - 1) / 2 + p - d * (k - 1) / 2) / s - (n - 1) / 2
        return ((m - 1) * s + d * (k - 1)) / 2 - p - (n - 1) / 2
    if step.kind == "slice":
        if args["dim"] != 2 + i:
            return 0.0
        return args["start"] + (m - 1) * args["step"] / 2 - (n - 1) / 2
    if step.kind == "pad":
        left, right = args["pad"][2:] if i == 0 else args["pad"][:2]
        return (right - left) / 2
    return None


def _times(pair: Size) -> str:
    return f"{pair[0]}×{pair[1]}"


def _short(pair: Size) -> str:
    return str(pair[0]) if pair[0] == pair[1] else _times(pair)


def _text(step: Step, before: Size, after: Size) -> str:
    """The step in words."""
    args, name = dict(step.args), step.func.__name__.split(".")[0]
    if step.kind in ("conv", "pool"):
        kernel, stride, padding, dilation = windows(step)
        words = {"conv": "transposed conv" if args.get("transposed") else "conv"}
        words["pool"] = "avg pool" if "avg" in name else "max pool"
        text = f"{words[step.kind]} {_times(kernel)}, stride {_short(stride)}, padding {_short(padding)}"
        text += f", dilation {_short(dilation)}" if dilation != (1, 1) else ""
        extra = pair(args.get("output_padding", 0))
        text += f", output_padding {_short(extra)}" if any(extra) else ""
        return text + (", ceil_mode" if args.get("ceil_mode") else "")
    if step.kind == "resize":
        return f"{_resize_mode(step)} {_times(before)} → {_times(after)}"
    if step.kind == "pad":
        left, right, top, bottom = args["pad"]
        return f"{args['mode']} padding: left {left}, right {right}, top {top}, bottom {bottom}"
    if step.kind == "repeat":
        return f"repeat {_times(before)} → {_times(after)}"
    dims = args.get("dim", args.get("dims"))
    axis = {2: "rows", 3: "columns"}.get(pair(dims)[0], "") if pair(dims)[0] == pair(dims)[1] else "both"
    if step.kind == "move":
        by = f" by {', '.join(map(str, args['shifts']))}" if "shifts" in args else ""
        return f"{name} of {axis}{by}"
    if step.kind == "slice":
        by = f":{args['step']}" if args["step"] > 1 else ""
        return f"slice {args['start']}:{args['stop']}{by} of {before[args['dim'] - 2]} {axis}"
    return f"{name} over {axis}"


def _resize_mode(step: Step) -> str:
    name = step.func.__name__.split(".")[0]
    if "adaptive" in name:
        return f"adaptive {'avg' if 'avg' in name else 'max'} pool"
    modes = ("nearest_exact", "nearest", "bilinear", "bicubic")
    return next((mode.replace("_", "-") for mode in modes if mode in name), name) + " resize"


def _reason(step: Step, before: Size, after: Size) -> tuple[str, str]:
    """Why it is not exact, and what helps."""
    uneven = "rows and columns are treated differently", "the same for rows and columns"
    if step.kind in ("conv", "pool"):
        k = max(windows(step)[0])
        remedy = f"a kernel {k}×{k}, with stride, padding and dilation the same for rows and columns"
        return _window_reason(step, before) if _is_square(step) else (uneven[0], remedy)
    if step.kind == "resize":
        return _resize_reason(step, before, after) if after[0] == after[1] else uneven
    if step.kind == "pad":
        return "the edges are padded differently", "pad all four sides alike"
    if step.kind == "slice":
        return "more is cut off at one edge than at the other", "cut all four edges alike"
    if step.kind == "repeat":
        return "rows and columns are not repeated alike", "repeat both alike"
    if step.kind == "move":
        return "it moves the map to one side, or turns one axis round", "leave the map in place"
    return uneven


def _is_square(step: Step) -> bool:
    extra = pair(dict(step.args).get("output_padding", 0))
    return all(value[0] == value[1] for value in (*windows(step), extra))


def _window_reason(step: Step, before: Size) -> tuple[str, str]:
    args = dict(step.args)
    k, s, p, d = (value[0] for value in windows(step))
    if args.get("transposed"):
        return "output_padding adds at one edge only", "output_padding=0, as with a kernel 2×2 or 4×4"
    totals = [n + 2 * p - d * (k - 1) - 1 for n in before]
    remedy = _fitting_sizes(step, before, s) or "a padding that fits the kernel"
    if not any(total % s for total in totals):
        return "its windows do not lie symmetrically on the map", remedy
    n, total = next((n, total) for n, total in zip(before, totals, strict=True) if total % s)
    reason = f"{n} + 2·{p} − {d}·({k}−1) − 1 = {total} is not divisible by the stride {s}"
    return reason + (": ceil_mode reaches over one edge" if args.get("ceil_mode") else ""), remedy


def _fitting_sizes(step: Step, before: Size, reach: int) -> str:
    """The nearest sizes of the map at which the step is exact; of a map that is not square, for each axis."""
    near = []
    for n, axis in zip(before, ("rows", "columns"), strict=True):
        fits = [m for m in range(max(n - reach, 1), n + reach + 1) if _is_exact_at(step, m)]
        if fits and n not in fits:
            near.append((" or ".join(map(str, fits)), axis))
    if before[0] == before[1]:
        return f"a map of {near[0][0]}" if near else ""
    return ", ".join(f"{sizes} {axis}" for sizes, axis in near)


def _is_exact_at(step: Step, n: int) -> bool:
    try:
        return exact((step,), (n, n))
    except RuntimeError:  # too small for the kernel
        return False


def _resize_reason(step: Step, before: Size, after: Size) -> tuple[str, str]:
    args, (n, m) = dict(step.args), (before[0], after[0])
    scale = args.get("scales_h")
    if scale and n * scale != m:
        return f"{n} × {scale:g} = {n * scale:g} is not whole", "pass size=…, not scale_factor"
    return (
        f"{n} → {m} is no whole ratio upwards: it picks pixels to one side",
        "mode='bilinear', or a whole ratio upwards",
    )
