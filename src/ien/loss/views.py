"""The views of a batch in one step: which elements of which groups, and in which order.

    [ x,  φ_g x,  φ_g′ x,  … ]        ((1 + samples) · B images)

The images come first, as they are. Then follows one view after another, and each holds all images,
every one under an element of its own. The views of a group stand together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ..groups.families import group as parse_group
from ..groups.group import Group, random_order

__all__ = ["distinct_groups", "draw_elements", "num_samples", "split_by_view"]


def distinct_groups(weights: Mapping[Group | str, float]) -> dict[Group, float]:
    """Return group → weight, with groups in place of their text forms.

    Raises:
        ValueError: Two of them are the same group, or have the same name.
    """
    groups: dict[Group, float] = {}
    given: dict[Group, Group | str] = {}  # group -> how it was written
    for key, weight in weights.items():
        group = parse_group(key)
        for other, written in given.items():
            if group == other:
                raise ValueError(f"groups must be distinct: {written} and {key} are the same group")
            if str(group) == str(other):
                raise ValueError(f"groups need distinct names: two are called {group}")
        groups[group] = weight
        given[group] = key
    return groups


def num_samples(group: Group, samples: int | Literal["all"]) -> int:
    """Return how many elements of ``group`` are drawn for each image; never the identity.

    Raises:
        ValueError: The group has fewer elements.
    """
    others = len(group) - 1
    if others == 0:
        return 0
    if samples == "all":
        return others
    if not isinstance(samples, int) or not 0 <= samples <= others:
        raise ValueError(
            f'samples, the same for all groups, must be 0 to {others} for {group}, or "all"; got {samples!r}'
        )
    return samples


def draw_elements(
    samples: Mapping[Group, int], whole_orbits: bool, batch_size: int, generator: torch.Generator | None
) -> Tensor:
    """Draw the elements of all views; each image gets different ones of a group.

    Args:
        samples: How many elements of each group an image gets.
        whole_orbits: Take every element, in order, so that nothing is random.
        batch_size: Number of images B.
        generator: Source of randomness; None for torch's global one.

    Returns:
        Element indices (views · B,), view after view, on the CPU.
    """
    views: list[Tensor] = []
    for group, count in samples.items():
        others = len(group) - 1
        if whole_orbits:
            for element in range(1, len(group)):
                views.append(torch.full((batch_size,), element, device="cpu"))
        elif count > 0:
            first = group.sample(batch_size, generator=generator)  # (B,)
            views.append(first)
            # further views are the first one shifted: different for each image, also in runs
            shifts = random_order(others - 1, generator)[: count - 1] + 1
            for shift in shifts.tolist():
                views.append((first - 1 + shift) % others + 1)
    if not views:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    return torch.cat(views)


def split_by_view(samples: Mapping[Group, int], g: Tensor, batch_size: int) -> list[tuple[Group, Tensor]]:
    """Return the group and the elements (B,) of each view, in the order of :func:`draw_elements`.

    Args:
        samples: How many elements of each group an image gets.
        g: Element indices (views · B,).
        batch_size: Number of images B.

    Raises:
        ValueError: ``g`` has another shape.
    """
    views = sum(samples.values())
    if g.shape != (views * batch_size,):
        hint = ""
        if views == 0:
            hint = ": leave it out, as this objective draws none"
        raise ValueError(
            f"g must hold an element for each transformed image, ({views * batch_size},) for "
            f"{1 + views} views of {batch_size} images; got {tuple(g.shape)}{hint}"
        )
    if views == 0:
        return []
    groups = []  # of each view
    for group, count in samples.items():
        groups += [group] * count
    return list(zip(groups, g.split(batch_size), strict=True))
