"""The flow of maps through a model: what its latest maps say about the feature groups of the next.

Detection itself is a pure function of maps (``detect.py``). This adds what only the run of a model
knows: mostly a layer's input is what another layer returned, and what was found there holds here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, num_channels
from ..loss.feature_groups import FeatureGroups
from .detect import Found, comparable, feature_groups_of, relative_error, rotates_in

__all__ = ["Flow"]

REMEMBERED_MAPS = 4
"""How many maps are remembered: enough for a residual block, and not all maps of a model."""


class _Remembered(NamedTuple):
    """Maps that passed, and the feature groups found in them."""

    maps: Tensor
    version: int
    """How often they had been written to; another number means that they are other maps by now."""
    found: Found | None


class Flow:
    """The latest maps of a model that runs on views."""

    def __init__(self, group: Group, specs: Iterable[FeatureGroups], views: Tensor) -> None:
        """Begin with the views, whose channels are never members, even if they are all equal.

        Args:
            group: Rotations and flips.
            specs: The feature groups that were asked for.
            views: The images under all elements, which the model will run on.
        """
        self.group = group
        self.specs = list(dict.fromkeys(specs))
        self.num_views = len(views)
        self._latest: deque[_Remembered] = deque(maxlen=REMEMBERED_MAPS)
        single_channels = ((1, views.shape[1]),)
        self._remember(views, Found(single_channels, 0.0, None))

    def feature_groups(self, h: Tensor, expected: Blocks = ()) -> Found | None:
        """Return the feature groups that maps rotate in, those ``expected`` first, or None."""
        if not comparable(h, self.group):
            return None
        for maps, version, found in self._latest:
            if maps.is_set_to(h) and version == h._version:  # the very same maps
                return found
        found = None
        # a layer may fit several sizes, and is then taken at its word
        if num_channels(expected) == h.shape[1]:
            found = rotates_in(h, self.group, expected)
        if found is None:
            found = feature_groups_of(h, self.group, self._candidates(h.shape[1]))
        self._remember(h, found)
        return found

    def relative_error(self, h: Tensor) -> float:
        """Return how far maps are from rotating in what was asked for, or as single channels."""
        return relative_error(h, self.group, self._candidates(h.shape[1]))

    def specs_text(self) -> str:
        """Return the feature groups that were asked for, for messages."""
        return " or ".join(map(str, self.specs))

    def _remember(self, h: Tensor, found: Found | None) -> None:
        self._latest.append(_Remembered(h, h._version, found))

    def _candidates(self, channels: int) -> list[Blocks]:
        """Return feature groups to try: those of the latest maps, those asked for, single channels.

        The latest come first because constant maps, such as zeros, fit any.
        """
        candidates: list[Blocks] = []
        for remembered in reversed(self._latest):
            if remembered.found is not None:
                candidates.append(remembered.found.blocks)
        for spec in self.specs:
            if spec.nearest(channels) == channels:
                candidates.append(tuple(spec.blocks(channels)))
        candidates.append(((1, channels),))
        different = dict.fromkeys(candidates)
        return [blocks for blocks in different if num_channels(blocks) == channels]
