"""Weights that stay tied: against a network that has each of them once, and under any optimizer."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import ien
from ien.groups.members import channel_table, num_channels
from ien.tying.projection import Tie

pytestmark = pytest.mark.usefixtures("one_thread")


def network(members: int = 4, **conv: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2 * members, 3, **conv),
        nn.BatchNorm2d(2 * members),
        nn.ReLU(),
        nn.Conv2d(2 * members, 3 * members, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3 * members, 5),
    )


def images(count: int = 8, size: int = 11, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6) -> None:
    model.train()
    for step in range(steps):
        x = images(seed=step + 1)
        loss = F.cross_entropy(model(x), torch.arange(len(x)) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def error(model: nn.Module, group: str, members: int) -> float:
    """The larger error of the second convolution's maps and of the output under quarter turns and flips."""
    x = images(seed=99)
    report = ien.measure(model, x, group, ["4"], members, floors=False, action="regular")
    with torch.no_grad():
        difference = model(x) - model(x.rot90(1, (-2, -1)))
    return max(report.layers["4"].exact or 0.0, float(difference.square().mean()))


class Written(nn.Module):
    """:func:`network` without BatchNorm under quarter turns, each weight once: written out with rot90."""

    def __init__(self, tied: nn.Sequential) -> None:
        super().__init__()
        first, second, last = tied[0], tied[2], tied[6]
        self.first = nn.Parameter(first.weight.detach()[::4].clone())
        self.first_bias = nn.Parameter(first.bias.detach()[::4].clone())
        self.second = nn.Parameter(second.weight.detach()[::4].clone())
        self.second_bias = nn.Parameter(second.bias.detach()[::4].clone())
        self.last = nn.Parameter(last.weight.detach()[:, ::4].clone())
        self.last_bias = nn.Parameter(last.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        first = torch.stack([self.first.rot90(m, (-2, -1)) for m in range(4)], 1).flatten(0, 1)
        turned = []
        for m in range(4):
            inner = self.second.unflatten(1, (-1, 4)).roll(m, 2).flatten(1, 2)
            turned.append(inner.rot90(m, (-2, -1)))
        second = torch.stack(turned, 1).flatten(0, 1)
        h = F.conv2d(x, first, self.first_bias.repeat_interleave(4)).relu()
        h = F.conv2d(h, second, self.second_bias.repeat_interleave(4)).relu()
        return F.linear(h.mean((2, 3)), self.last.repeat_interleave(4, 1), self.last_bias)


def test_sgd_takes_the_steps_of_a_network_that_has_each_weight_once() -> None:
    torch.manual_seed(0)
    layers = [layer for layer in network() if not isinstance(layer, nn.BatchNorm2d)]
    tied = nn.Sequential(*layers).double()
    start = ien.start_equivariant(tied, "rot4", 4, images().double())
    once, first = Written(tied), [weight.detach().clone() for weight in tied.parameters()]
    torch.testing.assert_close(once(images().double()), tied(images().double()))
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.4)
    ien.keep_equivariant(start, optimizer)
    # a weight in four places has four times the mean gradient of its places; the last bias has one place
    single = [once.last_bias]
    shared = [weight for weight in once.parameters() if weight is not once.last_bias]
    other = torch.optim.SGD([{"params": shared, "lr": 0.1}, {"params": single, "lr": 0.4}])
    for step in range(5):
        x, y = images(seed=step).double(), torch.arange(8) % 5
        for model, its in ((tied, optimizer), (once, other)):
            its.zero_grad()
            F.cross_entropy(model(x), y).backward()
            its.step()
    fresh = images(seed=50).double()
    torch.testing.assert_close(tied(fresh), once(fresh))
    assert all((now - then).abs().max() > 1e-3 for now, then in zip(tied.parameters(), first, strict=True))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "Adafactor, which treats no number by itself": lambda weights: torch.optim.Adafactor(weights, lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot4xflip", 8), ("rot8", 8)])
def test_every_step_leaves_the_network_equivariant(name: str, group: str, members: int) -> None:
    torch.manual_seed(0)
    free, kept = (network(members) for _ in range(2))
    kept.load_state_dict(free.state_dict())
    for model, keep in ((free, False), (kept, True)):
        start = ien.start_equivariant(model, group, members, images())
        optimizer = OPTIMIZERS[name](model.parameters())
        if keep:
            ien.keep_equivariant(start, optimizer)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        train(model, optimizer)
        assert not any(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert error(kept, group, members) < 1e-9 < 1e-4 < error(free, group, members)


def test_what_turns_by_an_eighth_stays_as_good_as_it_starts() -> None:
    torch.manual_seed(0)
    model = network(8)
    start = ien.start_equivariant(model, "rot8", 8, images())
    first = ien.measure(model, images(seed=99), "rot8", ["4"], 8, floors=False, action="regular")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 20)
    last = ien.measure(model, images(seed=99), "rot8", ["4"], 8, floors=False, action="regular")
    assert last.layers["4"].relative < 2 * first.layers["4"].relative < 0.5


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1)])
def test_transposed_grouped_and_linear_layers_and_layer_scales_stay_tied(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(shape))

        def forward(self, h: Tensor) -> Tensor:
            return h * self.scale

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        Scaled(),
        nn.ConvTranspose2d(8, 8, 3),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    start = ien.start_equivariant(model, "rot4", 4, images())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert error(model, "rot4", 4) < 1e-9


def test_buffers_are_those_that_the_model_has_now() -> None:
    torch.manual_seed(0)
    model = network()
    start = ien.start_equivariant(model, "rot4", 4, images())
    model[1].running_mean = model[1].running_mean.clone()  # as .to(device) does
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert error(model, "rot4", 4) < 1e-9


def test_what_learns_later_is_kept_as_well() -> None:
    torch.manual_seed(0)
    model = network()
    start = ien.start_equivariant(model, "rot4", 4, images())
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = torch.optim.Adam(model[7].parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert torch.equal(model[0].weight, frozen) and error(model, "rot4", 4) < 1e-9
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[3].parameters()]})
    train(model, optimizer)
    assert not torch.equal(model[0].weight, frozen) and error(model, "rot4", 4) < 1e-9


@pytest.mark.parametrize("when", ["before", "loaded"])
def test_the_past_of_an_optimizer_does_not_break_it(when: str) -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer)
    past = copy.deepcopy(optimizer.state_dict())
    start = ien.start_equivariant(model, "rot4", 4, images(), weights="project")
    if when == "loaded":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    if when == "loaded":
        optimizer.load_state_dict(past)
    train(model, optimizer)
    assert error(model, "rot4", 4) < 1e-9


@pytest.mark.parametrize(
    "kind", [partial(torch.optim.LBFGS, max_iter=5), torch.optim.SGD], ids=["LBFGS", "SGD"]
)
@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_steps_with_a_closure_average_the_gradients_that_it_computes(kind, group, members) -> None:
    torch.manual_seed(0)
    model = network(members)
    start = ien.start_equivariant(model, group, members, images())
    optimizer = kind(model.parameters(), lr=0.1)
    ien.keep_equivariant(start, optimizer)
    first = model[3].weight.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images()), torch.arange(8) % 5)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    assert losses[-1] < losses[0] and not torch.equal(model[3].weight, first)
    assert error(model.eval(), group, members) < 1e-9


@pytest.mark.parametrize("shape", [(8,), (8, 1, 1), (1, 8, 1, 1), (1, 1, 8), (1, 1, 1, 8)])
def test_numbers_for_each_channel_may_have_any_shape(shape: tuple[int, ...]) -> None:
    values = torch.rand(shape)
    tie = Tie(nn.Identity(), "", ien.rotation(4), ((4, 8),))
    tied, distance = tie.start(values)
    expected = values.view(2, 4).mean(1, keepdim=True).expand(2, 4).reshape(shape)
    torch.testing.assert_close(tied, expected)
    torch.testing.assert_close(tie.nearest(values), expected)
    assert abs(distance - float((values - expected).norm())) < 1e-6


def test_numbers_for_each_channel_are_equal_to_the_bit_where_kernels_resample() -> None:
    values = torch.randn(24, dtype=torch.float32)
    nearest = Tie(nn.Identity(), "", ien.rotation(8), ((8, 24),)).nearest(values).view(3, 8)
    assert torch.equal(nearest, nearest[:, :1].expand(3, 8))
    torch.testing.assert_close(nearest[:, 0], values.view(3, 8).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("group", "conv_groups"), [("rot4", 1), ("rot4", 2), ("rot4xflip", 1)])
def test_a_step_ties_gradients_to_the_bit_in_their_own_precision(group, conv_groups, dtype) -> None:
    group = ien.group(group)
    size = len(group)
    blocks = ((size, 2 * size), (1, 2)) if conv_groups == 1 else ((size, 2 * size),)
    channels = num_channels(blocks)
    tie = Tie(nn.Identity(), "", group, blocks, blocks, conv_groups)
    gradient = torch.randn(channels, channels // conv_groups, 3, 3, dtype=dtype)
    nearest = tie.nearest(gradient)

    def moved(kernels: Tensor, i: int) -> Tensor:
        rows = channel_table(group, blocks)[i]
        columns = rows[: channels // conv_groups]  # each conv group has inputs of its own
        return group.act(kernels, torch.full((channels,), i))[rows][:, columns]

    assert nearest.dtype == dtype and all(torch.equal(moved(nearest, i), nearest) for i in range(size))
    mean = sum(moved(gradient.double(), i) for i in range(size)) / size
    assert (nearest.double() - mean).abs().max() < 4 * torch.finfo(dtype).eps


def test_a_step_inside_autocast_keeps_kernels_that_resample() -> None:
    model = network(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = ien.start_equivariant(model, "rot8", 8, images())
    ien.keep_equivariant(start, optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        F.cross_entropy(model(images()), torch.arange(8) % 5).backward()
        optimizer.step()
    (tie,) = (tie for tie in start.ties if tie.tensor is model[3].weight)
    weight = tie.tensor.detach()
    assert tie.start(weight)[1] < 1e-6 * float(weight.norm())


def test_fused_sgd_on_half_precision_stays_equal_to_the_bit() -> None:
    model = network(bias=False)
    start = ien.start_equivariant(model, "rot4", 4, images())
    model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    ien.keep_equivariant(start, optimizer)
    for step in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(images(seed=step).bfloat16()), torch.arange(8) % 5).backward()
        optimizer.step()
    last = model[0].weight.detach()[4:]  # 72 numbers in all: the last ones do not fill a vector register
    assert all(torch.equal(last[k], last[0].rot90(k, (-2, -1))) for k in range(4))


def test_fused_adam_stays_equal_to_the_bit() -> None:
    model = nn.Sequential(nn.Conv2d(1, 12, 3))  # 108 and 12 numbers: the last ones do not fill a register
    start = ien.start_equivariant(model, "rot4", 4, images())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
    ien.keep_equivariant(start, optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    bias, last = model[0].bias.detach(), model[0].weight.detach()[8:]
    assert torch.equal(bias, bias[::4].repeat_interleave(4))
    assert all(torch.equal(last[k], last[0].rot90(k, (-2, -1))) for k in range(4))


def distance(start: ien.Start) -> float:
    """How far the weights that are tied are from it, the furthest of them."""
    return max(tie.start(tie.tensor)[1] for tie in start.ties if isinstance(tie.tensor, nn.Parameter))


@pytest.mark.parametrize("kernels", ["free", "smooth"])
def test_weights_that_others_write_are_tied_by_the_next_step(kernels: Any) -> None:
    torch.manual_seed(0)
    model, other = network(), network()
    start = ien.start_equivariant(model, "rot4", 4, images(), kernels=kernels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 2)
    model.load_state_dict(other.state_dict())
    assert distance(start) > 0.1
    train(model, optimizer, 1)
    assert distance(start) < 1e-6
    beside = torch.optim.Adam(model[0].parameters(), lr=0.1)  # an optimizer that keeps nothing
    for _ in range(3):
        model.train()
        F.cross_entropy(model(images()), torch.arange(8) % 5).backward()
        beside.step()
        assert distance(start) > 0.01
        train(model, optimizer, 1)
        assert distance(start) < 1e-6


@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_a_run_that_is_loaded_goes_on_to_the_bit(group: str, members: int) -> None:
    def begin(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = network(members)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        ien.recommended(model, group, members, images(), optimizer)
        return model, optimizer

    model, optimizer = begin(0)
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 4)
    again, other = begin(1)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(again, other, 4)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


BLOCKS = [
    (((8, 16),), ((8, 24),)),
    (((8, 8), (4, 8), (1, 2)), ((1, 3),)),
    (((4, 4), (2, 4)), ((8, 8), (1, 1))),
]


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(("after", "before"), BLOCKS)
def test_coefficients_are_those_of_the_nearest_kernels(after, before, size: int) -> None:
    values = torch.randn(num_channels(after), num_channels(before), size, size, dtype=torch.float64)
    conv = nn.Conv2d(values.shape[1], values.shape[0], size)
    tie = Tie(conv, "weight", ien.rotation(8), after, before, smooth=True)
    nearest, coefficients = tie.nearest(values), tie.to_coefficients(values)
    torch.testing.assert_close(tie.from_coefficients(coefficients), nearest)
    torch.testing.assert_close(tie.to_coefficients(nearest), coefficients)
    if size == 3:  # as many as the space of kernels that commute has dimensions: the trace of the projection
        trace = 0.0
        for place in range(values.numel()):
            one = torch.zeros_like(values)
            one.view(-1)[place] = 1
            trace += float(tie.nearest(one).view(-1)[place])
        assert abs(trace - int((coefficients.abs() > 1e-12).sum())) < 1e-6


def test_sgd_steps_are_those_of_averaged_gradients_also_on_coefficients() -> None:
    torch.manual_seed(0)
    layers = [layer for layer in network(8) if not isinstance(layer, nn.BatchNorm2d)]
    kept = nn.Sequential(*layers).double()
    start = ien.start_equivariant(kept, "rot8", 8, images().double())
    other = copy.deepcopy(kept)
    ties = [tie._replace(module=other.get_submodule(name)) for name, tie in _named(kept, start)]
    one, two = torch.optim.SGD(kept[0].parameters(), lr=0.3), torch.optim.SGD(kept[2:].parameters(), lr=0.3)
    for optimizer in (one, two):  # each keeps its own weights, whatever steps first
        ien.keep_equivariant(start, optimizer)
    for step in range(4):
        x = images(seed=step).double()
        for optimizer in (one, two):
            optimizer.zero_grad()
        F.cross_entropy(kept(x), torch.arange(8) % 5).backward()
        one.step()
        two.step()
        other.zero_grad()
        F.cross_entropy(other(x), torch.arange(8) % 5).backward()
        with torch.no_grad():
            for tie in ties:
                tie.tensor.sub_(0.3 * tie.nearest(tie.tensor.grad))
    torch.testing.assert_close(kept.state_dict(), other.state_dict())


def _named(model: nn.Module, start: ien.Start) -> list[tuple[str, Tie]]:
    names = {module: name for name, module in model.named_modules()}
    return [(names[tie.module], tie) for tie in start.ties]


def test_adam_steps_are_those_of_coefficients_that_are_parameters() -> None:
    torch.manual_seed(0)
    kept = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.Tanh(), nn.Conv2d(8, 8, 5, bias=False)).double()
    start = ien.start_equivariant(kept, "rot8", 8, images().double())
    ties = [tie for tie in start.ties if isinstance(tie.tensor, nn.Parameter)]
    assert len(ties) == 2 and all(tie.has_coefficients for tie in ties)
    free = [nn.Parameter(tie.to_coefficients(tie.tensor.detach())) for tie in ties]
    others = torch.optim.Adam(free, lr=0.01, eps=1e-14)
    optimizer = torch.optim.Adam(kept.parameters(), lr=0.01, eps=1e-14)
    ien.keep_equivariant(start, optimizer)
    first = kept[2].weight.detach().clone()
    for step in range(6):
        x, target = images(seed=step).double(), torch.rand(8, 8, 5, 5, dtype=torch.float64)
        optimizer.zero_grad()
        F.mse_loss(kept(x), target).backward()
        made = kept[0].weight.grad
        optimizer.step()
        assert kept[0].weight.grad is made  # as backward left it
        others.zero_grad()
        a, b = (tie.from_coefficients(values) for tie, values in zip(ties, free, strict=True))
        F.mse_loss(F.conv2d(F.conv2d(x, a).tanh(), b), target).backward()
        for values, tie in zip(free, ties, strict=True):
            values.grad *= tie.to_coefficients(tie.tensor.detach()) != 0  # places that hold no coefficient
        others.step()
    for tie, values in zip(ties, free, strict=True):
        torch.testing.assert_close(tie.tensor.detach(), tie.from_coefficients(values.detach()))
    assert (kept[2].weight - first).abs().max() > 0.02


@contextmanager
def stopped(when: str) -> Iterator[None]:
    """A step of Adam that stops, as with Ctrl-C or a full memory: before, within or after its arithmetic."""
    module = sys.modules["torch.optim.adam"]
    whole = module.adam  # type: ignore[attr-defined]

    def adam(parameters: list[Tensor], *arguments: Any, **named: Any) -> None:
        if when != "before":
            half = len(parameters) // 2 if when == "within" else len(parameters)
            lists = [each[:half] if isinstance(each, list) else each for each in arguments]
            whole(parameters[:half], *lists, **named)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "adam", adam)
        with pytest.raises(KeyboardInterrupt):
            yield


def backward(model: nn.Module, seed: int = 0) -> None:
    F.cross_entropy(model(images(seed=seed)), torch.arange(8) % 5).backward()


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_step_that_is_stopped_leaves_weights_that_can_be_used(when: str) -> None:
    torch.manual_seed(0)
    model = network(8)
    start = ien.start_equivariant(model, "rot8", 8, images())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    backward(model)
    with stopped(when):
        optimizer.step()
    assert error(model, "rot8", 8) < 1e-9
    if when == "before":
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    train(model, optimizer, 2)
    assert error(model, "rot8", 8) < 1e-9


def test_after_a_step_that_was_stopped_gradients_count_once() -> None:
    def run(stop: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = network(8)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        ien.keep_equivariant(ien.start_equivariant(model, "rot8", 8, images()), optimizer)
        train(model, optimizer, 2)
        if stop:
            backward(model)
            with stopped("before"):
                optimizer.step()
            optimizer.zero_grad()
            optimizer.step()  # there is nothing to step on
        optimizer.zero_grad()
        backward(model, seed=7)
        optimizer.step()
        return model.state_dict()

    torch.testing.assert_close(run(stop=True), run(stop=False))


def test_weights_that_are_loaded_after_a_step_was_stopped_stay() -> None:
    torch.manual_seed(0)
    model = network(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    ien.keep_equivariant(ien.start_equivariant(model, "rot8", 8, images()), optimizer)
    saved = copy.deepcopy(model.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    train(model, optimizer, 2)
    backward(model)
    with stopped("before"):
        optimizer.step()
    model.load_state_dict(saved)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    backward(model)
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), saved)


class Decaying(torch.optim.SGD):
    """Writes what it has before it calls the step of another optimizer, whose hooks then run twice."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)
        return super().step(closure)


def test_what_an_optimizer_does_before_its_step_is_kept_too() -> None:
    torch.manual_seed(0)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # from here on a step of SGD has hooks of its own
    model = network(8)
    start = ien.start_equivariant(model, "rot8", 8, images())
    optimizer = Decaying(model.parameters(), lr=0.0)
    ien.keep_equivariant(start, optimizer)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    backward(model)
    optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), 0.9 * before[name])


@pytest.mark.parametrize("first", ["rot8", "flip"])
def test_of_two_calls_for_the_same_weights_the_last_one_counts(first: str) -> None:
    def run(*groups: str) -> tuple[nn.Module, ien.Start]:
        torch.manual_seed(0)
        model = network(8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        last = network(8)
        starts = [ien.start_equivariant(last, "rot4", 4, images())]  # other weights, which nothing ties
        for group in groups:
            starts.append(ien.start_equivariant(model, group, len(ien.group(group)), images()))
            model.load_state_dict(last.state_dict())
            ien.keep_equivariant(starts[-1], optimizer)
        train(model, optimizer, 3)
        return model, starts[-1]

    (twice, start), (once, _) = run(first, "rot4"), run("rot4")
    assert distance(start) < 1e-6 and error(twice, "rot4", 4) < 1e-9
    torch.testing.assert_close(twice.state_dict(), once.state_dict())


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware steps (Foret et al., 2021): weights are moved, and put back before the step."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        its = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in its]).norm()
        for p in its:
            self.state[p]["old"] = p.clone()
            p.add_(0.05 * p.grad / norm)
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        return loss


class Listed(torch.optim.Optimizer):
    """Has a list of its own of what it trains, and takes a factor beside a closure."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.its = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None, factor: float = 0.0) -> Any:
        with torch.enable_grad():
            loss = closure()
        for p in self.its:
            p.sub_(factor * self.defaults["lr"] * p.grad)
        return loss


@pytest.mark.parametrize("kind", [Sharpness, Listed])
@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_optimizers_that_do_as_they_like_train_all_weights(kind: Any, group: str, members: int) -> None:
    torch.manual_seed(0)
    model = network(members).train()
    start = ien.start_equivariant(model, group, members, images())
    optimizer = kind(model.parameters(), lr=0.2)
    ien.keep_equivariant(start, optimizer)
    kernels = [model[i].weight for i in (0, 3, 7)]
    before = [weight.detach().clone() for weight in kernels]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images()), torch.arange(8) % 5)
        loss.backward()
        return loss

    named = {"factor": 1.0} if kind is Listed else {}
    losses = [optimizer.step(closure, **named).item() for _ in range(12)]
    moved = [
        float((now.detach() - was).norm() / was.norm()) for now, was in zip(kernels, before, strict=True)
    ]
    assert losses[-1] < losses[0] and 1e-3 < min(moved) and max(moved) < 2
    assert error(model.eval(), group, members) < 1e-9
    assert len(optimizer.state) <= len(list(model.parameters()))


def test_a_shared_backbone_and_both_heads_are_kept() -> None:
    torch.manual_seed(0)
    body = network(8)[:6]
    models = [nn.Sequential(*body, nn.Flatten(), nn.Linear(24, 5)) for _ in range(2)]
    shared = {p: None for model in models for p in model.parameters()}
    optimizer = torch.optim.Adam(shared, lr=0.01)
    for model in models:
        ien.keep_equivariant(ien.start_equivariant(model, "rot8", 8, images()), optimizer)
    for step in range(4):
        optimizer.zero_grad()
        for model in models:
            backward(model, seed=step)
        optimizer.step()
    assert all(error(model.eval(), "rot8", 8) < 1e-9 for model in models)


@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_a_step_writes_only_what_its_optimizer_has(group: str, members: int) -> None:
    torch.manual_seed(0)
    model = network(members).train()
    start = ien.start_equivariant(model, group, members, images(), kernels="smooth")
    first, last = (torch.optim.Adam(part.parameters(), lr=0.01) for part in (model[:3], model[3:]))
    for optimizer in (first, last):
        ien.keep_equivariant(start, optimizer)
    for _ in range(3):
        for optimizer in (first, last):
            optimizer.zero_grad()
        features = model[:3](images())
        losses = [F.cross_entropy(model[3:](h), torch.arange(8) % 5) for h in (features.detach(), features)]
        losses[0].backward()
        (2 * features.square().mean()).backward(retain_graph=True)
        first.step()  # the last loss has yet to go backward through weights of the other optimizer
        torch.autograd.grad(losses[1], list(model[3:].parameters()))
        last.step()
    assert error(model.eval(), group, members) < 1e-9


def test_what_an_optimizer_knew_of_pixels_is_not_taken_for_coefficients() -> None:
    torch.manual_seed(0)
    model = network(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, 3)
    start = ien.start_equivariant(model, "rot8", 8, images(), weights="project")
    ien.keep_equivariant(start, optimizer)
    before = model[3].weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model[3].weight.detach(), before)


@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_what_follows_the_weights_sees_them_after_the_step(group: str, members: int) -> None:
    torch.manual_seed(0)
    model = network(members)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model[3].weight.detach().clone()))
    start = ien.start_equivariant(model, group, members, images(), kernels="smooth")
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 1)
    assert torch.equal(seen[0], model[3].weight.detach())


def test_a_weight_that_is_no_parameter_any_more_is_an_error() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = ien.start_equivariant(model, "rot4", 4, images())
    ien.keep_equivariant(start, optimizer)
    prune.l1_unstructured(model[0], "weight", 0.5)
    backward(model)
    with pytest.raises(RuntimeError, match="the weight of a Conv2d is no longer a parameter"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="the weight of a Conv2d is no longer a parameter"):
        ien.keep_equivariant(start, optimizer)


def test_a_second_start_ties_no_more_than_it_says_and_leaves_no_hooks_behind() -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        ien.recommended(model, "rot4", 4, images(), optimizer)
    for i in (0, 3, 7):
        model[i].reset_parameters()
    ien.recommended(model, "rot4", 1, images(), optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
    train(model, optimizer, 3)
    weight = model[7].weight.detach().unflatten(1, (-1, 4))
    assert (weight - weight.mean(2, keepdim=True)).abs().max() > 1e-2  # single maps, each with its own number


def test_what_an_optimizer_knew_of_coefficients_is_not_taken_for_pixels() -> None:
    torch.manual_seed(0)
    model = network(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ien.recommended(model, "rot8", 8, images(), optimizer)
    train(model, optimizer, 3)
    ien.recommended(model, "rot4", 4, images(), optimizer, weights="project")
    before = model[3].weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model[3].weight.detach(), before)


def test_two_models_may_share_an_optimizer() -> None:
    torch.manual_seed(0)
    models = [network(), network(8)]
    optimizer = torch.optim.Adam([p for model in models for p in model.parameters()], lr=0.01)
    for model, (group, members) in zip(models, [("rot4", 4), ("rot8", 8)], strict=True):
        ien.keep_equivariant(ien.start_equivariant(model, group, members, images()), optimizer)
    for step in range(4):
        optimizer.zero_grad()
        for model in models:
            backward(model, seed=step)
        optimizer.step()
    assert error(models[0].eval(), "rot4", 4) < 1e-9 and error(models[1].eval(), "rot8", 8) < 1e-9


class Lifted(nn.Module):
    """Adds a learnt map, 0 at first, which turns with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 8, 9, 9))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.position


def test_parameters_that_would_come_to_break_it_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), Lifted(), nn.Conv2d(8, 8, 3))
    start = ien.start_equivariant(model, "rot4", 4, images())
    assert start.untied == ("1.position",)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'1.position' \(1, 8, 9, 9\) cannot be tied .* freeze it"):
        ien.keep_equivariant(start, optimizer)
    torch.nn.init.normal_(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'1\.position'"):
        ien.recommended(model, "rot4", 4, images(), optimizer)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    model[1].requires_grad_(False)
    ien.recommended(model, "rot4", 4, images(), optimizer)


def test_only_a_start_can_be_kept() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = ien.recommended(model, "rot4", 4, images(), optimizer)
    for given in (model, objective):
        with pytest.raises(ValueError, match=r"what start_equivariant returned.*is kept already"):
            ien.keep_equivariant(given, optimizer)  # type: ignore[arg-type]


def test_an_optimizer_of_another_model_is_an_error() -> None:
    start = ien.start_equivariant(network(), "rot4", 4, images())
    with pytest.raises(ValueError, match="no parameter of the model: create it with"):
        ien.keep_equivariant(start, torch.optim.SGD(network().parameters(), lr=0.1))
