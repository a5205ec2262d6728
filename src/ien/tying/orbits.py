"""Orbits: the numbers of a weight, sorted by where quarter turns and flips move them.

A number and all places that it is moved to are an orbit. Written as a matrix with a column for each
orbit, whose row k is what element k moves to the first place of the orbit,

    ρ(g) h permutes rows: its row k is row k g of h,
    P h is the mean of the rows, and
    <S, ρ(g) h> = Σ_k (S hᵀ)_(k, k g),

so one product of two such matrices has all that ``listening.py`` asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from .projection import Tie

__all__ = ["Orbits"]


class Orbits(NamedTuple):
    """Those of a weight's numbers.

    >>> tie = Tie(rotation(4), ((4, 4),), ((1, 1),))
    >>> h = torch.rand(4, 1, 3, 3)
    >>> tuple(Orbits.of(tie, h).matrix(h).shape)
    (4, 9)
    """

    places: Tensor
    """In the weight: (elements * orbits,)."""
    weights: Tensor
    """√ of an orbit's length over the number of elements, (orbits,): short ones repeat numbers."""
    products: Tensor
    """The place of (k, k g) in a flat matrix (elements, elements): row k, column g."""

    @classmethod
    def of(cls, tie: Tie, like: Tensor) -> Orbits:
        """Find the orbits of a weight's numbers.

        Args:
            tie: How the weight is tied.
            like: A tensor of its shape and device.
        """
        exact = [i for i in range(len(tie.group)) if tie.group.exact[i]]
        numbers = torch.arange(like.numel(), device=like.device)
        moved = []
        for i in exact:
            moved.append(tie.moved(numbers.view(like.shape), i).flatten())
        sources = torch.stack(moved)  # (elements, numbers)
        is_first = sources.amin(0) == numbers
        places = sources[:, is_first]  # (elements, orbits)
        differences = places.sort(0).values.diff(dim=0)
        lengths = 1 + (differences > 0).sum(0)  # (orbits,)
        weights = (lengths / len(exact)).sqrt()
        products = _products(tie.group, exact).to(like.device)
        return cls(places.flatten().int(), weights, products)

    def matrix(self, h: Tensor) -> Tensor:
        """Return h - P h, (elements, orbits), in float32."""
        values = h.float().flatten().index_select(0, self.places)
        values = values.view(-1, len(self.weights)) * self.weights  # (elements, orbits)
        return values - values.mean(0)

    def with_elements(self, products: Tensor) -> Tensor:
        """Return <S, ρ(g) h> for each element g, (…, elements), from matrices S hᵀ."""
        return products.flatten(-2)[..., self.products].sum(-2)


def _products(group: Group, exact: Sequence[int]) -> Tensor:
    """Return the place of (k, k g) in a flat matrix, for the exact elements k and g."""
    elements = [group._similarity(i) for i in exact]
    rows = []
    for k, element in enumerate(elements):
        rows.append([k * len(elements) + elements.index(element.after(g)) for g in elements])
    return torch.tensor(rows)
