"""Weights that stay tied: against a network that has each of them once, and under any optimizer."""

import copy
import sys
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
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
    step,
    train,
)

pytestmark = pytest.mark.usefixtures("one_thread")

GROUPS = [("rot4", 4), ("rot8", 8)]
"""A group that permutes pixels, and one that resamples, for which an optimizer steps on coefficients."""
BOTH = pytest.mark.parametrize(("group", "members"), GROUPS)
KERNELS = pytest.mark.parametrize("kernels", ["free", "smooth"])
SGD, Adam = torch.optim.SGD, partial(torch.optim.Adam, lr=0.01)


def started(group="rot4", members=4, model=None, **settings):
    torch.manual_seed(0)
    model = model or classifier(members)
    return model, ien.start_equivariant(model, group, members, images(), **settings)


def kept(group="rot4", members=4, make=Adam, **settings):
    """A model, an optimizer that keeps it, and what is tied."""
    model, start = started(group, members, **settings)
    optimizer = make(model.parameters())
    ien.keep_equivariant(start, optimizer)
    return model, optimizer, start


def distance(start) -> float:
    """How far the tied weights are from being tied, the furthest of them."""
    return max(tie.start(tie.tensor)[1] for tie in start.ties if isinstance(tie.tensor, nn.Parameter))


def without_norm(members: int) -> nn.Sequential:
    layers = [layer for layer in classifier(members) if not isinstance(layer, nn.BatchNorm2d)]
    return nn.Sequential(*layers).double()


def written(x, first, first_bias, second, second_bias, last, last_bias):
    """:func:`without_norm` under quarter turns with each weight once, written out with rot90."""
    first = torch.stack([first.rot90(m, (-2, -1)) for m in range(4)], 1).flatten(0, 1)
    rotated = []
    for m in range(4):
        inner = second.unflatten(1, (-1, 4)).roll(m, 2).flatten(1, 2)
        rotated.append(inner.rot90(m, (-2, -1)))
    second = torch.stack(rotated, 1).flatten(0, 1)
    h = F.conv2d(x, first, first_bias.repeat_interleave(4)).relu()
    h = F.conv2d(h, second, second_bias.repeat_interleave(4)).relu()
    return F.linear(h.mean((2, 3)), last.repeat_interleave(4, 1), last_bias)


def test_sgd_takes_the_steps_of_a_network_that_has_each_weight_once() -> None:
    tied = without_norm(4)
    start = ien.start_equivariant(tied, "rot4", 4, images().double())
    before = [weight.detach().clone() for weight in tied.parameters()]
    *convolutions, last, last_bias = before
    shared = [nn.Parameter(weight[::4].clone()) for weight in convolutions]
    shared.append(nn.Parameter(last[:, ::4].clone()))
    alone = nn.Parameter(last_bias.clone())
    optimizer = SGD(tied.parameters(), lr=0.4)
    ien.keep_equivariant(start, optimizer)
    # a weight in four places has four times the mean gradient of its places; the last bias has one place
    other = SGD([{"params": shared, "lr": 0.1}, {"params": [alone], "lr": 0.4}])
    for seed in range(5):
        x = images(seed=seed).double()
        torch.testing.assert_close(tied(x), written(x, *shared, alone))
        step(tied, optimizer, seed)
        other.zero_grad()
        F.cross_entropy(written(x, *shared, alone), torch.arange(8) % 5).backward()
        other.step()
    assert all((now - was).abs().max() > 1e-3 for now, was in zip(tied.parameters(), before, strict=True))


def test_sgd_steps_are_those_of_averaged_gradients_also_on_coefficients() -> None:
    model = without_norm(8)
    start = ien.start_equivariant(model, "rot8", 8, images().double())
    other = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    ties = [tie._replace(module=other.get_submodule(names[tie.module])) for tie in start.ties]
    optimizer = SGD(model.parameters(), lr=0.3)
    ien.keep_equivariant(start, optimizer)
    for seed in range(4):
        step(model, optimizer, seed)
        other.zero_grad()
        backward(other, seed)
        with torch.no_grad():
            for tie in ties:
                tie.tensor.sub_(0.3 * tie.project(tie.tensor.grad))
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_adam_steps_are_those_of_coefficients_that_are_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.Tanh(), nn.Conv2d(8, 8, 5, bias=False)).double()
    start = ien.start_equivariant(model, "rot8", 8, images().double())
    ties = [tie for tie in start.ties if isinstance(tie.tensor, nn.Parameter)]
    assert len(ties) == 2 and all(tie.has_coefficients for tie in ties)
    free = [nn.Parameter(tie.to_coefficients(tie.tensor.detach())) for tie in ties]
    others = Adam(free, eps=1e-14)
    optimizer = Adam(model.parameters(), eps=1e-14)
    ien.keep_equivariant(start, optimizer)
    first = model[2].weight.detach().clone()
    for seed in range(6):
        x, target = images(seed=seed).double(), torch.rand(8, 8, 5, 5, dtype=torch.float64)
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


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware steps (Foret et al., 2021): weights are moved, and put back before the step.

    It has a list of its own of what it trains, and takes a radius beside a closure.
    """

    def __init__(self, parameters, lr) -> None:
        super().__init__(parameters, {"lr": lr})
        self.its = list(self.param_groups[0]["params"])
        self.base = SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def step(self, closure=None, radius=None):
        with torch.enable_grad():
            closure()
        norm = torch.stack([p.grad.norm() for p in self.its]).norm()
        for p in self.its:
            self.state[p]["old"] = p.clone()
            p.add_(radius * p.grad / norm)
        with torch.enable_grad():
            loss = closure()
        for p in self.its:
            p.copy_(self.state[p]["old"])
        self.base.step()
        return loss


OPTIMIZERS = {  # how to make it, how many steps, and what a step takes beside a closure, if it takes one
    "SGD": (partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-3), 6, None),
    "AdamW": (partial(torch.optim.AdamW, lr=0.01), 6, None),
    "Adafactor, not elementwise": (partial(torch.optim.Adafactor, lr=0.05), 6, None),
    "SGD with a closure": (partial(SGD, lr=0.1), 4, {}),
    "LBFGS": (partial(torch.optim.LBFGS, max_iter=5, lr=0.1), 4, {}),
    "sharpness": (partial(Sharpness, lr=0.2), 12, {"radius": 0.05}),
}


@pytest.mark.parametrize(("name", "where"), [*product(OPTIMIZERS, GROUPS), ("SGD", ("rot4xflip", 8))])
def test_every_step_trains_all_weights_and_leaves_them_tied(name, where) -> None:
    make, steps, named = OPTIMIZERS[name]
    model, optimizer, _ = kept(*where, make)
    before = state(model)

    def closure():
        optimizer.zero_grad()
        return backward(model.train())

    if named is None:
        losses = [step(model.train(), optimizer) for _ in range(steps)]
    else:
        losses = [optimizer.step(closure, **named).item() for _ in range(steps)]
    assert losses[-1] < losses[0]
    for key, weight in model.named_parameters():
        change = (weight - before[key]).norm() / before[key].norm().clamp(min=0.1)
        assert 1e-4 < change < 5 or key == "0.bias", key  # which the norm takes off again
    assert exact_error(model.eval(), *where) < 1e-9
    assert len(optimizer.state) <= len(list(model.parameters()))


def test_without_it_training_breaks_the_symmetry() -> None:
    model, _ = started()
    train(model, SGD(model.parameters(), lr=0.1))
    assert exact_error(model, "rot4", 4) > 1e-4


def test_eighth_turns_stay_as_good_as_they_start() -> None:
    model, optimizer, _ = kept("rot8", 8)

    def relative() -> float:
        report = ien.measure(model, images(seed=99), "rot8", ["4"], 8, floors=False, action="regular")
        return report.layers["4"].relative

    first = relative()
    train(model, optimizer, 12)
    assert relative() < 2 * first < 0.5


LAYERS = {
    "transposed": nn.ConvTranspose2d(8, 8, 3),
    "grouped": nn.Conv2d(8, 8, 3, groups=2),
    "dilated": nn.Conv2d(8, 8, 3, padding=2, dilation=2),
    "even": nn.Conv2d(8, 8, 4),
    "scaled": Net(lambda net, h: h * net.scale, scale=nn.Parameter(torch.rand(8, 1, 1))),
}


@pytest.mark.parametrize("name", LAYERS)
@KERNELS
def test_layers_of_all_kinds_stay_tied(name, kernels) -> None:
    first = [nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), copy.deepcopy(LAYERS[name]), nn.Tanh(), nn.Identity()]
    model = nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    _, optimizer, _ = kept(model=model.to(memory_format=torch.channels_last), kernels=kernels)
    train(model, optimizer, 3)
    assert exact_error(model, "rot4", 4) < 1e-9


def test_tensors_of_the_model_now_and_what_trains_later_are_kept() -> None:
    model, start = started()
    model[1].running_mean = model[1].running_mean.clone()  # as .to(device) does
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = Adam(model[7].parameters())
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer)
    assert torch.equal(model[0].weight, frozen) and exact_error(model, "rot4", 4) < 1e-9
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[3].parameters()]})
    train(model, optimizer)
    assert not torch.equal(model[0].weight, frozen) and exact_error(model, "rot4", 4) < 1e-9


@pytest.mark.parametrize("loaded", [False, True])
def test_the_past_of_an_optimizer_does_not_break_it(loaded) -> None:
    model = classifier()
    experienced, new = Adam(model.parameters()), Adam(model.parameters())
    train(model, experienced)
    start = ien.start_equivariant(model, "rot4", 4, images(), weights="project")
    optimizer = new if loaded else experienced
    ien.keep_equivariant(start, optimizer)
    if loaded:
        new.load_state_dict(experienced.state_dict())
    train(model, optimizer)
    assert exact_error(model, "rot4", 4) < 1e-9


def test_a_step_inside_autocast_keeps_kernels_that_resample() -> None:
    model, optimizer, start = kept("rot8", 8)
    with torch.autocast("cpu", torch.bfloat16):
        step(model, optimizer)
    assert distance(start) < 1e-5


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(partial(SGD, momentum=0.9), torch.bfloat16), (torch.optim.Adam, torch.float32)],
    ids=["SGD in half precision", "Adam"],
)
def test_fused_steps_stay_equal_to_the_bit(make, dtype) -> None:
    model = nn.Sequential(nn.Conv2d(1, 12, 3))  # 108 and 12 numbers: the last ones do not fill a register
    start = ien.start_equivariant(model, "rot4", 4, images())
    model.to(dtype)
    optimizer = make(model.parameters(), lr=0.05, fused=True)
    ien.keep_equivariant(start, optimizer)
    for _ in range(100):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape).to(dtype)
        optimizer.step()
    bias, last = model[0].bias.detach(), model[0].weight.detach()[8:]
    assert torch.equal(bias, bias[::4].repeat_interleave(4))
    assert all(torch.equal(last[k], last[0].rot90(k, (-2, -1))) for k in range(4))


@KERNELS
def test_kernels_stay_what_they_are_and_those_that_others_write_are_tied(kernels) -> None:
    model, optimizer, start = kept(kernels=kernels)
    train(model, optimizer, 3)
    assert distance(start) < 1e-6
    (tie,) = [tie._replace(smooth=True) for tie in start.ties if tie.tensor is model[0].weight]
    assert (tie.start(tie.tensor)[1] < 1e-6) == (kernels == "smooth")
    beside = torch.optim.Adam(model[0].parameters(), lr=0.1)  # an optimizer that keeps nothing
    for write in ("load", "step", "step"):
        if write == "load":
            model.load_state_dict(classifier().state_dict())
        else:
            step(model.train(), beside)
        assert distance(start) > 0.01
        train(model, optimizer, 1)
        assert distance(start) < 1e-6


@BOTH
def test_a_run_that_is_loaded_continues_to_the_bit(group, members) -> None:
    def begin(seed: int):
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
def stopped(when: str):
    """A step of Adam that stops, as with Ctrl-C: before, within or after its arithmetic."""
    module = sys.modules["torch.optim.adam"]
    whole = module.adam

    def adam(parameters, *arguments, **named) -> None:
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
def test_a_step_that_is_stopped_leaves_weights_that_can_be_used(when) -> None:
    model, optimizer, _ = kept("rot8", 8)
    train(model, optimizer, 2)
    before = state(model)
    with stopped(when):
        step(model, optimizer)
    assert exact_error(model, "rot8", 8) < 1e-9
    if when == "before":
        assert_same_weights(model, before)
    train(model, optimizer, 2)
    assert exact_error(model, "rot8", 8) < 1e-9
    with stopped(when):
        step(model, optimizer)
    model.load_state_dict(before)
    optimizer.param_groups[0]["lr"] = 0.0
    step(model, optimizer)
    torch.testing.assert_close(model.state_dict(), before)  # what is loaded then stays


def test_after_a_step_that_was_stopped_gradients_count_once() -> None:
    weights = []
    for stop in (False, True):
        model, optimizer, _ = kept("rot8", 8)
        train(model, optimizer, 2)
        if stop:
            with stopped("before"):
                step(model, optimizer)
            optimizer.zero_grad()
            optimizer.step()  # there is nothing to step on
        step(model, optimizer, seed=7)
        weights.append(model.state_dict())
    torch.testing.assert_close(*weights)


class Decaying(SGD):
    """Writes its weights before it calls the step of another optimizer, whose hooks then run twice."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(0.9)
        return super().step(closure)


def test_what_an_optimizer_does_before_its_step_is_kept_too() -> None:
    SGD([nn.Parameter(torch.zeros(1))])  # from here on a step of SGD has hooks of its own
    model, optimizer, _ = kept("rot8", 8, partial(Decaying, lr=0.0))
    before = state(model)
    step(model, optimizer)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), 0.9 * before[name])


@pytest.mark.parametrize("first", ["rot8", "flip"])
def test_of_two_calls_for_the_same_weights_the_last_one_counts(first) -> None:
    weights = []
    for groups in ((first, "rot4"), ("rot4",)):
        torch.manual_seed(0)
        model, last = classifier(8), classifier(8)
        optimizer = SGD(model.parameters(), lr=0.1)
        ien.start_equivariant(last, "rot4", 4, images())  # other weights, which nothing ties
        for group in groups:
            start = ien.start_equivariant(model, group, len(ien.group(group)), images())
            model.load_state_dict(last.state_dict())
            ien.keep_equivariant(start, optimizer)
        train(model, optimizer, 3)
        assert distance(start) < 1e-6 and exact_error(model, "rot4", 4) < 1e-9
        weights.append(model.state_dict())
    torch.testing.assert_close(*weights)


def test_models_may_share_a_backbone_and_an_optimizer() -> None:
    body = classifier(8)[:6]
    heads = [nn.Sequential(*body, nn.Flatten(), nn.Linear(24, 5)) for _ in range(2)]
    models = {heads[0]: ("rot8", 8), heads[1]: ("rot8", 8), classifier(): ("rot4", 4)}
    optimizer = Adam(nn.ModuleList(models).parameters())
    for model, where in models.items():
        ien.keep_equivariant(ien.start_equivariant(model, *where, images()), optimizer)
    for seed in range(4):
        optimizer.zero_grad()
        for model in models:
            backward(model, seed)
        optimizer.step()
    for model, where in models.items():
        assert exact_error(model.eval(), *where) < 1e-9


@BOTH
def test_a_step_writes_only_what_its_optimizer_has(group, members) -> None:
    model, start = started(group, members, kernels="smooth")
    first, last = Adam(model[:3].parameters()), Adam(model[3:].parameters())
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
def test_the_state_of_an_optimizer_is_not_mistaken(first, last) -> None:
    model = classifier(8)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
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
def test_other_hooks_see_the_weights_after_the_step(group, members) -> None:
    model, start = started(group, members, kernels="smooth")
    optimizer = Adam(model.parameters())
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model[3].weight.detach().clone()))
    ien.keep_equivariant(start, optimizer)
    train(model, optimizer, 1)
    assert torch.equal(seen[0], model[3].weight.detach())


def test_a_second_start_ties_no_more_than_it_says_and_leaves_no_hooks() -> None:
    model = classifier()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
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
    for call in (optimizer.step, partial(ien.keep_equivariant, start, optimizer)):
        with pytest.raises(RuntimeError, match="the weight of a Conv2d is no longer a parameter"):
            call()


def test_parameters_that_would_break_it_as_they_train_are_named() -> None:
    position = nn.Parameter(torch.zeros(1, 8, 9, 9))  # a learned map that rotates with nothing
    positioned = Net(lambda net, h: h + net.position, position=position)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), positioned, nn.Conv2d(8, 8, 3))
    start = ien.start_equivariant(model, "rot4", 4, images())
    assert start.untied == ("1.position",)
    optimizer = SGD(model.parameters(), lr=0.1)
    nn.init.normal_(model[0].weight)
    before = state(model)
    recommend = partial(ien.recommended, model, "rot4", 4, images(), optimizer)
    for call in (partial(ien.keep_equivariant, start, optimizer), recommend):
        with pytest.raises(ValueError, match=r"'1.position' \(1, 8, 9, 9\) cannot be tied .* freeze it"):
            call()
        assert_same_weights(model, before)
    model[1].requires_grad_(False)
    recommend()


def test_only_a_start_and_an_optimizer_of_its_model_will_do() -> None:
    model, optimizer, start = kept()
    objective = ien.recommended(model, "rot4", 4, images(), optimizer)
    for given in (model, objective):
        with pytest.raises(ValueError, match=r"what start_equivariant returned.*is kept already"):
            ien.keep_equivariant(given, optimizer)
    with pytest.raises(ValueError, match="no parameter of the model: create it with"):
        ien.keep_equivariant(start, SGD(classifier().parameters(), lr=0.1))
