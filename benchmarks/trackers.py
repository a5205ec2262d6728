"""Updates of trackers at full width: SiamFC, RE-SiamFC as it is exported, IEN, Het-IEN and tied ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from timing import Row, Run, compared, take_turns

from ien import experiments
from ien.tracking import Tracker
from ien.tracking.data.synthetic import synthetic
from ien.tracking.training.task import untrained
from ien.training.network import channels_last

ROWS = (
    "siamfc",
    "re-siamfc",
    "ien-siamfc",
    "het-siamfc",
    "equivariant-siamfc",
    "het-equivariant-siamfc",
)
# fast, slow, how many times as fast it should be
COMPARED = (
    ("siamfc", "re-siamfc", "–"),
    ("ien-siamfc", "re-siamfc", "–"),
    ("het-siamfc", "re-siamfc", "–"),
    ("het-siamfc", "ien-siamfc", "–"),
    ("equivariant-siamfc", "re-siamfc", "–"),
    ("het-equivariant-siamfc", "re-siamfc", "≥ 2"),
)
ROUNDS = 7
NOTE = """Trackers: one update (three sizes of the search image, batch 1) with AlexNetV2 at full width, as
plain networks; weights are random, which does not change the time. All take turns in one run. Rotation-aware
trackers compare four templates, SiamFC one. RE-SiamFC, IEN-SiamFC and the tied network are one architecture
once they are exported; Het-SiamFC and the tied network with its feature groups have 69 % of its channels.
"""


def update(row: str) -> Run:
    """One update of a tracker that has seen its first frame."""
    config = experiments.config(f"tracking/{row}", "paper")
    network = untrained(config)  # a steerable one is exported, a tied one made plain
    channels_last(network)  # as runs are
    tracker = Tracker(network, config.rotations)
    clip = synthetic(seed=1, frames=2)
    tracker.init(clip.frame(0), clip.boxes[0])
    frame = clip.frame(1)
    return lambda: tracker.update(frame)


def measure() -> Iterator[Row]:
    updates = {row: update(row) for row in ROWS}
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            seconds = take_turns(updates, ROUNDS)
            for fast, slow, goal in COMPARED:
                yield _beside(fast, slow, goal, seconds, threads)
    finally:
        torch.set_num_threads(before)


def _beside(fast: str, slow: str, goal: str, seconds: dict[str, list[float]], threads: int) -> Row:
    found = compared(seconds[slow], seconds[fast])
    detail = f"{1 / found.fast:.2f} / {1 / found.slow:.2f} updates/s"
    plural = "thread" if threads == 1 else "threads"
    return found.row(f"updates/s of {fast} / of {slow}, {threads} {plural}", goal, detail)
