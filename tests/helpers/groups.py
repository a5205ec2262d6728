"""Groups to test with, and comparisons that are exact or near."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ien import Group, custom, reflection, rotation


def each(names: str, values: Iterable) -> pytest.MarkDecorator:
    def name(value: object) -> str | None:
        if isinstance(value, list) and any(map(callable, value)):
            return f"{len(value)} functions"  # their addresses differ from run to run
        return str(value) if isinstance(value, Group | torch.dtype | torch.memory_format | list) else None

    return pytest.mark.parametrize(names, values, ids=name)


def hide_left(x: Tensor) -> Tensor:
    return x * (torch.arange(x.shape[-1]) >= x.shape[-1] // 2)


D4, FLIP, VFLIP = rotation(4) * reflection(), reflection(), reflection("vertical")
HIDE = custom("hide", {"hide left": hide_left}, feature_actions="same")
GROUPS = [FLIP, VFLIP, FLIP * VFLIP]
GROUPS += [moving for n in range(1, 13) for moving in (rotation(n), rotation(n) * FLIP)]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert_close(actual, expected, rtol=0, atol=tolerance)
