"""Quarter turns and flips are those of torch, bit for bit: for every size, dtype and memory layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

import ien
from tests.torture.tally import Tally

SHORT = (1, 2, 5, 8)
"""Sizes in ``make test``."""
FULL = range(1, 66)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16]
DTYPES += [torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]
"""All that torch itself can flip on a CPU."""
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every other pixel": lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)[..., ::2, ::2],
}


def by_torch(x: Tensor, element: int) -> Tensor:
    """Element ``element`` of rot4xflip with torch's own functions: every other one is mirrored first."""
    if element % 2:
        x = x.flip(3)
    return x.rot90(element // 2, (2, 3))


def pixels(size: int, dtype: torch.dtype) -> Tensor:
    """One image of two channels for each element, (8, 2, size, size), all of them different."""
    x = torch.randint(0, 100, (8, 2, size, size), generator=torch.Generator().manual_seed(size))
    return x.to(dtype)


def exact_for_all(sizes: Iterable[int]) -> Tally:
    """Compare all elements with torch's own functions, and their inverses with where they came from."""
    tally = Tally("quarter turns and flips: size × dtype × layout")
    group = ien.group("rot4xflip")
    elements = torch.arange(len(group))
    for size in sizes:
        for dtype in DTYPES:
            for layout, arranged in LAYOUTS.items():
                x = arranged(pixels(size, dtype))
                y = group.act(x, elements)
                expected = torch.cat([by_torch(x[i : i + 1], i) for i in range(len(group))])
                problem = None
                if y.dtype != dtype or not torch.equal(y, expected):
                    problem = "is not what torch makes of it"
                elif not torch.equal(group.act(y, elements, inverse=True), x):
                    problem = "does not come back"
                tally.add(f"{size} px, {dtype}, {layout}", problem)
    return tally


def test_quarter_turns_and_flips_are_exact() -> None:
    exact_for_all(SHORT).check(at_least=len(SHORT) * len(DTYPES) * len(LAYOUTS))
