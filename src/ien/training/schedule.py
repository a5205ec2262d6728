"""How long an epoch is, and the learning rate of every step, as functions of the configuration."""

from __future__ import annotations

import math

from .config import Config

__all__ = ["epoch_length", "learning_rate"]


def epoch_length(config: Config, items: int, views: int, processes: int = 1) -> tuple[int, int]:
    """Return the steps of an epoch and how many items it has.

    An epoch has all items. With ``orbits`` it is shortened, so that steps and images seen are those
    of a run with one view per image; a step has at least one orbit for each process.

    Args:
        config: The configuration of the run.
        items: How many images or pairs there are.
        views: How often each of them is seen in a step.
        processes: How many processes share a batch.

    >>> orbits = Config.of("rot-mnist/ien-r4", "small", orbits=True)
    >>> epoch_length(orbits, 12_000, views=4), epoch_length(orbits, 12_000, views=8)
    ((188, 6000), (188, 3000))
    """
    batch_size = config.schedule.batch_size
    steps = math.ceil(items / batch_size)
    if not config.objective.orbits:
        return steps, items
    # a run with one view per image and group shows (1 + groups) images for each item
    seen = items * (1 + len(config.objective.groups))
    fewer = round(seen / views)
    if fewer >= steps * processes:
        return steps, fewer
    remedy = "train on more images"
    most_steps = fewer // processes
    if most_steps:
        remedy = f"set it to {math.ceil(items / most_steps)} or more"
    raise ValueError(
        f"batch_size {batch_size} leaves no room for an orbit of {views} views in a step of each process: "
        f"{remedy}"
    )


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from the start of the run.

    With e the epoch, d = ``decay`` and T the steps of the cycle::

        steps         max_lr · d^(number of steps_after that are ≤ e)
        exponential   max_lr · d^max(0, e - decay_after + 1)
        one-cycle     min_lr + (max_lr - min_lr) · h

    where h rises from 0 to 1 as a cosine over T/4, falls over 3T/4, and then stays 0.
    """
    schedule = config.schedule
    epoch = step // steps_per_epoch
    if schedule.shape == "steps":
        passed = [after for after in schedule.step_epochs if epoch >= after]
        return schedule.max_lr * schedule.decay ** len(passed)
    if schedule.shape == "exponential":
        decayed = max(0, epoch - schedule.decay_after + 1)
        return schedule.max_lr * schedule.decay**decayed
    # one-cycle changes with every step, not only with every epoch
    cycle = schedule.cycle_epochs * steps_per_epoch
    rise = cycle / 4
    if step >= cycle:
        return schedule.min_lr
    if step < rise:
        angle = math.pi * step / rise
        height = (1 - math.cos(angle)) / 2
    else:
        angle = math.pi * (step - rise) / (cycle - rise)
        height = (1 + math.cos(angle)) / 2
    return schedule.min_lr + (schedule.max_lr - schedule.min_lr) * height
