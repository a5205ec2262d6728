"""Outputs of models: how they are read, how far they change, and what is not understood."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ien
from ien.report.page.outputs import changes, kind_of, output_of, return_only

ROT4 = ien.rotation(4)
QUARTER = torch.tensor([1, 1])


class Returns(nn.Module):
    """Returns what a function makes of the images."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((2, 10), "classes"),
        ((2, 3, 8, 8), "pixels"),
        ((2, 1), "values"),
        ((2,), "values"),
        ((2, 1, 8, 8), "values"),
        ((2, 7, 5), "values"),
    ],
)
def test_the_shape_says_how_an_output_is_read(shape, kind) -> None:
    assert kind_of(torch.zeros(shape)) == kind


def test_pixels_that_change_are_counted_after_the_map_is_rotated() -> None:
    y, y_g = torch.randn(2, 2, 3, 5, 5).unbind()
    moved = y.rot90(1, (2, 3))
    expected = [(moved[i].argmax(0) != y_g[i].argmax(0)).sum() / 25 for i in range(2)]
    assert changes(y, y_g, ROT4, QUARTER, 1.0).tolist() == pytest.approx([float(e) for e in expected])
    assert changes(y, moved, ROT4, QUARTER, 1.0).tolist() == [0, 0]


def test_other_outputs_have_a_relative_error() -> None:
    y, y_g = torch.randn(2, 2, 1, 5, 5).unbind()
    expected = (y_g - y.rot90(1, (2, 3))).square().mean((1, 2, 3)) / 0.5
    torch.testing.assert_close(changes(y, y_g, ROT4, QUARTER, 0.5), expected)
    y, y_g = torch.randn(2, 2, 4, 3).unbind()  # boxes, say: compared as they are
    torch.testing.assert_close(changes(y, y_g, ROT4, QUARTER, 2.0), (y_g - y).square().mean((1, 2)) / 2)


def test_a_class_that_stays_is_no_change_however_its_score_moves() -> None:
    y = torch.tensor([[3.0, 0.0], [3.0, 0.0]])
    y_g = torch.tensor([[0.1, 0.0], [0.0, 1.0]])
    stays, changed = changes(y, y_g, ROT4, QUARTER, 1.0).tolist()
    p = torch.tensor([0.0, 1.0]).softmax(0)
    assert stays == 0 and changed == pytest.approx(float(p[1] - p[0]))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda x: {"logits": x.flatten(1), "loss": 1.0}, "logits"),
        (lambda x: (1.0, x.flatten(1)), "1"),
        (lambda x: SimpleNamespace(logits=x.flatten(1)), "logits"),
    ],
)
def test_a_part_of_the_output_can_be_named(make, key) -> None:
    model, x = Returns(make), torch.rand(2, 3, 4, 4)
    with pytest.raises(ValueError, match=rf"name the part to look at, such as --output {key}, or"):
        output_of(model, x)
    with pytest.raises(ValueError, match="without a part 'scores'"):
        return_only(model, "scores", x)
    return_only(model, key, x)
    assert torch.equal(output_of(model, x), x.flatten(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: [{"boxes": x}], "returns a list with 0 a dict for 2 images, which is not understood"),
        (lambda x: x.flatten(1).argmax(1), r"one tensor \(2,\) of torch.int64 for 2 images"),
        (lambda x: x.mean(), r"one tensor \(\) of torch.float32"),
        (lambda x: x[:1], r"one tensor \(1, 3, 4, 4\)"),
        (lambda x: None, "returns a NoneType"),
    ],
)
def test_what_is_not_understood_is_said_with_what_is_expected(make, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        output_of(Returns(make), torch.rand(2, 3, 4, 4))
    assert "scores (B, classes), maps (B, C, H, W) or values (B, …)" in str(caught.value)
