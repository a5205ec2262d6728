"""The model is left as it was, whatever it does and however it fails."""

import copy
from collections import Counter, deque
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import ien
from ien import doctor
from tests.helpers.parametrized import (
    with_pooled_norms,
    with_spectral_norm,
    with_symmetric,
    with_weight_norm,
)
from tests.helpers.symmetrised import Fn, diagnosed, strided

OUTSIDE = torch.zeros(3)


class Restless(nn.Module):
    """Everything that a forward pass may change in a model."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.fails = strided(3), nn.BatchNorm2d(3), fails
        self.register_buffer("count", torch.zeros(1))
        self.calls, self.grid, self.mean = 0, None, torch.zeros(3, 1, 1)
        self.held = {"list": [torch.zeros(1)], "tuple": ([], 0)}
        self.last, self.counts = deque(maxlen=2), Counter()
        self.state = SimpleNamespace(last=None, mean=torch.zeros(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.grid = torch.linspace(0, 1, x.shape[-1])
        for tensor in (self.count, self.mean, self.held["list"][0], self.state.mean, OUTSIDE):
            tensor.add_(1)
        for held in (self.held["list"], self.held["tuple"][0], self.last):
            held.append(x)
        self.held["new"] = self.state.last = x
        self.counts["forward"] += 1
        if self.fails:
            raise RuntimeError("no")
        return self.norm(self.conv(x * self.mean + self.grid)) + torch.rand(1)


def snapshot(value):
    """Everything in it by identity and value; tensors also by their attributes."""
    if isinstance(value, Tensor):
        return type(value), id(value), value.tolist(), dict(vars(value))
    if isinstance(value, nn.Module | SimpleNamespace):
        return id(value), snapshot(vars(value))
    if isinstance(value, dict):
        return type(value), id(value), {key: snapshot(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return type(value), id(value), [snapshot(each) for each in value]
    return copy.copy(value)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_untouched(fails: bool) -> None:
    model = nn.Sequential(Restless(fails), nn.Dropout()).train()
    model[1].eval()
    seen = []
    model[0].conv.register_forward_hook(lambda *_: seen.append("own hook"))
    before = snapshot([model, OUTSIDE])[2]
    rng, fastpath = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    if fails:
        with pytest.raises(ValueError, match="no"):
            doctor(model, (3, 8, 8))
    else:
        doctor(model, (3, 8, 8))
    assert not seen and snapshot([model, OUTSIDE])[2] == before and model[0].last.maxlen == 2
    assert torch.equal(torch.get_rng_state(), rng) and torch.backends.mha.get_fastpath_enabled() == fastpath
    if not fails:  # the snapshot sees what a forward pass changes
        model(torch.rand(2, 3, 8, 8))
        assert snapshot([model, OUTSIDE])[2] != before
        OUTSIDE.zero_()


def test_a_model_may_hold_tensors_of_any_kind() -> None:
    model = strided(3)
    ragged = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged)
    held = [torch.eye(3).to_sparse(), torch.tensor(1), ragged]
    model.held = list(held)
    assert not doctor(model, (3, 8, 8)).exact
    assert all(a is b for a, b in zip(model.held, held, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import of its compiler
def test_a_compiled_or_parallel_model_is_seen_through() -> None:
    inner = nn.Sequential(torch.compile(strided(3)), nn.ReLU())
    model = nn.DataParallel(inner)
    assert [f.module for f in doctor(model, (3, 8, 8)).findings] == ["0"]
    assert model.module is inner and hasattr(inner[0], "_orig_mod")


def contents(model: nn.Module) -> list:
    """The attributes of all modules, which are the same objects if nothing has changed."""
    found = []
    for name, module in model.named_modules():
        attributes = vars(module) | module._parameters | module._buffers
        found.append((name, type(module), {key: id(value) for key, value in attributes.items()}))
    return found


def with_tied_weights(model: nn.Module) -> nn.Module:
    tied = copy.deepcopy(model)
    ien.make_equivariant(tied, "rot4", torch.rand(2, 3, 9, 9))
    return tied


@pytest.mark.parametrize(
    "change", [with_symmetric, with_weight_norm, with_spectral_norm, with_pooled_norms, with_tied_weights]
)
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("size", [8, 9])
def test_weights_that_are_computed_from_others_change_nothing(change, norm, size) -> None:
    """Nor do norms of another class; the search for sizes has the same budget."""
    pool, flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers = [nn.Conv2d(3, 24, 3), norm(24), nn.ReLU(), strided(24), pool, flat, nn.Linear(24, 4)]
    plain = nn.Sequential(*layers)
    model = change(plain).train()
    before = contents(model)
    assert doctor(model, (3, size, size)) == doctor(plain, (3, size, size))
    assert contents(model) == before
    assert [f.module for f in diagnosed(model, size).findings] == ["3"] * (size == 8)


READS_VALUES = "reads tensor values"
OTHER_INPUTS = "wrap it in a module that takes one batch of images"
LAZY = "is lazy and not initialised yet: run the model once"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on scripting
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: nn.Conv2d(4, 3, 3), r"the model fails on an input \(2, 3, 8, 8\)"),
        (lambda: Fn(lambda x: None), "returns no tensor: it must return one"),
        (lambda: Fn(lambda x: x * x.mean().item()), READS_VALUES),
        (lambda: Fn(lambda x: x if x.sum() > 0 else -x), READS_VALUES),
        (lambda: Fn(lambda x: x[x > 0]), READS_VALUES),
        (lambda: nn.Sequential(nn.LazyConv2d(2, 3)), f"module '0' {LAZY}"),
        (lambda: nn.LazyBatchNorm2d(affine=False), f"the model {LAZY}"),
        (lambda: nn.Bilinear(3, 3, 3), OTHER_INPUTS),
        (lambda: nn.Embedding(5, 3), OTHER_INPUTS),
        (lambda: torch.jit.script(nn.Conv2d(3, 3, 3)), "the model is scripted.*: pass the model from before"),
    ],
)
def test_a_model_that_cannot_be_run_is_a_clear_error(build, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        doctor(build(), (3, 8, 8))
    assert "\n" not in str(caught.value)
