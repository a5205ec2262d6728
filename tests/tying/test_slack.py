"""Slack: against the formulas, a brute-force loop over pairs of steps, and chance itself."""

from __future__ import annotations

import copy
import math
import statistics
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.groups.members import num_channels
from ien.tying.listening import Listener
from ien.tying.projection import Tie
from ien.tying.slack import Remainder
from tests.helpers.two_processes import together

BLOCKS = [
    ("rot4", ((4, 8),), ((4, 4), (1, 2))),
    ("rot4xflip", ((8, 8), (1, 2)), ((1, 3),)),
    ("rot8", ((8, 16),), ((8, 8),)),
    ("flip", ((2, 4),), ((2, 4),)),
]


def weights(group: str, after, before, count: int = 1) -> tuple[Tie, Tensor]:
    tie = Tie(ien.group(group), after, before, smooth=True)
    shape = (count, num_channels(after), num_channels(before), 3, 3)
    return tie, torch.randn(shape, dtype=torch.float64)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def arrows(count: int, seed: int, every_way: bool) -> tuple[Tensor, Tensor]:
    """Blurred bars whose class is where they lie; in every orientation this cannot be told."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=rng)
    x = torch.rand(count, 1, 9, 9, generator=rng)
    for i, label in enumerate(y.tolist()):
        x[i, 0, 1 + 3 * label] += 2.0
    if every_way:
        x = ien.rotation(4).act(x, torch.randint(4, (count,), generator=rng))
    return x, y


@pytest.mark.parametrize(("group", "after", "before"), BLOCKS)
def test_a_projection_is_the_mean_of_what_elements_make_of_a_weight(group, after, before) -> None:
    tie, (weight,) = weights(group, after, before)
    exact = [i for i, is_exact in enumerate(tie.group.exact) if is_exact]
    mean = sum(tie.moved(weight, i) for i in exact) / len(exact)
    torch.testing.assert_close(tie.exactly().project(weight), mean)


@pytest.mark.parametrize(("group", "after", "before"), BLOCKS)
def test_a_remainder_is_orthogonal_to_every_tied_weight(group, after, before) -> None:
    tie, (free, any_weight) = weights(group, after, before, 2)
    remainder = Remainder(tie, free, slack=1.0)
    with torch.no_grad():
        remainder.free.copy_(free)
        r = remainder.value()
        tied = tie.project(any_weight)
        assert abs(float((r * tied).sum())) < 1e-10 * float(r.norm() * tied.norm())
        torch.testing.assert_close(remainder(tied), tied + r)
        torch.testing.assert_close(remainder.right_inverse(remainder(tied)), tied)
    assert float(r.norm()) > 0.5 * float(free.norm())


def test_an_equivariant_kernel_that_is_not_smooth_is_no_part_of_a_remainder() -> None:
    tie, (weight,) = weights("rot4", ((4, 8),), ((4, 4),))
    equivariant = sum(tie.moved(weight, i) for i in range(4)) / 4
    assert (equivariant - tie.project(equivariant)).abs().max() > 0.1  # too rough for smooth kernels
    remainder = Remainder(tie, weight, slack=1.0)
    with torch.no_grad():
        remainder.free.copy_(equivariant)
        assert remainder.value().abs().max() < 1e-12


def test_the_penalty_is_the_sum_over_layers_and_leaves_the_tied_part_alone() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack={"": 2.0, "3": 0.5, "8": 0})
    assert tied.penalty() == 0
    expected = 0.0
    with torch.no_grad():
        for name, slack in (("0", 2.0), ("3", 0.5)):
            parametrizations = model.get_submodule(name).parametrizations.weight
            remainder = parametrizations[1]
            without = parametrizations[0](parametrizations.original)
            remainder.free.normal_()
            r = model.get_submodule(name).weight - without
            expected += float(r.square().sum() / without.square().sum()) / slack
            assert tied.slack()[name] == pytest.approx(float(r.norm() / without.norm()))
    penalty = tied.penalty()
    assert penalty.item() == pytest.approx(expected)
    penalty.backward()
    assert model[3].parametrizations.weight.original.grad is None
    assert model[3].parametrizations.weight[1].free.grad.any()


@pytest.mark.parametrize("after_a_forward_pass", [True, False])
def test_the_gradient_of_the_penalty_is_that_of_its_formula(after_a_forward_pass: bool) -> None:
    model = net().double()
    x = torch.rand(4, 1, 9, 9, dtype=torch.float64)
    tied = ien.make_equivariant(model, "rot4", x, slack=0.5)
    for remainder in tied.remainders.values():
        nn.init.normal_(remainder.free)
    if after_a_forward_pass:
        model.train()(x)
    tied.penalty().backward()
    for name, remainder in tied.remainders.items():
        parametrizations = model.get_submodule(name).parametrizations.weight
        size = parametrizations[0](parametrizations.original).detach().square().sum()
        free = remainder.free.detach().clone().requires_grad_()
        mean = sum(remainder.tie.moved(free, i) for i in range(4)) / 4  # P r, written out
        ((free - mean).square().sum() / (0.5 * size)).backward()
        torch.testing.assert_close(remainder.free.grad, free.grad)


def test_a_penalty_asked_for_before_the_forward_pass_is_that_of_the_weights_as_they_are() -> None:
    torch.manual_seed(0)
    x, y = arrows(16, 0, every_way=False)
    models = [net() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    found = []
    for model, is_first in zip(models, (True, False), strict=True):
        torch.manual_seed(0)
        tied = ien.make_equivariant(model, "rot4", x[:4], slack=0.01)
        optimizer = torch.optim.SGD(tied.parameter_groups(0.1))
        for _ in range(4):
            loss = tied.penalty() if is_first else torch.zeros(())
            loss = loss + F.cross_entropy(model(x), y)
            if not is_first:
                loss = loss + tied.penalty()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(tied.remainders["3"].free.detach())
        with torch.no_grad():
            model(x)
            for remainder in tied.remainders.values():
                remainder.free.mul_(2)  # as if another state was loaded
        squares = sum(value**2 for value in tied.slack().values())
        assert tied.penalty().item() == pytest.approx(squares / 0.01, rel=1e-4)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("slack", [0, 0.0, {"": 0.0}, {}])
def test_without_slack_there_is_no_remainder(slack) -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=slack)
    assert not [module for module in model.modules() if isinstance(module, Remainder)]
    assert tied.penalty() == 0 and set(tied.slack().values()) == {0.0}
    assert len(tied.parameter_groups(0.1)) == 1


def test_remainders_learn_at_a_tenth_of_the_rate_and_without_decay() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=1.0)
    others, remainders = tied.parameter_groups(0.1)
    assert others["lr"] == 0.1 and remainders["lr"] == pytest.approx(0.01)
    assert remainders["weight_decay"] == 0
    assert [tuple(p.shape) for p in remainders["params"]] == [(24, 1, 3, 3), (24, 24, 3, 3), (3, 24)]
    both = [id(p) for p in (*others["params"], *remainders["params"])]
    assert sorted(both) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize(("group", "after", "before"), [*BLOCKS, ("rot4xflip", ((1, 2),), ((8, 8), (1, 3)))])
def test_what_is_heard_equals_a_loop_over_pairs_of_steps(group, after, before) -> None:
    tie, gradients = weights(group, after, before, 6)
    listener = Listener({"a": Remainder(tie, gradients[0], 1.0), "b": Remainder(tie, gradients[0], 1.0)})
    for h in gradients.float():
        listener.hear({"a": h, "b": 2 * h}, epoch=0)
    exact = [i for i, is_exact in enumerate(tie.group.exact) if is_exact]
    free = [h - tie.exactly().project(h) for h in gradients]
    signal = variance = 0.0
    for t in range(6):
        before_t = sum(free[:t], torch.zeros_like(free[0]))
        squares = sum(float(h.square().sum()) for h in free[: t + 1])
        products = [float((before_t * tie.moved(free[t], i)).sum()) / squares for i in exact]
        signal += products[0]
        variance += statistics.mean(product**2 for product in products)
    for name in ("a", "b", ""):  # the scale of a gradient does not matter
        evidence = listener.evidence(name)
        assert evidence.signal == pytest.approx(signal, rel=1e-4, abs=1e-6)
        assert evidence.deviation == pytest.approx(math.sqrt(variance), rel=1e-4)
        assert evidence.certainty == pytest.approx(signal / math.sqrt(variance), rel=1e-4, abs=1e-5)
    listener.hear({"a": h, "b": h}, epoch=1)  # images come again: what was heard is forgotten
    assert listener.evidence("a").steps == 1


def heard(common: float, seed: int) -> float:
    """The certainty after 20 steps of random gradients, each under a random element."""
    rng = torch.Generator().manual_seed(seed)
    tie = Tie(ien.rotation(4), ((4, 8),), ((4, 4),))
    remainder = Remainder(tie, torch.zeros(8, 4, 3, 3), 1.0)
    listener = Listener({"conv": remainder})
    shared = torch.randn(8, 4, 3, 3, generator=rng)
    for _ in range(20):
        scale = 10 ** torch.randn(8, 1, 1, 1, generator=rng)  # some channels dominate some steps
        h = scale * torch.randn(8, 4, 3, 3, generator=rng)
        h = tie.moved(h - tie.project(h), int(torch.randint(4, (), generator=rng)))
        listener.hear({"conv": h + common * shared}, epoch=0)
    return listener.evidence().certainty


def test_chance_has_mean_0_and_variance_1() -> None:
    found = [heard(0.0, seed) for seed in range(200)]
    assert abs(statistics.mean(found)) < 3 / math.sqrt(200)
    assert 0.8 < statistics.stdev(found) < 1.2
    assert max(found) < 4  # once in 30,000 trials


def test_the_signal_counts_the_steps_whose_noise_would_hide_it() -> None:
    rng = torch.Generator().manual_seed(0)
    tie = Tie(ien.rotation(4), ((4, 8),), ((4, 4),))
    listener = Listener({"conv": Remainder(tie, torch.zeros(8, 4, 3, 3), 1.0)})
    common = torch.randn(8, 4, 3, 3, generator=rng)
    common -= tie.project(common)
    for _ in range(400):
        h = torch.randn(8, 4, 3, 3, generator=rng)
        listener.hear({"conv": h - tie.project(h) + common / 2}, epoch=0)
    size = float((common / 2).square().sum())
    noise = 288 * 3 / 4  # a quarter of the numbers of a normal gradient is tied
    assert listener.evidence().signal == pytest.approx(400 * size / (size + noise), rel=0.1)


def test_a_common_part_is_heard() -> None:
    assert min(heard(30.0, seed) for seed in range(5)) > 4


@pytest.mark.parametrize("group", ["rot4", "rot2xflip", "flip"])
def test_rotated_images_give_rotated_gradients_whose_mean_over_the_group_is_0(group) -> None:
    x, y = arrows(8, 0, every_way=False)
    model = net().double()
    tied = ien.make_equivariant(model, group, x[:4].double(), slack=1.0)
    parsed = ien.group(group)
    gradients = []
    for i in range(len(parsed)):
        model.zero_grad()
        F.cross_entropy(model(parsed.act(x.double(), torch.full((8,), i))), y).backward()
        gradients.append({name: h.clone() for name, h in tied.gradients().items()})
    for name, remainder in tied.remainders.items():
        h = gradients[0][name]
        for i in range(len(parsed)):
            torch.testing.assert_close(gradients[i][name], remainder.tie.moved(h, i), atol=1e-10, rtol=1e-6)
        assert float(sum(each[name] for each in gradients).norm()) < 1e-10 * len(parsed) * float(h.norm())


def test_a_tied_network_learns_the_same_from_images_in_other_orientations() -> None:
    # what the test of symmetry rests on: training is blind to how an image lies
    x, y = arrows(32, 0, every_way=False)
    rotated = ien.rotation(4).act(x, torch.randint(4, (32,), generator=torch.Generator().manual_seed(1)))
    torch.manual_seed(0)
    first = net().double()
    ien.make_equivariant(first, "rot4", x[:4].double())
    second = copy.deepcopy(first)
    for model, images in ((first, x), (second, rotated)):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(10):
            F.cross_entropy(model(images.double()), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-7)


def trained(every_way: bool, epochs: int = 4) -> tuple[nn.Module, ien.Tied]:
    torch.manual_seed(0)
    x, y = arrows(512, 3, every_way)
    model = net()
    tied = ien.make_equivariant(model, "rot4", x[:4], slack="auto")
    optimizer = torch.optim.Adam(tied.parameter_groups(1e-2))
    model.train()
    for epoch in range(epochs):
        for batch in torch.randperm(512).split(16):
            loss = F.cross_entropy(model(x[batch]), y[batch]) + tied.penalty()
            loss.backward()
            tied.listen(epoch)
            optimizer.step()
            optimizer.zero_grad()
    return model, tied


@pytest.mark.usefixtures("one_thread")
def test_symmetric_images_leave_a_network_tied_and_others_open_it() -> None:
    model, tied = trained(every_way=True)
    assert set(tied.slack().values()) == {0.0}
    x = torch.rand(4, 1, 9, 9)
    torch.testing.assert_close(model.eval()(x.rot90(1, (2, 3))), model(x))
    assert tied.evidence()[""].certainty < 4
    assert str(tied).splitlines()[-1].startswith("listening, all weights are tied: certainty")
    model, tied = trained(every_way=False)
    assert str(tied).endswith("): remainders learn")
    with pytest.raises(ValueError, match="weights have left the symmetry, as slack allows"):
        tied.check(torch.rand(4, 1, 9, 9))
    assert tied.slack()["3"] > 0.05
    assert tied.evidence()[""].certainty > 4
    x, y = arrows(256, 4, every_way=False)
    accuracy = float((model.eval()(x).argmax(1) == y).float().mean())
    assert accuracy > 0.9  # a tied network cannot tell the first class from the last
    plain = ien.plain_copy(model)
    assert torch.equal(plain(x), model(x))
    assert list(plain.state_dict()) == list(net().state_dict())


def test_what_was_heard_is_saved_and_loaded() -> None:
    gradients = torch.randn(30, 24, 1, 3, 3)
    models = [net() for _ in range(2)]
    heard_by = []
    for model in models:
        torch.manual_seed(0)
        heard_by.append(ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack={"0": "auto"}))
    whole, resumed = heard_by

    def hear(tied: ien.Tied, model: nn.Module, h: Tensor) -> None:
        model[0].parametrizations.weight[1].free.grad = h.clone()
        tied.listen(0)

    for h in gradients:
        hear(whole, models[0], h)
    for h in gradients[:12]:
        hear(resumed, models[1], h)
    state = copy.deepcopy(resumed.state_dict())
    other_model = net()
    other = ien.make_equivariant(other_model, "rot4", torch.rand(4, 1, 9, 9), slack={"0": "auto"})
    other.load_state_dict(state)
    for h in gradients[12:]:
        hear(other, other_model, h)
    assert other.evidence() == whole.evidence()
    with pytest.raises(ValueError, match="other layers"):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack="auto").load_state_dict(state)


def test_a_number_of_numpy_for_an_epoch_is_saved_as_a_number(tmp_path) -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    model(torch.rand(4, 1, 9, 9)).sum().backward()
    tied.listen(np.int64(3), np.int64(1))
    torch.save(tied.state_dict(), tmp_path / "heard.pt")
    state = torch.load(tmp_path / "heard.pt", weights_only=True)
    other = ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    other.load_state_dict(state)
    assert other.evidence() == tied.evidence() and tied.evidence()[""].steps == 1


def test_a_state_of_something_else_is_refused() -> None:
    listening, fixed, plain = (
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack=slack) for slack in ("auto", 1.0, 0)
    )
    for tied in (listening, fixed, plain):
        with pytest.raises(TypeError, match=r"state must be what tied\.state_dict\(\) returned; got a list"):
            tied.load_state_dict([1])
    for tied in (fixed, plain):
        assert tied.state_dict() == {}
        tied.load_state_dict({})
        with pytest.raises(ValueError, match='a model with slack="auto", and this model has another slack'):
            tied.load_state_dict(listening.state_dict())


def test_a_model_that_was_made_plain_has_no_slack_to_tell() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    ien.plain_copy(model)
    assert set(tied.slack().values()) == {0.0}
    ien.make_plain(model)
    for call in (tied.slack, tied.penalty, tied.plot, lambda: tied.listen(0)):
        with pytest.raises(ValueError, match=r"ordinary weights now.*ask before ien\.make_plain\(model\)"):
            call()
    title, _, first, *_ = str(tied).splitlines()
    assert title.endswith("(100%)") and first.split()[-1] == "–"


def test_a_loop_without_listening_stays_tied() -> None:
    model = net()
    x, y = arrows(16, 0, every_way=False)
    tied = ien.make_equivariant(model, "rot4", x[:4], slack="auto")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(5):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model[3].parametrizations.weight[1].free.any()  # the optimizer has moved it, to no effect
    assert set(tied.slack().values()) == {0.0} and tied.penalty() == 0
    model.eval()
    torch.testing.assert_close(model(x.rot90(1, (2, 3))), model(x))
    for remainder in tied.remainders.values():
        remainder.open()  # from 0 on
    assert set(tied.slack().values()) == {0.0}


def test_a_model_that_has_opened_is_open_when_its_state_is_loaded() -> None:
    models = [net() for _ in range(2)]
    both = [ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto") for model in models]
    for remainder in both[0].remainders.values():
        remainder.open()
    with torch.no_grad():
        both[0].remainders["3"].free.normal_()
    models[1].load_state_dict(models[0].state_dict())
    assert both[1].slack() == both[0].slack() and both[1].slack()["3"] > 0
    assert both[1].penalty() > 0
    both[1].listen(0)  # it listens no more, and needs no gradients


def test_a_model_that_is_moved_in_inference_mode_still_runs() -> None:
    model = net().eval()
    x = torch.rand(4, 1, 9, 9)
    ien.make_equivariant(model, "rot4", x, slack="auto")
    before = model(x)
    with torch.inference_mode():
        torch.testing.assert_close(model.double()(x.double()).float(), before)


def test_listening_needs_gradients_and_auto() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    with pytest.raises(RuntimeError, match=r"no layer has a gradient.*before optimizer\.zero_grad"):
        tied.listen(0)
    tied = ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack=1.0)
    with pytest.raises(ValueError, match=r'slack="auto"'):
        tied.listen(0)


NOT_EPOCHS = {
    "a function": ((lambda: 0,), TypeError, "the number of the epoch: no held-out images are needed"),
    "text": (("0",), TypeError, "such as 0, or None .* got '0'"),
    "NaN": ((math.nan,), TypeError, "got nan"),
    "a fraction": ((1.5,), TypeError, r"got 1\.5"),
    "a bool": ((True,), TypeError, "got True"),
    "below 0": ((-1,), ValueError, "0 or more; got -1"),
    "no views": ((0, 0), ValueError, "views must be 1 or more"),
    "half a view": ((0, 0.5), TypeError, r"views must be a whole number, .* got 0\.5"),
}


@pytest.mark.parametrize("name", NOT_EPOCHS)
def test_what_is_no_number_of_an_epoch_is_refused(name) -> None:
    arguments, error, message = NOT_EPOCHS[name]
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    model(torch.rand(4, 1, 9, 9)).sum().backward()
    with pytest.raises(error, match=message):
        tied.listen(*arguments)
    assert tied.evidence()[""].steps == 0


def test_an_epoch_that_goes_down_is_warned_of_once() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    model(torch.rand(4, 1, 9, 9)).sum().backward()
    tied.listen(np.int64(3))  # as np.arange counts
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in (2, None, 1):
            model(torch.rand(4, 1, 9, 9)).sum().backward()
            tied.listen(epoch)
    assert [str(each.message).partition(":")[0] for each in caught] == [
        "tied.listen was given epoch 2 after epoch 3"
    ]
    assert caught[0].filename == __file__


def test_a_loss_without_the_penalty_is_warned_of_once_remainders_learn() -> None:
    model = net()
    x, y = arrows(16, 0, every_way=False)
    tied = ien.make_equivariant(model, "rot4", x[:4], slack="auto")

    def step(penalised: bool) -> list[str]:
        loss = F.cross_entropy(model(x), y)
        if penalised:
            loss = loss + tied.penalty()
        loss.backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tied.listen(0)
        return [str(each.message) for each in caught]

    assert step(penalised=False) == []  # while all weights are tied there is none
    for remainder in tied.remainders.values():
        remainder.open()
    assert step(penalised=True) == []
    (message,) = step(penalised=False)
    assert "add tied.penalty() to the loss" in message
    assert step(penalised=False) == []


@pytest.mark.parametrize("lr", [math.nan, math.inf, -1, True, "1e-3", None])
def test_a_rate_that_no_optimizer_can_use_is_refused(lr) -> None:
    tied = ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    with pytest.raises(ValueError, match="lr must be a number of 0 or more"):
        tied.parameter_groups(lr)


def test_a_layer_that_did_not_run_and_a_step_of_two_epochs_are_passed_over() -> None:
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack="auto")
    x, y = arrows(16, 0, every_way=False)
    F.cross_entropy(model(x), y).backward()
    tied.remainders["3"].free.grad = None
    tied.listen(0)
    assert tied.evidence()["3"].signal == 0 and tied.evidence()[""].steps == 1
    F.cross_entropy(model(x), y).backward()
    tied.listen(None)
    assert tied.evidence()[""].steps == 1
    assert all(remainder.free.grad is None for remainder in tied.remainders.values())


def test_frozen_layers_and_numbers_per_channel_have_no_slack() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma, self.beta = (nn.Parameter(torch.rand(24, 1, 1)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gamma + self.beta

    layers = [nn.Conv2d(1, 24, 3), Scale(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.Conv2d(24, 2, 3)]
    model = nn.Sequential(*layers)
    model[2].requires_grad_(False)
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=1.0)
    assert list(tied.remainders) == ["0", "4"]
    assert len([module for module in model.modules() if isinstance(module, Remainder)]) == 2


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_what_a_norm_of_weights_computes_may_have_slack(norm) -> None:
    model = net()
    getattr(nn.utils.parametrizations, norm)(model[3])
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=1.0)
    assert tied.slack()["3"] == 0 and "slack" in str(tied)
    with torch.no_grad():
        tied.remainders["3"].free.normal_()
    assert tied.slack()["3"] > 0 and tied.penalty().item() == pytest.approx(tied.slack()["3"] ** 2)


def test_numbers_beside_auto_are_refused() -> None:
    with pytest.raises(ValueError, match=r'slack cannot be 2\.0 beside "auto"'):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack={"": "auto", "3": 2.0})


@pytest.mark.parametrize("slack", [-1.0, math.nan, math.inf, "some", True, None, np.ones(2), [1.0]])
def test_other_slack_is_refused(slack) -> None:
    with pytest.raises(ValueError, match='slack must be a number of 0 or more, or "auto"'):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack=slack)
    with pytest.raises(ValueError, match="slack of layer '3' must be a number of 0 or more"):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack={"": 1.0, "3": slack})


def test_a_number_of_numpy_is_a_number() -> None:
    tied = ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack=np.float32(0.5))
    assert {remainder.slack for remainder in tied.remainders.values()} == {0.5}


@pytest.mark.parametrize("name", ["conv3", 3])
def test_slack_of_an_unknown_layer_is_refused_with_the_nearest_name(name) -> None:
    with pytest.raises(KeyError, match=f"slack names {name!r}, which the model does not have"):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack={name: 1.0})
    with pytest.raises(KeyError, match="choose from '', 0, 1"):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9), slack={"conv": 1.0})


def test_slack_of_a_layer_that_cannot_have_any_is_refused_beside_others() -> None:
    images = torch.rand(4, 1, 9, 9)
    for name, what in (("1", 2.0), ("2", "auto")):  # a norm, and a ReLU
        with pytest.raises(ValueError, match=f"slack of '{name}' has no effect: name a convolution"):
            ien.make_equivariant(net(), "rot4", images, slack={"": what, name: what})
    model = nn.Sequential(net()[:3], net()[3:])
    tied = ien.make_equivariant(model, "rot4", images, slack={"0": 1.0, "1": 2.0, "1.3": 0})  # modules
    assert list(tied.remainders) == ["0.0", "1.8"]


def test_a_group_that_weights_cannot_be_tied_to_points_to_the_loss() -> None:
    with pytest.raises(ValueError, match=r"got scale0\.8: .* train with ien\.EquivarianceLoss"):
        ien.make_equivariant(net(), "scale0.8", torch.rand(4, 1, 9, 9), slack="auto")


def test_slack_that_no_layer_can_have_is_refused_and_changes_nothing() -> None:
    model = net().requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    for slack, message in (({"1": 1.0}, "slack of '1' has no effect"), ("auto", "slack has no effect")):
        with pytest.raises(ValueError, match=message):
            ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=slack)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_two_modules_that_share_a_weight_share_its_remainder() -> None:
    first, second = (nn.Conv2d(24, 24, 3, padding=1) for _ in range(2))
    second.weight = first.weight
    model = nn.Sequential(nn.Conv2d(1, 24, 3), first, nn.ReLU(), second, nn.Conv2d(24, 2, 1))
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack=1.0)
    with torch.no_grad():
        first.parametrizations.weight[1].free.normal_()
    assert torch.equal(first.weight, second.weight)
    assert tied.penalty().item() == pytest.approx(tied.slack()["1"] ** 2)
    ien.make_plain(model)
    assert model[1].weight is model[3].weight


@pytest.mark.parametrize("slack", [1.0, "auto"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_a_compiled_model_with_slack_learns_as_the_model_itself(slack) -> None:
    x, y = arrows(16, 0, every_way=False)
    model = net()
    tied = ien.make_equivariant(model, "rot4", x[:4], slack=slack)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for run in (model, compiled):
        model.zero_grad()
        F.cross_entropy(run(x), y).backward()
        gradients = [remainder.free.grad.clone() for remainder in tied.remainders.values()]
        if run is model:
            expected = gradients
    torch.testing.assert_close(gradients, expected)


def listen_together(processes, folder) -> None:
    """Hear the gradients of two processes with different images, which torch averages."""
    torch.manual_seed(processes.rank)
    model = net()
    tied = ien.make_equivariant(model, "rot4", arrows(4, 0, every_way=False)[0], slack="auto")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(tied.parameter_groups(1e-2))
    x, y = arrows(256, processes.rank, every_way=False)
    for batch in torch.arange(256).split(8):
        loss = F.cross_entropy(parallel(x[batch]), y[batch]) + tied.penalty()
        loss.backward()
        tied.listen(0)
        optimizer.step()
        optimizer.zero_grad()
    torch.save((tied.evidence()[""].certainty, tied.slack()), folder / f"{processes.rank}.pt")


@pytest.mark.slow
def test_two_processes_hear_the_same_and_open_together(tmp_path) -> None:
    together(listen_together, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second
    certainty, slack = first
    assert certainty > 4 and slack["3"] > 0


def test_a_plot_of_slack_has_a_bar_for_each_layer_that_may_leave_the_symmetry() -> None:
    pytest.importorskip("matplotlib")
    model = net()
    tied = ien.make_equivariant(model, "rot4", torch.rand(4, 1, 9, 9), slack={"": 0, "0": 1.0, "3": 1.0})
    with torch.no_grad():
        tied.remainders["3"].free.normal_()
    figure = tied.plot()
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "3"]
    assert [bar.get_width() for bar in axes.patches] == [0, pytest.approx(tied.slack()["3"])]
    assert axes.get_title() == "" and "rot4" in axes.get_title("left")
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no layer has slack"):
        ien.make_equivariant(net(), "rot4", torch.rand(4, 1, 9, 9)).plot()
