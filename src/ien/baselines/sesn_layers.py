"""SESN's layers: convolutions with the same kernels at several scales (Sosnovik et al., 2020).

A kernel is a combination of fixed functions, κ_σ = Σ_b w_b ψ_σ,b, with the same weights w at every
scale σ, and ψ_σ is ψ_1 stretched by σ. A layer gives one map for each scale; these are the members
of a field. If the image grows by the factor from one scale to the next, the maps grow too and move
up by one scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Filters", "PointwiseConv2d", "ScaleConv2d", "hermite_basis"]

MAX_ORDER = 4  # of both directions together, in variant B


class Filters(NamedTuple):
    """Which functions the kernels are made of, and at which scales.

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
    """How much the envelope shrinks for each further set of functions (variant B), or None (A)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pixels of a kernel at each scale: in proportion to the scale, and odd."""
        sizes = []
        for scale in self.scales:
            pixels = int(self.size * scale / max(self.scales))
            sizes.append(pixels // 2 * 2 + 1)
        return tuple(sizes)

    @property
    def functions(self) -> int:
        """Weights of a kernel."""
        return self.effective_size**2


def hermite_basis(filters: Filters) -> list[Tensor]:
    """Sample Hermite polynomials under a Gaussian at each scale.

    Function (n, m) at scale σ is

        ψ(x, y) = He_n(x/σ) He_m(y/σ) exp(-(x² + y²) / 2σ²) / σ²

    divided by the norm that it has at the smallest scale, with x along a row of pixels and y down
    the rows. Variant A takes all orders n and m below ``effective_size``; variant B those with
    n + m ≤ 4, under the envelopes σ, σ/mult, σ/mult² and so on. m runs fastest, so published
    weights mean the same functions here.

    Returns:
        For each scale (functions, size, size) in float64.

    >>> filters = Filters((0.9, 1.27, 1.79), size=7, effective_size=3)
    >>> [tuple(basis.shape) for basis in hermite_basis(filters)]
    [(9, 3, 3), (9, 5, 5), (9, 7, 7)]
    """
    _check(filters)
    bases = []
    for scale, size in zip(filters.scales, filters.sizes, strict=True):
        x = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
        functions = []
        for n, m, sigma in _indices(filters, scale):
            along_x = _hermite(x / sigma, n)  # (size,)
            along_y = _hermite(x / sigma, m)[:, None]  # (size, 1)
            functions.append(along_y * along_x / sigma**2)  # (size, size)
        bases.append(torch.stack(functions))
    norms = bases[0].flatten(1).norm(dim=1).view(-1, 1, 1)  # (functions, 1, 1)
    return [basis / norms for basis in bases]


class ScaleConv2d(nn.Module):
    """A convolution with the same combinations of the basis at each scale.

    The output has fields with a channel for each scale. So has the input, and no scale sees another
    one, or it has plain channels if ``from_image``. Every forward pass expands the kernels, 1% of
    its work on a batch of 128 digits, so the state does not depend on the mode. Each scale is
    convolved by itself, with a kernel of its own size: up to 4 times faster than one call with the
    small kernels padded to the largest.

    Args:
        before: Fields of the input, or its channels if ``from_image``.
        after: Fields of the output.
        filters: The functions and scales.
        from_image: The input is an image, or maps without scales.
        stride: As in ``nn.Conv2d``.
        bias: Learn a bias for each field.

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
        self.filters = filters
        self.from_image = from_image
        self.stride = stride
        basis = _flat(hermite_basis(filters))  # checks the filters
        self.sizes = filters.sizes
        self.weight = nn.Parameter(torch.empty(after, before, filters.functions))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(after))  # one for each field
        # the basis is constant, so it has values even while the network is built on the meta device
        device = torch.device("cpu") if self.weight.is_meta else self.weight.device
        self.register_buffer("basis", basis.to(device, self.weight.dtype), persistent=False)

    def kernels(self) -> list[Tensor]:
        """Return the plain kernels, for each scale (after, before, size, size)."""
        return _split(self.weight @ self.basis, self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        scales = len(self.sizes)
        inputs: Sequence[Tensor] = [x] * scales
        if not self.from_image:
            inputs = x.unflatten(1, (-1, scales)).unbind(2)  # for each scale (B, before, H, W)
        maps = []
        for h, kernel, size in zip(inputs, self.kernels(), self.sizes, strict=True):
            maps.append(F.conv2d(h, kernel, self.bias, self.stride, size // 2))
        return torch.stack(maps, 2).flatten(1, 2)  # (B, after * scales, H, W)

    def extra_repr(self) -> str:
        after, before, functions = self.weight.shape
        scales = ", ".join(f"{scale:.3g}" for scale in self.filters.scales)
        inputs = f"{before}" if self.from_image else f"{before}×{len(self.sizes)}"
        return (
            f"{inputs}, {after}×{len(self.sizes)}, scales=({scales}), kernel_sizes={self.sizes}, "
            f"stride={self.stride}, basis={functions}, bias={self.bias is not None}"
        )


class PointwiseConv2d(nn.Module):
    """A 1×1 convolution from fields to fields, the same at each scale.

    >>> PointwiseConv2d(4, 8, scales=3, stride=2)(torch.rand(1, 12, 9, 9)).shape
    torch.Size([1, 24, 5, 5])
    """

    def __init__(self, before: int, after: int, scales: int, stride: int = 1) -> None:
        super().__init__()
        self.scales = scales
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(after, before, 1))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., :: self.stride, :: self.stride]  # (B, before * scales, H, W)
        tall = x.unflatten(1, (-1, self.scales)).flatten(2, 3)  # (B, before, scales * H, W): one tall map
        h = F.conv2d(tall, self.weight[..., None])  # (B, after, scales * H, W)
        return h.unflatten(2, (self.scales, -1)).flatten(1, 2)  # (B, after * scales, H, W)

    def extra_repr(self) -> str:
        after, before, _ = self.weight.shape
        return f"{before}×{self.scales}, {after}×{self.scales}, stride={self.stride}"


def _indices(filters: Filters, scale: float) -> Iterator[tuple[int, int, float]]:
    """Yield the order along x, the order along y and the envelope of each function."""
    if filters.mult is None:  # variant A
        for n in range(filters.effective_size):
            for m in range(filters.effective_size):
                yield n, m, scale
        return
    orders = []
    for n in range(MAX_ORDER + 1):
        for m in range(MAX_ORDER + 1 - n):
            orders.append((n, m))
    for k in range(filters.functions):
        shrunk, which = divmod(k, len(orders))
        n, m = orders[which]
        yield n, m, scale / filters.mult**shrunk


def _hermite(x: Tensor, order: int) -> Tensor:
    """He_order(x) exp(-x²/2), by the recurrence He_{n+1} = x He_n - n He_{n-1}."""
    before = torch.zeros_like(x)
    value = torch.exp(-(x**2) / 2)
    for n in range(order):
        following = x * value - n * before
        before, value = value, following
    return value


def _flat(bases: Sequence[Tensor]) -> Tensor:
    """Put the bases of all scales side by side: (functions, pixels of all sizes)."""
    return torch.cat([basis.flatten(1) for basis in bases], 1)


def _split(kernels: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Undo :func:`_flat`: kernels (after, before, size, size), one for each size."""
    parts = kernels.split([size * size for size in sizes], 2)
    split = []
    for part, size in zip(parts, sizes, strict=True):
        split.append(part.unflatten(2, (size, size)))
    return split


def _check(filters: Filters) -> None:
    scales = filters.scales
    ascending = all(smaller < larger for smaller, larger in pairwise(scales))
    # NaN fails these comparisons too
    if not (scales and scales[0] > 0 and scales[-1] < math.inf and ascending):
        raise ValueError(f"scales are positive and ascending, such as (1.5, 2.6, 4.5); got {scales}")
    if filters.size % 2 == 0 or filters.sizes[0] < 3:
        raise ValueError(
            f"kernels have an odd size, at least 3 pixels at the smallest scale; "
            f"got {filters.size}, which gives {filters.sizes} at scales {scales}"
        )
    if filters.mult is not None and not (math.isfinite(filters.mult) and filters.mult > 1):
        raise ValueError(f"mult shrinks the envelope, so it is above 1, such as 1.4; got {filters.mult}")
