"""Orbits: against the elements themselves, one by one."""

from __future__ import annotations

import pytest
import torch

import ien
from ien.groups.members import num_channels
from ien.tying.orbits import Orbits
from ien.tying.projection import Tie

BLOCKS = [
    ("rot4", ((4, 8),), ((4, 4), (2, 2), (1, 2))),
    ("rot4xflip", ((8, 8), (1, 2)), ((8, 8), (1, 3))),
    ("rot4xflip", ((1, 2),), ((1, 3),)),
    ("rot8", ((8, 16),), ((8, 8),)),
    ("rot2xflip", ((4, 4),), ((4, 8),)),
]


@pytest.mark.parametrize(("group", "after", "before"), BLOCKS)
def test_one_product_of_matrices_has_the_products_with_all_elements(group, after, before) -> None:
    tie = Tie(ien.group(group), after, before)
    total, h = torch.randn(2, num_channels(after), num_channels(before), 3, 3)
    orbits = Orbits.of(tie, h)
    first, second = orbits.matrix(total), orbits.matrix(h)
    found = orbits.with_elements(first @ second.T)
    project = tie.exactly().project
    exact = [i for i, is_exact in enumerate(tie.group.exact) if is_exact]
    expected = [((total - project(total)) * tie.moved(h - project(h), i)).sum() for i in exact]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(second.square().sum(), (h - project(h)).square().sum())


def test_every_number_is_in_one_orbit() -> None:
    tie = Tie(ien.group("rot4"), ((4, 8),), ((4, 4),))
    orbits = Orbits.of(tie, torch.zeros(8, 4, 3, 3))
    assert orbits.places.sort().values.tolist() == list(range(8 * 4 * 9))
    assert set(orbits.weights.tolist()) == {1.0}
