"""The table that make_equivariant returns."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ien

IMAGES = torch.rand(4, 1, 9, 9)


class Partly(nn.Module):
    """A network with a frozen map of positions, and a layer that does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(9, 9), requires_grad=False)
        self.body = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
        self.aside = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.positions)


def test_the_table_has_a_row_for_each_layer_and_says_what_is_not_tied() -> None:
    model = Partly()
    tied = ien.make_equivariant(model, "rot4", IMAGES)
    title, header, first, second, legend, *notes = str(tied).splitlines()
    # 8 of 32 kernels and biases, 8 of 32 kernels for each of 2 outputs, and what is not tied
    stored = 8 * 9 + 8 + 8 * 9 * 2 + 2 + 81 + 12
    plain = 32 * 9 + 32 + 32 * 9 * 2 + 2 + 81 + 12
    assert title == f"equivariant to rot4: stores {stored} of {plain} numbers ({stored / plain:.0%})"
    assert header.split() == ["layer", "in", "out", "moved", "error"]
    assert legend.startswith("in, out: size of feature groups; moved: ") and "between" not in legend
    assert first.split()[:3] == ["body.0", "1", "4"]
    assert second.split()[:3] == ["body.2", "4", "1"]
    assert notes == [
        "did not run, and were not changed: aside",
        "frozen, and not tied: keep them frozen: positions",
    ]
    assert "frozen, and not tied" in tied._repr_html_()  # a notebook shows the table too
    assert tied.share == stored / plain


def test_lazy_layers_are_tied_once_they_know_their_channels() -> None:
    model = nn.Sequential(nn.LazyConv2d(32, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Conv2d(32, 2, 3))
    tied = ien.make_equivariant(model, "rot4", IMAGES)
    assert list(tied.layers) == ["0", "3"]
    assert tied.plain_count == 32 * 9 + 32 + 2 * 32 + 32 * 9 * 2 + 2
    model.eval()
    rotated = model(IMAGES.rot90(1, (-2, -1)))
    torch.testing.assert_close(rotated, model(IMAGES).rot90(1, (-2, -1)))


def test_nothing_leaves_the_symmetry() -> None:
    model = Partly()
    tied = ien.make_equivariant(model, "rot4", IMAGES)
    assert tied.penalty() == 0
    assert tied.slack() == {"body.0": 0, "body.2": 0}
    (group,) = tied.parameter_groups(lr=0.1)
    assert group["lr"] == 0.1
    assert list(map(id, group["params"])) == list(map(id, model.parameters()))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_model_made_plain_without_gradients_can_be_trained(context: Any) -> None:
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 32, 3))
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), conv, nn.Conv2d(32, 2, 3))
    ien.make_equivariant(model, "rot4", IMAGES)
    with context():
        model.eval()(IMAGES)
        copied = ien.plain_copy(model)
        ien.make_plain(model)
    for plain in (copied, model):
        parameters = dict(plain.named_parameters())
        assert {"0.weight", "1.weight", "3.weight", "4.weight"} <= set(parameters)
        plain.train()(IMAGES).square().sum().backward()
        assert all(parameter.grad is not None for parameter in parameters.values())


def strided() -> nn.Sequential:
    """Exact at odd sizes."""
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 4, 3))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 16, 16), r"layer '0' \(Conv2d\) breaks rot4; doctor: .* exact input sizes: .*17"),
        (torch.ones(2, 3, 17, 17, dtype=torch.uint8), r"use images.float\(\) / 255"),
        (torch.full((2, 3, 17, 17), torch.nan), "images hold NaN"),
        ("images", "images must be a batch .*; got a str"),
    ],
)
def test_a_check_that_cannot_pass_says_why(images, message) -> None:
    net = strided()
    tied = ien.make_equivariant(net, "rot4", torch.rand(2, 3, 17, 17))
    assert max(tied.check(torch.rand(3, 3, 21, 21)).values()) < 1e-10
    with pytest.raises((ValueError, TypeError), match=message):
        tied.check(images)


def test_a_norm_that_was_replaced_is_noticed_before_it_breaks_anything() -> None:
    net = strided()
    tied = ien.make_equivariant(net, "rot4", torch.rand(2, 3, 17, 17))
    net[1] = nn.BatchNorm2d(32)
    with pytest.raises(ValueError, match="a BatchNorm2d is no longer tied: it was replaced or converted"):
        tied.check(torch.rand(2, 3, 17, 17))


class WithFeatures(nn.Module):
    """Returns the features of a residual block beside scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, padding=1)
        self.scores = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.stem(x)
        h = h + self.block(h.relu())
        return self.scores(h.mean((2, 3))), h


def test_features_that_leave_the_model_are_single_channels_with_a_warning_unless_named() -> None:
    x = torch.rand(2, 3, 9, 9)
    with pytest.warns(UserWarning, match=r"returns features that its own layers read, of 'block', 'stem'"):
        tied = ien.make_equivariant(WithFeatures(), "rot4", x)
    assert [layer.after for layer in tied.layers.values()] == ["1", "1", "1"]
    named = ien.make_equivariant(WithFeatures(), "rot4", x, {"": "auto", "stem": 4, "block": 4})
    assert [layer.after for layer in named.layers.values()] == ["4", "4", "1"]
