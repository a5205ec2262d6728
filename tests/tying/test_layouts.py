"""Where channels are, and which numbers belong to them."""

import pytest
import torch

from ien.tying.layouts import has_number_per_channel, layouts


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
def test_a_vector_of_several_dims_says_which_dim_it_belongs_to(shape, first, last) -> None:
    x = torch.rand(2, 8, 8, 8)
    found = [has_number_per_channel(torch.rand(shape), maps, x) for maps in layouts(x)]
    assert found == [first, last]
