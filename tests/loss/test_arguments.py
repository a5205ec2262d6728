"""Extra arguments of forward: the loss and measure against a module that closes over them."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import ien
from ien.loss.arguments import check_arguments, cut_for_batch, repeat_for_views
from tests.helpers.losses import R4, R8, images, net
from tests.helpers.nets import Function

CPU = torch.device("cpu")
Named = namedtuple("Named", "mask scale")


class Conditioned(nn.Module):
    """Two layers of maps, whose inputs are scaled and shifted by what comes with the images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x, scale, *, shifts, power=1.0):
        h = self.layers[:2](x * scale.view(-1, 1, 1, 1)) ** power
        return self.layers[2:](h + shifts["b"][0].view(len(h), -1, 1, 1))


def arguments(n: int) -> tuple:
    scale = torch.rand(n, dtype=torch.float64) + 0.5
    return (scale,), {"shifts": {"b": [torch.rand(n, 8, dtype=torch.float64)]}, "power": 2.0}


class Wrapped(nn.Module):
    """The same model behind images alone, with layers under the name ``inner``."""

    def __init__(self, inner: Conditioned, args: tuple, kwargs: dict) -> None:
        super().__init__()
        self.inner = inner
        self.args, self.kwargs = args, kwargs

    def forward(self, x):
        views = max(len(x) // len(self.args[0]), 1)  # measure tries a model on two images first
        scale = torch.cat([self.args[0]] * views)[: len(x)]
        shift = torch.cat([self.kwargs["shifts"]["b"][0]] * views)[: len(x)]
        return self.inner(x, scale, shifts={"b": [shift]}, power=self.kwargs["power"])


@pytest.mark.parametrize("samples", [0, 1, 2, "all"])
def test_the_loss_equals_that_of_a_module_that_closes_over_its_arguments(samples) -> None:
    model, x = Conditioned(), images(3)
    args, kwargs = arguments(3)
    groups = [R4, ien.reflection()] if samples in (0, 1) else R8
    objective = ien.EquivarianceLoss(groups, ["layers.1", "layers.3"], 4, samples=samples)
    inside = ien.EquivarianceLoss(groups, ["inner.layers.1", "inner.layers.3"], 4, samples=samples)
    g = objective.sample(3)
    out = objective(model, x, args=args, kwargs=kwargs, g=g)
    expected = inside(Wrapped(model, args, kwargs), x, g=g)
    assert torch.equal(out.output, expected.output) and torch.equal(out.loss, expected.loss)
    assert len(out.output) == 3 * out.views


def test_gradients_reach_arguments_that_are_repeated() -> None:
    model, x = Conditioned(), images(2)
    args, kwargs = arguments(2)
    scale = args[0].requires_grad_()
    objective = ien.EquivarianceLoss(R4, ["layers.3"], 4, samples="all")
    (actual,) = torch.autograd.grad(objective(model, x, args=args, kwargs=kwargs).loss, scale)

    def loss(value):
        return objective(model, x, args=(value,), kwargs=kwargs).loss

    assert actual.abs().min() > 0
    step = torch.tensor([1e-6, 0.0], dtype=torch.float64)
    difference = (loss(scale + step) - loss(scale - step)) / 2e-6
    assert float(actual[0]) == pytest.approx(difference.item(), rel=1e-5)


@pytest.mark.parametrize("layers", [None, ["layers.1", "layers.3"]])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_measure_cuts_arguments_into_the_batches_of_the_images(layers, batch_size) -> None:
    model, x = Conditioned(), images(5)
    args, kwargs = arguments(5)
    report = ien.measure(model, x, R8, layers, 4, args=args, kwargs=kwargs, batch_size=batch_size)
    inside = ["inner." + name for name in report.layers]
    expected = ien.measure(Wrapped(model, args, kwargs), x, R8, inside, 4, batch_size=5)
    for layer, same in zip(report.layers.values(), expected.layers.values(), strict=True):
        assert layer.relative == pytest.approx(same.relative, rel=1e-12)
        assert layer.floor == pytest.approx(same.floor, rel=1e-12)
    assert layers is None or list(report.layers) == layers


def test_measure_passes_arguments_as_they_are_to_batches_of_a_loader() -> None:
    class Powered(nn.Conv2d):
        def forward(self, x, table, power):
            return super().forward(x) ** power + table.sum()

    torch.manual_seed(0)
    model, x, table = Powered(1, 4, 3).double(), images(5), torch.rand(5, dtype=torch.float64)
    batches = ien.measure(model, [x[:2], x[2:]], R4, "", 4, args=(table,), kwargs={"power": 3})
    plain = nn.Sequential(nn.Conv2d(1, 4, 3).double(), Function(lambda h: h**3 + table.sum()))
    plain[0].load_state_dict(model.state_dict())
    expected = ien.measure(plain, x, R4, "1", 4).layers["1"].relative
    assert batches.layers[""].relative == pytest.approx(expected, rel=1e-12)


def test_only_tensors_with_an_entry_for_each_image_are_repeated() -> None:
    mask, table, number = torch.rand(2, 3), torch.rand(3, 2), torch.tensor(2.0)
    given = (
        (mask, [table, Named(mask, number)], None, "bilinear"),
        {"nested": {"mask": (mask,)}, "table": table},
    )
    args, kwargs = repeat_for_views(*given, batch_size=2, views=3)
    thrice = torch.cat([mask, mask, mask])
    assert torch.equal(args[0], thrice) and torch.equal(kwargs["nested"]["mask"][0], thrice)
    assert args[1][0] is table and kwargs["table"] is table
    assert type(args[1][1]) is Named and torch.equal(args[1][1].mask, thrice) and args[1][1].scale is number
    assert args[2:] == (None, "bilinear")
    args, kwargs = cut_for_batch(*given, num_images=3, batch=slice(1, 3), device=CPU)
    assert args[0] is mask and torch.equal(args[1][0], table[1:]) and torch.equal(kwargs["table"], table[1:])


def test_views_follow_each_other_as_in_the_batch_of_the_loss() -> None:
    seen = []

    class Notes(nn.Conv2d):
        def forward(self, x, index):
            seen.append((x, index))
            return super().forward(x)

    x, g = images(3), torch.tensor([1, 2, 3])
    ien.EquivarianceLoss(R4, "", 4)(Notes(1, 4, 3).double(), x, args=[torch.arange(3)], g=g)
    ((views, index),) = seen
    for view, i in zip(views[3:], index[3:], strict=True):
        assert torch.equal(view, R4.act(x[i : i + 1], g[i : i + 1])[0])


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        (torch.rand(2), None, r"args must be a tuple .*such as args=\(mask,\); got a Tensor"),
        ("abc", None, "args must be a tuple .*; got a str"),
        ((), [1], r"kwargs must be a dict .*; got a list"),
        ((), {1: 2}, r"kwargs must be a dict .*; got the keys \[1\]"),
    ],
)
def test_arguments_of_another_kind_are_named(args, kwargs, match) -> None:
    model, x = net(), images(2)
    with pytest.raises(TypeError, match=match):
        check_arguments(args, kwargs)
    with pytest.raises(TypeError, match=match):
        ien.EquivarianceLoss(R4, ["1"], 4)(model, x, args=args, kwargs=kwargs)
    with pytest.raises(TypeError, match=match):
        ien.measure(model, x, R4, ["1"], 4, args=args, kwargs=kwargs)


def test_a_missing_argument_is_named_with_the_way_to_pass_it() -> None:
    with pytest.raises(ValueError, match=r"missing .*'scale'.*as args=\(…,\) and kwargs=\{…\}"):
        ien.measure(Conditioned(), images(2), R4)
