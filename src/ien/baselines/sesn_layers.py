"""SESN's layers: scales and a basis in, convolutions out whose maps shift along the scales with the image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Filters", "PointwiseConv2d", "ScaleConv2d", "hermite_basis"]

MAX_ORDER = 4  # of both directions together, in variant B


class Filters(NamedTuple):
    """Of which functions the kernels are made, and at which scales.

    >>> Filters((1.5, 2.6, 4.5), size=15, mult=1.4).sizes
    (5, 9, 15)
    """

    scales: tuple[float, ...]
    """Widths of the Gaussian envelope in pixels, ascending."""
    size: int
    """Pixels of a kernel at the largest scale, odd."""
    effective_size: int = 7
    """A kernel has as many weights as a plain one of this size."""
    mult: float | None = None
    """Variant B: by how much the envelope shrinks for each further set of functions. None is variant A."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pixels of a kernel at each scale: as many standard deviations everywhere, up to whole pixels."""
        return tuple(int(self.size * scale / max(self.scales)) // 2 * 2 + 1 for scale in self.scales)

    @property
    def functions(self) -> int:
        return self.effective_size**2


def hermite_basis(filters: Filters) -> list[Tensor]:
    """Hermite polynomials under a Gaussian, for each scale (functions, size, size) in float64.

    Function ``(n, m)`` at scale σ is ``He_n(y/σ) He_m(x/σ) exp(-(x² + y²) / 2σ²) / σ²``, divided by the norm
    that it has at the smallest scale. Variant A takes all orders below ``effective_size``; B those of a sum
    up to 4, under the envelope σ, then σ/mult, σ/mult² and so on.

    >>> [tuple(b.shape) for b in hermite_basis(Filters((0.9, 1.27, 1.79), size=7, effective_size=3))]
    [(9, 3, 3), (9, 5, 5), (9, 7, 7)]
    """
    _check(filters)
    bases = []
    for scale, size in zip(filters.scales, filters.sizes, strict=True):
        x = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
        maps = [
            _hermite(x / sigma, n)[:, None] * _hermite(x / sigma, m) / sigma**2
            for n, m, sigma in _indices(filters, scale)
        ]
        bases.append(torch.stack(maps))
    norms = bases[0].flatten(1).norm(dim=1).view(-1, 1, 1)
    return [basis / norms for basis in bases]


class ScaleConv2d(nn.Module):
    """A convolution with the same combinations of the basis at each scale: each scale has its own maps.

    It gives fields with a channel for each scale and takes such too, no scale hearing another one, or,
    ``from_image``, plain channels. Every forward pass expands the kernels, 1% of its work on a batch of 128
    digits, so that the state does not depend on the mode. Scales are convolved one by one, each with a kernel
    of its own size: up to 4 times faster than one call with the small kernels padded to the largest.

    >>> conv = ScaleConv2d(3, 8, Filters((1.0, 2.0), size=7), from_image=True)
    >>> conv(torch.rand(1, 3, 9, 9)).shape
    torch.Size([1, 16, 9, 9])
    """

    basis: Tensor

    def __init__(
        self,
        before: int,
        after: int,
        filters: Filters,
        *,
        from_image: bool = False,
        stride: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.filters, self.from_image, self.stride = filters, from_image, stride
        bases = hermite_basis(filters)
        self.sizes = filters.sizes
        self.weight = nn.Parameter(torch.empty(after, before, filters.functions))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.bias = nn.Parameter(torch.zeros(after)) if bias else None  # one for each field
        basis = torch.cat([basis.flatten(1) for basis in bases], 1)  # (functions, pixels of all)
        # constants, so they have values on the meta device too
        device = torch.device("cpu") if self.weight.is_meta else self.weight.device
        self.register_buffer("basis", basis.to(device, self.weight.dtype), persistent=False)

    def kernels(self) -> list[Tensor]:
        """The plain kernels, for each scale (after, before, size, size)."""
        parts = (self.weight @ self.basis).split([n * n for n in self.sizes], 2)
        return [part.unflatten(2, (n, n)) for part, n in zip(parts, self.sizes, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        scales = len(self.sizes)
        inputs = [x] * scales if self.from_image else x.unflatten(1, (-1, scales)).unbind(2)
        maps = [
            F.conv2d(h, kernel, self.bias, self.stride, n // 2)
            for h, kernel, n in zip(inputs, self.kernels(), self.sizes, strict=True)
        ]
        return torch.stack(maps, 2).flatten(1, 2)

    def extra_repr(self) -> str:
        after, before, n = self.weight.shape
        scales = ", ".join(f"{scale:.3g}" for scale in self.filters.scales)
        return (
            f"{before}{'' if self.from_image else f'×{len(self.sizes)}'}, {after}×{len(self.sizes)}, "
            f"scales=({scales}), kernel_sizes={self.sizes}, stride={self.stride}, basis={n}, "
            f"bias={self.bias is not None}"
        )


class PointwiseConv2d(nn.Module):
    """A 1×1 convolution from fields to fields, the same at each scale.

    >>> PointwiseConv2d(4, 8, scales=3, stride=2)(torch.rand(1, 12, 9, 9)).shape
    torch.Size([1, 24, 5, 5])
    """

    def __init__(self, before: int, after: int, scales: int, stride: int = 1) -> None:
        super().__init__()
        self.scales, self.stride = scales, stride
        self.weight = nn.Parameter(torch.empty(after, before, 1))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., :: self.stride, :: self.stride]
        rows = x.unflatten(1, (-1, self.scales)).flatten(2, 3)  # the scales above each other: one tall map
        return F.conv2d(rows, self.weight[..., None]).unflatten(2, (self.scales, -1)).flatten(1, 2)

    def extra_repr(self) -> str:
        after, before, _ = self.weight.shape
        return f"{before}×{self.scales}, {after}×{self.scales}, stride={self.stride}"


def _indices(filters: Filters, scale: float) -> Iterator[tuple[int, int, float]]:
    """Order along y, order along x and envelope of each function."""
    if filters.mult is None:
        orders = range(filters.effective_size)
        yield from ((n, m, scale) for n in orders for m in orders)
        return
    pairs = [(n, m) for n in range(MAX_ORDER + 1) for m in range(MAX_ORDER + 1 - n)]
    for k in range(filters.functions):
        shrunk, which = divmod(k, len(pairs))
        yield *pairs[which], scale / filters.mult**shrunk


def _hermite(x: Tensor, order: int) -> Tensor:
    """He_order(x) exp(-x²/2), by the recurrence of the polynomials."""
    before, value = torch.zeros_like(x), torch.exp(-(x**2) / 2)
    for n in range(order):
        before, value = value, x * value - n * before
    return value


def _check(filters: Filters) -> None:
    scales = filters.scales
    if not (scales and scales[0] > 0 and scales[-1] < math.inf and all(a < b for a, b in pairwise(scales))):
        raise ValueError(f"scales are positive and ascending, such as (1.5, 2.6, 4.5); got {scales}")
    if filters.size % 2 == 0 or filters.sizes[0] < 3:
        raise ValueError(
            f"kernels have an odd size, at least 3 pixels at the smallest scale; "
            f"got {filters.size}, which gives {filters.sizes} at scales {scales}"
        )
    if filters.mult is not None and not (math.isfinite(filters.mult) and filters.mult > 1):
        raise ValueError(f"mult shrinks the envelope, so it is above 1, such as 1.4; got {filters.mult}")
