"""Where channels are, and which numbers belong to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ien.tying.layouts import has_number_per_channel, layer_text, layouts, shape_text, sizes_text


def test_maps_are_read_with_channels_first_and_last_and_vectors_as_one_pixel() -> None:
    x = torch.rand(2, 3, 4, 5)
    first, last = layouts(x)
    assert first is x and torch.equal(last, x.permute(0, 3, 1, 2))
    assert layouts(x[:, :, 0, 0])[0].shape == (2, 3, 1, 1) and layouts(x[0]) == []


@pytest.mark.parametrize(
    ("shape", "first", "last"),
    [
        ((8,), True, True),
        ((8, 1, 1), True, False),
        ((1, 8, 1, 1), True, False),
        ((1, 1, 1, 8), False, True),
        ((8, 1), False, False),
        ((4,), False, False),
    ],
)
def test_a_vector_of_several_dims_says_which_dim_it_belongs_to(shape, first: bool, last: bool) -> None:
    x = torch.rand(2, 8, 8, 8)
    found = [has_number_per_channel(torch.rand(shape), maps, x) for maps in layouts(x)]
    assert found == [first, last]


def test_layers_and_shapes_are_named() -> None:
    assert layer_text("a.b", nn.ReLU()) == "layer 'a.b' (ReLU)"
    assert layer_text("", nn.ReLU()) == "the model itself"
    assert shape_text(torch.rand(2, 8, 7, 7)) == "8×7×7"
    assert shape_text(torch.rand(2, 8)) == "torch.float32 of shape (2, 8)"
    assert sizes_text(((4, 8), (1, 2))) == "4-1"
