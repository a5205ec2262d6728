"""Sizes: the square input sizes nearest to a given one at which the model is exact."""

from __future__ import annotations

from typing import NamedTuple

from .dry_run import DryRun
from .exactness import Step, is_exact, size_after
from .notes import Notes

__all__ = ["MAX_LISTED_SIZES", "ExactSizes", "search_sizes"]

MAX_LISTED_SIZES = 8
"""How many exact sizes are searched for."""
MAX_DISTANCE = 512
"""Pixels that a size may be smaller or larger than the given one."""
MAX_OPERATIONS = 6000
"""Operations over all passes: some seconds, and the same sizes on every machine."""
OPERATIONS_PER_PASS = 20
"""As many operations take as long as what happens before and after a pass."""


class ExactSizes(NamedTuple):
    """What the search found."""

    exact: tuple[int, ...]
    """Sizes without any finding."""
    grid: tuple[int, ...]
    """Sizes without findings of the kind ``"grid"``."""
    searched: tuple[int, int]
    """The smallest and the largest size that were tried."""


def search_sizes(run: DryRun, seen: Notes, input_size: tuple[int, int, int]) -> ExactSizes:
    """Search from the given size outwards, from half to twice of it or until the budget is spent.

    ``seen`` are the notes of the pass at ``input_size``. Their program rules out most sizes without
    another pass.
    """
    channels, height, width = input_size
    low, high = min(height, width), max(height, width)

    def distance(n: int) -> tuple[int, int, int]:
        outside = max(low - n, n - high, 0)
        return outside, abs(2 * n - low - high), n

    smallest = max((low + 1) // 2, low - MAX_DISTANCE)
    largest = min(2 * high, high + MAX_DISTANCE)
    exact: list[int] = []
    grid: list[int] = []
    tried = {low, high}
    operations_left = MAX_OPERATIONS
    for n in sorted(range(smallest, largest + 1), key=distance):
        if len(exact) == MAX_LISTED_SIZES or operations_left <= 0:
            break
        tried.add(n)
        square = (channels, n, n)
        if square == input_size:
            notes = seen
        elif _may_fit(seen, n):
            notes = run(square, True)
        else:
            continue
        operations_left -= notes.num_operations + OPERATIONS_PER_PASS
        if notes.is_stopped or any(finding.kind == "grid" for finding in notes.findings):
            continue
        grid.append(n)
        if not notes.findings:
            exact.append(n)
    nearest_grid = grid[:MAX_LISTED_SIZES]
    return ExactSizes(tuple(sorted(exact)), tuple(sorted(nearest_grid)), (min(tried), max(tried)))


def _may_fit(seen: Notes, n: int) -> bool:
    """Return whether convolutions and pools of a pass are exact, or repairable, at size n."""
    sizes = {0: (n, n)}  # by node of the program
    excused = set(seen.resized_nodes)  # nodes that need not be exact
    try:
        for (before, step), node in seen.program.items():
            size = sizes[before]
            sizes[node] = size_after(step, size)
            if node in excused or is_exact((step,), size):
                continue
            repairs = set()
            for next_node, next_step in _chained_after(seen, node).items():
                if is_exact((step, next_step), size):
                    repairs.add(next_node)
            if not repairs:
                return False
            excused |= repairs
    except RuntimeError:  # too small for a kernel
        return False
    return True


def _chained_after(seen: Notes, node: int) -> dict[int, Step]:
    """Return the steps that directly follow a node, by the node after them."""
    chained = {}
    for (before, step), after in seen.program.items():
        if before == node and after in seen.chained_nodes:
            chained[after] = step
    return chained
