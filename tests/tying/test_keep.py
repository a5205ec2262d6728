"""Weights that stay tied: against a network that has each of them once, and under any optimizer."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import ien
from tests.helpers.tied import (
    Net,
    assert_same_weights,
    backward,
    classifier,
    exact_error,
    images,
    state,
    train,
)

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
"""A group that permutes pixels, and one that resamples, for which an optimizer steps on coefficients."""


def started(group: str = "rot4", members: int = 4, **settings: Any) -> tuple[nn.Sequential, ien.Start]:
    torch.manual_seed(0)
    model = classifier(members)
    return model, ien.start_equivariant(model, group, members, images(), **settings)


def kept(
    group: str = "rot4", members: int = 4, make: Callable[..., Any] | None = None, **settings: Any
) -> tuple[nn.Sequential, Any, ien.Start]:
    """A model, an optimizer that keeps it, and what is tied."""
    model, start = started(group, members, **settings)
    optimizer = (make or partial(torch.optim.Adam, lr=0.01))(model.parameters())
    ien.keep_equivariant(start, optimizer)
    return model, optimizer, start


def distance(start: ien.Start) -> float:
    """How far the tied weights are from being tied, the furthest of them."""
    return max(tie.start(tie.tensor)[1] for tie in start.ties if isinstance(tie.tensor, nn.Parameter))


def without_norm(members: int) -> nn.Sequential:
    layers = [layer for layer in classifier(members) if not isinstance(layer, nn.BatchNorm2d)]
    return nn.Sequential(*layers).double()


class Written(nn.Module):
    """:func:`without_norm` under quarter turns with each weight once, written out with rot90."""

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
        rotated = []
        for m in range(4):
            inner = self.second.unflatten(1, (-1, 4)).roll(m, 2).flatten(1, 2)
            rotated.append(inner.rot90(m, (-2, -1)))
        second = torch.stack(rotated, 1).flatten(0, 1)
        h = F.conv2d(x, first, self.first_bias.repeat_interleave(4)).relu()
        h = F.conv2d(h, second, self.second_bias.repeat_interleave(4)).relu()
        return F.linear(h.mean((2, 3)), self.last.repeat_interleave(4, 1), self.last_bias)


def test_sgd_takes_the_steps_of_a_network_that_has_each_weight_once() -> None:
    torch.manual_seed(0)
    tied = without_norm(4)
    start = ien.start_equivariant(tied, "rot4", 4, images().double())
    once, first = Written(tied), [weight.detach().clone() for weight in tied.parameters()]
    torch.testing.assert_close(once(images().double()), tied(images().double()))
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.4)
    ien.keep_equivariant(start, optimizer)
    # a weight in four places has four times the mean gradient of its places; the last bias has one place
    shared = [weight for weight in once.parameters() if weight is not once.last_bias]
    other = torch.optim.SGD([{"params": shared, "lr": 0.1}, {"params": [once.last_bias], "lr": 0.4}])
    for step in range(5):
        for model, its in ((tied, optimizer), (once, other)):
            its.zero_grad()
            backward(model, seed=step)
            its.step()
    fresh = images(seed=50).double()
    torch.testing.assert_close(tied(fresh), once(fresh))
    assert all((now - then).abs().max() > 1e-3 for now, then in zip(tied.parameters(), first, strict=True))


def test_sgd_steps_are_those_of_averaged_gradients_also_on_coefficients() -> None:
    torch.manual_seed(0)
    model = without_norm(8)
    start = ien.start_equivariant(model, "rot8", 8, images().double())
    other = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    ties = [tie._replace(module=other.get_submodule(names[tie.module])) for tie in start.ties]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    ien.keep_equivariant(start, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        backward(model, seed=step)
        optimizer.step()
        other.zero_grad()
        backward(other, seed=step)
        with torch.no_grad():
            for tie in ties:
                tie.tensor.sub_(0.3 * tie.nearest(tie.tensor.grad))
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_adam_steps_are_those_of_coefficients_that_are_parameters() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.Tanh(), nn.Conv2d(8, 8, 5, bias=False)).double()
    start = ien.start_equivariant(model, "rot8", 8, images().double())
    ties = [tie for tie in start.ties if isinstance(tie.tensor, nn.Parameter)]
    assert len(ties) == 2 and all(tie.has_coefficients for tie in ties)
    free = [nn.Parameter(tie.to_coefficients(tie.tensor.detach())) for tie in ties]
    others = torch.optim.Adam(free, lr=0.01, eps=1e-14)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-14)
    ien.keep_equivariant(start, optimizer)
    first = model[2].weight.detach().clone()
    for step in range(6):
        x, target = images(seed=step).double(), torch.rand(8, 8, 5, 5, dtype=torch.float64)
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        made = model[0].weight.grad
        optimizer.step()
        assert model[0].weight.grad is made  # as backward left it
        others.zero_grad()
        a, b = (tie.from_coefficients(values) for tie, values in zip(ties, free, strict=True))
        F.mse_loss(F.conv2d(F.conv2d(x, a).tanh(), b), target).backward()
        for values, tie in zip(free, ties, strict=True):
            values.grad *= tie.to_coefficients(tie.tensor.detach()) != 0  # places that hold no coefficient
        others.step()
    for tie, values in zip(ties, free, strict=True):
        torch.testing.assert_close(tie.tensor.detach(), tie.from_coefficients(values.detach()))
    assert (model[2].weight - first).abs().max() > 0.02


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "Adafactor, not elementwise": lambda weights: torch.optim.Adafactor(weights, lr=0.05),
}


@pytest.mark.parametrize(
    ("name", "group", "members"),
    [*product(OPTIMIZERS, ["rot4"], [4]), *product(OPTIMIZERS, ["rot8"], [8]), ("SGD", "rot4xflip", 8)],
)
def test_every_step_leaves_the_network_equivariant(name: str, group: str, members: int) -> None:
    free = started(group, members)[0]
    before = state(free)
    train(free, OPTIMIZERS[name](free.parameters()))
    model, optimizer, _ = kept(group, members, OPTIMIZERS[name])
    train(model, optimizer)
    assert not any(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert exact_error(model, group, members) < 1e-9 < 1e-4 < exact_error(free, group, members)


@pytest.mark.parametrize("kernels", ["free", "smooth"])
def test_smooth_kernels_stay_smooth(kernels: Any) -> None:
    model, optimizer, start = kept(kernels=kernels)
    train(model, optimizer)
    assert distance(start) < 1e-6
    smooth = [tie._replace(smooth=True) for tie in start.ties if tie.tensor is model[0].weight]
    assert (smooth[0].start(model[0].weight)[1] < 1e-6) == (kernels == "smooth")


def test_eighth_turns_stay_as_good_as_they_start() -> None:
    model, optimizer, _ = kept("rot8", 8)

    def relative() -> float:
        report = ien.measure(model, images(seed=99), "rot8", ["4"], 8, floors=False, action="regular")
        return report.layers["4"].relative

    first = relative()
    train(model, optimizer, 20)
    assert relative() < 2 * first < 0.5


def scaled(*shape: int) -> nn.Module:
    return Net(lambda net, h: h * net.scale, scale=nn.Parameter(torch.rand(shape)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose2d(8, 8, 3),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.Conv2d(8, 8, 4),
        scaled(8, 1, 1),
        scaled(1, 8, 1, 1),
    ],
    ids=["transposed", "grouped", "dilated", "even", "scaled", "scaled in 4 dims"],
)
@pytest.mark.parametrize("kernels", ["free", "smooth"])
def test_layers_of_all_kinds_stay_tied(layer: nn.Module, kernels: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), copy.deepcopy(layer), nn.Tanh(), nn.Identity()
    )
    model += nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(ien.start_equivariant(model, "rot4", 4, images(), kernels=kernels), optimizer)
    train(model, optimizer, 3)
    assert exact_error(model, "rot4", 4) < 1e-9


def test_buffers_are_those_that_the_model_has_now() -> None:
    model, start = started()
    model[1].running_mean = model[1].running_mean.clone()  # as .to(device) does
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert exact_error(model, "rot4", 4) < 1e-9


def test_what_trains_later_is_kept_as_well() -> None:
    model, start = started()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = torch.optim.Adam(model[7].parameters(), lr=0.01)
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert torch.equal(model[0].weight, frozen) and exact_error(model, "rot4", 4) < 1e-9
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[3].parameters()]})
    train(model, optimizer)
    assert not torch.equal(model[0].weight, frozen) and exact_error(model, "rot4", 4) < 1e-9


@pytest.mark.parametrize("when", ["before", "loaded"])
def test_the_past_of_an_optimizer_does_not_break_it(when: str) -> None:
    torch.manual_seed(0)
    model = classifier()
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
    assert exact_error(model, "rot4", 4) < 1e-9


def test_a_step_inside_autocast_keeps_kernels_that_resample() -> None:
    model, optimizer, start = kept("rot8", 8)
    with torch.autocast("cpu", torch.bfloat16):
        backward(model)
        optimizer.step()
    (tie,) = (tie for tie in start.ties if tie.tensor is model[3].weight)
    weight = tie.tensor.detach()
    assert tie.start(weight)[1] < 1e-6 * float(weight.norm())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(partial(torch.optim.SGD, momentum=0.9), torch.bfloat16), (torch.optim.Adam, torch.float32)],
    ids=["SGD in half precision", "Adam"],
)
def test_fused_steps_stay_equal_to_the_bit(kind: Any, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(1, 12, 3))  # 108 and 12 numbers: the last ones do not fill a register
    start = ien.start_equivariant(model, "rot4", 4, images())
    model.to(dtype)
    optimizer = kind(model.parameters(), lr=0.05, fused=True)
    ien.keep_equivariant(start, optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
        optimizer.step()
    bias, last = model[0].bias.detach(), model[0].weight.detach()[8:]
    assert torch.equal(bias, bias[::4].repeat_interleave(4))
    assert all(torch.equal(last[k], last[0].rot90(k, (-2, -1))) for k in range(4))


@pytest.mark.parametrize("kernels", ["free", "smooth"])
def test_weights_that_others_write_are_tied_by_the_next_step(kernels: Any) -> None:
    model, optimizer, start = kept(kernels=kernels)
    train(model, optimizer, 2)
    model.load_state_dict(classifier().state_dict())
    assert distance(start) > 0.1
    train(model, optimizer, 1)
    assert distance(start) < 1e-6
    beside = torch.optim.Adam(model[0].parameters(), lr=0.1)  # an optimizer that keeps nothing
    for _ in range(3):
        backward(model.train())
        beside.step()
        assert distance(start) > 0.01
        train(model, optimizer, 1)
        assert distance(start) < 1e-6


@BOTH
def test_a_run_that_is_loaded_continues_to_the_bit(group: str, members: int) -> None:
    def begin(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = classifier(members)
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


@contextmanager
def stopped(when: str) -> Iterator[None]:
    """A step of Adam that stops, as with Ctrl-C: before, within or after its arithmetic."""
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


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_step_that_is_stopped_leaves_weights_that_can_be_used(when: str) -> None:
    model, optimizer, _ = kept("rot8", 8)
    train(model, optimizer, 2)
    before = state(model)
    backward(model)
    with stopped(when):
        optimizer.step()
    assert exact_error(model, "rot8", 8) < 1e-9
    if when == "before":
        assert_same_weights(model, before)
    train(model, optimizer, 2)
    assert exact_error(model, "rot8", 8) < 1e-9


def test_after_a_step_that_was_stopped_gradients_count_once() -> None:
    def run(stop: bool) -> dict[str, Tensor]:
        model, optimizer, _ = kept("rot8", 8)
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
    model, optimizer, _ = kept("rot8", 8)
    saved = state(model)
    train(model, optimizer, 2)
    backward(model)
    with stopped("before"):
        optimizer.step()
    model.load_state_dict(saved)
    optimizer.param_groups[0]["lr"] = 0.0
    backward(model)
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), saved)


class Decaying(torch.optim.SGD):
    """Writes its weights before it calls the step of another optimizer, whose hooks then run twice."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)
        return super().step(closure)


def test_what_an_optimizer_does_before_its_step_is_kept_too() -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # from here on a step of SGD has hooks of its own
    model, optimizer, _ = kept("rot8", 8, partial(Decaying, lr=0.0))
    before = state(model)
    backward(model)
    optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), 0.9 * before[name])


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


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (partial(torch.optim.LBFGS, max_iter=5, lr=0.1), 4),
        (partial(torch.optim.SGD, lr=0.1), 4),
        (partial(Sharpness, lr=0.2), 12),
        (partial(Listed, lr=0.2), 12),
    ],
    ids=["LBFGS", "SGD", "Sharpness", "Listed"],
)
@BOTH
def test_steps_with_a_closure_train_all_weights(kind, steps: int, group: str, members: int) -> None:
    model, optimizer, _ = kept(group, members, kind)
    kernels = [model[i].weight for i in (0, 3, 7)]
    before = [weight.detach().clone() for weight in kernels]

    def closure() -> Tensor:
        optimizer.zero_grad()
        return backward(model.train())

    named = {"factor": 1.0} if isinstance(optimizer, Listed) else {}
    losses = [optimizer.step(closure, **named).item() for _ in range(steps)]
    assert losses[-1] < losses[0]
    for now, was in zip(kernels, before, strict=True):
        assert 1e-3 < float((now.detach() - was).norm() / was.norm()) < 5
    assert exact_error(model.eval(), group, members) < 1e-9
    assert len(optimizer.state) <= len(list(model.parameters()))


@pytest.mark.parametrize("first", ["rot8", "flip"])
def test_of_two_calls_for_the_same_weights_the_last_one_counts(first: str) -> None:
    def run(*groups: str) -> tuple[nn.Module, ien.Start]:
        torch.manual_seed(0)
        model, last = classifier(8), classifier(8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start = ien.start_equivariant(last, "rot4", 4, images())  # other weights, which nothing ties
        for group in groups:
            start = ien.start_equivariant(model, group, len(ien.group(group)), images())
            model.load_state_dict(last.state_dict())
            ien.keep_equivariant(start, optimizer)
        train(model, optimizer, 3)
        return model, start

    (twice, start), (once, _) = run(first, "rot4"), run("rot4")
    assert distance(start) < 1e-6 and exact_error(twice, "rot4", 4) < 1e-9
    torch.testing.assert_close(twice.state_dict(), once.state_dict())


def test_models_may_share_a_backbone_and_an_optimizer() -> None:
    torch.manual_seed(0)
    body = classifier(8)[:6]
    models = [nn.Sequential(*body, nn.Flatten(), nn.Linear(24, 5)) for _ in range(2)] + [classifier()]
    optimizer = torch.optim.Adam({p: None for model in models for p in model.parameters()}, lr=0.01)
    groups = [("rot8", 8), ("rot8", 8), ("rot4", 4)]
    for model, (group, members) in zip(models, groups, strict=True):
        ien.keep_equivariant(ien.start_equivariant(model, group, members, images()), optimizer)
    for step in range(4):
        optimizer.zero_grad()
        for model in models:
            backward(model, seed=step)
        optimizer.step()
    for model, (group, members) in zip(models, groups, strict=True):
        assert exact_error(model.eval(), group, members) < 1e-9


@BOTH
def test_a_step_writes_only_what_its_optimizer_has(group: str, members: int) -> None:
    model, start = started(group, members, kernels="smooth")
    first, last = (torch.optim.Adam(part.parameters(), lr=0.01) for part in (model[:3], model[3:]))
    for optimizer in (first, last):
        ien.keep_equivariant(start, optimizer)
    for _ in range(3):
        model.zero_grad()
        features = model.train()[:3](images())
        losses = [F.cross_entropy(model[3:](h), torch.arange(8) % 5) for h in (features.detach(), features)]
        losses[0].backward()
        (2 * features.square().mean()).backward(retain_graph=True)
        first.step()  # the last loss has yet to go backward through weights of the other optimizer
        torch.autograd.grad(losses[1], list(model[3:].parameters()))
        last.step()
    assert exact_error(model.eval(), group, members) < 1e-9


@pytest.mark.parametrize(
    ("first", "last"), [(None, ("rot8", 8)), (("rot8", 8), ("rot4", 4))], ids=["of pixels", "of coefficients"]
)
def test_the_state_of_an_optimizer_is_not_mistaken(first: Any, last: tuple[str, int]) -> None:
    torch.manual_seed(0)
    model = classifier(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if first:
        ien.recommended(model, *first, images(), optimizer)
    train(model, optimizer, 3)
    ien.recommended(model, *last, images(), optimizer, weights="project")
    before = model[3].weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # momentum of other numbers would move it
    torch.testing.assert_close(model[3].weight.detach(), before)


@BOTH
def test_other_hooks_see_the_weights_after_the_step(group: str, members: int) -> None:
    model, start = started(group, members, kernels="smooth")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model[3].weight.detach().clone()))
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 1)
    assert torch.equal(seen[0], model[3].weight.detach())


def test_a_second_start_ties_no_more_than_it_says_and_leaves_no_hooks() -> None:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        ien.recommended(model, "rot4", 4, images(), optimizer)
    for i in (0, 3, 7):
        model[i].reset_parameters()
    ien.recommended(model, "rot4", 1, images(), optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
    train(model, optimizer, 3)
    weight = model[7].weight.detach().unflatten(1, (-1, 4))
    assert (weight - weight.mean(2, keepdim=True)).abs().max() > 1e-2  # each channel has its own number


def test_a_weight_that_is_no_parameter_any_more_is_an_error() -> None:
    model, optimizer, start = kept()
    prune.l1_unstructured(model[0], "weight", 0.5)
    backward(model)
    with pytest.raises(RuntimeError, match="the weight of a Conv2d is no longer a parameter"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="the weight of a Conv2d is no longer a parameter"):
        ien.keep_equivariant(start, optimizer)


def test_parameters_that_would_break_it_as_they_train_are_named() -> None:
    position = nn.Parameter(torch.zeros(1, 8, 9, 9))  # a learned map that rotates with nothing
    positioned = Net(lambda net, h: h + net.position, position=position)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), positioned, nn.Conv2d(8, 8, 3))
    start = ien.start_equivariant(model, "rot4", 4, images())
    assert start.untied == ("1.position",)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    message = r"'1.position' \(1, 8, 9, 9\) cannot be tied .* freeze it"
    with pytest.raises(ValueError, match=message):
        ien.keep_equivariant(start, optimizer)
    torch.nn.init.normal_(model[0].weight)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        ien.recommended(model, "rot4", 4, images(), optimizer)
    assert_same_weights(model, before)
    model[1].requires_grad_(False)
    ien.recommended(model, "rot4", 4, images(), optimizer)


def test_only_a_start_and_an_optimizer_of_its_model_will_do() -> None:
    model, start = started()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = ien.recommended(model, "rot4", 4, images(), optimizer)
    for given in (model, objective):
        with pytest.raises(ValueError, match=r"what start_equivariant returned.*is kept already"):
            ien.keep_equivariant(given, optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter of the model: create it with"):
        ien.keep_equivariant(start, torch.optim.SGD(classifier().parameters(), lr=0.1))
