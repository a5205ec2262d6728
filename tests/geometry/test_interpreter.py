"""Every operation is seen, wherever it runs, and what no rule covers is never called exact."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ien.geometry import interpreter
from tests.helpers.symmetrised import Fn, diagnosed, measured_exact, net, strided


@pytest.mark.parametrize("random", [torch.rand_like, lambda x: torch.ones_like(x).uniform_()])
def test_random_values_are_never_called_exact(random) -> None:
    model = net(lambda x: x * random(x))
    torch.manual_seed(0)
    assert not diagnosed(model, 8).exact and not measured_exact(model, 8)


class Slotted:
    __slots__ = ("maps",)

    def __init__(self, maps) -> None:
        self.maps = maps


def cyclic(y):
    output = [y]
    output.append(SimpleNamespace(output=output))
    return output


@pytest.mark.parametrize(
    "container",
    [
        lambda y: {"a": y}.values(),
        lambda y: (each for each in [y]),
        lambda y: deque([y]),
        lambda y: (None, {"a": [{"b": SimpleNamespace(maps=(y,))}]}),
        Slotted,
        cyclic,
    ],
)
def test_tensors_are_found_in_whatever_the_model_returns(container) -> None:
    model = Fn(lambda x, f: container(f(x)), strided(3))
    assert [f.kind for f in diagnosed(model, 8).findings] == ["grid"]
    assert diagnosed(model, 9).exact


def test_a_map_that_leaves_the_model_is_unknown_and_leaves_no_trace() -> None:
    kept = torch.zeros(2, 3, 8, 8)
    found = diagnosed(Fn(lambda x: kept.copy_(x[..., 1:].repeat(1, 1, 1, 2)[..., :8]) + x), 8)
    assert "unknown" in {f.kind for f in found.findings} and not kept.any()


def test_a_variant_that_its_rule_does_not_cover_is_unknown(monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("dims")

    monkeypatch.setitem(interpreter.RULES, "permute", fails)
    found = diagnosed(Fn(lambda x: x.permute(0, 1, 2, 3)), 8)
    assert [(f.op, f.kind) for f in found.findings] == [("permute", "unknown")]


def test_functional_calls_are_named_by_the_module_they_ran_in() -> None:
    inner = nn.Sequential(Fn(lambda x: F.max_pool2d(x, 2)), Fn(lambda x: x[:, :, 1:]))
    found = diagnosed(nn.Sequential(nn.Identity(), inner), 9)
    assert [f.module for f in found.findings] == ["1.0", "1.1"]
    assert diagnosed(inner[0], 9).findings[0].module == ""
