"""Feature groups read from maps of views, which are made here by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ien
from ien.groups.members import channel_table
from ien.tying.detect import errors_in, feature_groups_of, layouts, views_of
from ien.tying.projection import VECTOR
from tests.helpers.tied import D4

R4, R8 = ien.rotation(4), ien.rotation(8)


def maps_in(blocks: list[tuple[int, int]], group: ien.Group, size: int = 6) -> Tensor:
    """Maps (elements * 2, C, size, size) that rotate in these feature groups, from random ones of views."""
    table = channel_table(group, blocks)
    h = torch.rand(2, table.shape[1], size, size)
    views = []
    for i in range(len(group)):
        views.append(group.act(h[:, table[i]], torch.full((2,), i)))
    return torch.cat(views)


@pytest.mark.parametrize("group", [R4, R8, D4], ids=str)
def test_views_are_the_images_under_every_element_in_order(group) -> None:
    x = torch.rand(3, 2, 7, 7)
    for i, view in enumerate(views_of(x, group).split(3)):
        torch.testing.assert_close(view, group.act(x, torch.full((3,), i)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("group", "blocks"),
    [
        (R4, [(4, 8)]),
        (R4, [(2, 6)]),
        (R4, [(1, 3)]),
        (R4, [(4, 8), (2, 2), (1, 3)]),
        (R4, [(1, 2), (4, 4), (1, 1), (2, 4)]),
        (D4, [(8, 16)]),
        (D4, [(1, 2), (8, 8)]),
    ],
    ids=str,
)
def test_feature_groups_are_told_from_single_channels(group, blocks) -> None:
    single = [(1, sum(channels for _, channels in blocks))]
    h = maps_in(blocks, group)
    found = errors_in(h, group, blocks)
    assert found.fits and found.exact < 1e-12 and found.between is None
    assert list(found.errors) == list(group.labels[1:]) and max(found.errors.values()) == found.exact
    assert errors_in(h, group, single).fits == (single == blocks)
    of_one_size = feature_groups_of(h, group, [4, 2, 1] if group == R4 else [8, 1])
    assert of_one_size == (tuple(blocks) if len(blocks) == 1 else None)


def test_the_first_size_that_fits_is_taken() -> None:
    constant = torch.ones(8, 4, 5, 5)  # fits all of them
    for sizes in ([4, 2, 1], [2, 1], [1]):
        assert feature_groups_of(constant, R4, sizes) == ((sizes[0], 4),)
    assert feature_groups_of(torch.ones(8, 6, 5, 5), R4, [4, 2, 1]) == ((2, 6),)
    assert feature_groups_of(maps_in([(2, 4)], R4), R4, [4, 1]) is None


def test_elements_that_resample_are_measured_only() -> None:
    smooth = F.interpolate(torch.rand(2, 8, 5, 5), 25, mode="bicubic")
    table = channel_table(R8, [(2, 8)])
    h = torch.cat([R8.act(smooth[:, table[i]], torch.full((2,), i)) for i in range(8)])
    found, other = errors_in(h, R8, [(2, 8)]), errors_in(h, R8, [(1, 8)])
    assert found.fits and other.fits  # quarter turns alone cannot tell these sizes apart
    assert found.between is not None and found.between < 0.01
    assert other.between is not None and other.between > 0.1


def test_maps_that_do_not_rotate_or_cannot_be_compared_have_none() -> None:
    h = torch.rand(8, 4, 6, 6)
    assert feature_groups_of(h, R4, [4, 1]) is None
    assert errors_in(h, R4, [(4, 4)]).exact > 0.1
    assert errors_in(maps_in([(4, 4)], R4), R4, [(4, 4)]).exact < 1e-12
    broken = errors_in(h * math.nan, R4, [(1, 4)])
    assert math.isnan(broken.exact) and not broken.fits
    for h in (torch.ones(8, 4, 6, 5), torch.ones(7, 4, 6, 6)):  # not square, not all views
        assert feature_groups_of(h, R4, [4, 1]) is None


def test_errors_are_those_of_each_element() -> None:
    h = torch.rand(2, 4, 6, 6)
    views = [
        h,
        h.roll(1, 1).rot90(1, (2, 3)) + 0.1,
        h.roll(2, 1).rot90(2, (2, 3)),
        h.roll(3, 1).rot90(3, (2, 3)),
    ]
    errors = errors_in(torch.cat(views), R4, [(4, 4)]).errors
    variance = float(torch.cat(views).var(unbiased=False))
    assert errors["90°"] == pytest.approx(0.01 / variance, rel=1e-2)
    assert errors["180°"] < 1e-12 and errors["270°"] < 1e-12


def test_vectors_turn_with_the_image() -> None:
    """A quarter turn makes (dx, dy) = (1, 0), which points right, to (0, -1), which points up."""
    dx, dy = torch.rand(2, 2, 1, 5, 5) - 0.5
    views = []
    for quarters in range(4):
        views.append(torch.cat([dx, dy], 1).rot90(quarters, (2, 3)))
        dx, dy = dy, -dx
    vectors = torch.cat(views)
    found = errors_in(vectors, R4, [(VECTOR, 2)])
    assert found.fits and found.exact < 1e-12
    assert feature_groups_of(vectors, R4, [2, 1]) is None
    beside = torch.cat([vectors, maps_in([(4, 4)], R4, size=5)], 1)
    assert errors_in(beside, R4, [(VECTOR, 2), (4, 4)]).fits
    mirrored = views[0].flip(3) * torch.tensor([-1.0, 1.0]).view(2, 1, 1)
    flips = ien.reflection()
    assert errors_in(torch.cat([views[0], mirrored]), flips, [(VECTOR, 2)]).fits
    assert not errors_in(torch.cat([views[0], views[0].flip(3)]), flips, [(VECTOR, 2)]).fits


def test_maps_have_channels_first_or_last_and_vectors_are_one_pixel() -> None:
    x = torch.rand(2, 3, 4, 5)
    first, last = layouts(x)
    assert first is x and torch.equal(last, x.permute(0, 3, 1, 2))
    assert layouts(x[:, :, 0, 0])[0].shape == (2, 3, 1, 1) and layouts(x[:, 0, 0, 0])[0].shape == (2, 1, 1, 1)
    assert layouts(x[0]) == []


@pytest.mark.parametrize("large", [255.0, 2000.0])
def test_small_maps_are_read_beside_large_ones(large) -> None:
    h = torch.cat([large * maps_in([(1, 1)], R4), maps_in([(4, 8)], R4)], 1)
    assert errors_in(h, R4, [(1, 1), (4, 8)]).fits and not errors_in(h, R4, [(1, 9)]).fits


def test_images_that_look_the_same_are_refused() -> None:
    with pytest.raises(ValueError, match=r"almost invariant to rot4.*torch\.rand\(2, 1, 9, 9\)"):
        views_of(torch.ones(2, 1, 9, 9), R4)
