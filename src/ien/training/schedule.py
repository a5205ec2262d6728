"""How long an epoch is, and the learning rate of every step, as functions of the configuration."""

from __future__ import annotations

import math

from .config import Config

__all__ = ["epoch_length", "learning_rate"]


def epoch_length(config: Config, items: int, views: int, processes: int = 1) -> tuple[int, int]:
    """Steps of an epoch, and how many of so many ``items`` are in it, each seen in so many ``views``.

    All of them; of whole orbits so many that the steps and the views are those of a run with one copy of each
    item. A step has at least one orbit for each process.

    >>> orbits = Config("rot-mnist/ien-r4", "small", orbits=True)
    >>> epoch_length(orbits, 12_000, views=4), epoch_length(orbits, 12_000, views=8)
    ((188, 6000), (188, 3000))
    """
    steps = math.ceil(items / config.batch_size)
    if not config.orbits:
        return steps, items
    fewer = round(items * (1 + len(config.groups)) / views)
    if fewer < steps * processes:
        most = fewer // processes
        remedy = f"set it to {math.ceil(items / most)} or more" if most else "train on more images"
        raise ValueError(
            f"batch_size {config.batch_size} has no room for an orbit of {views} views in a step of each "
            f"process: {remedy}"
        )
    return steps, fewer


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """The paper's cycle of T steps: up by a cosine for T/4, down by one for 3T/4, and then flat.

    ``exponential`` stays at ``max_lr`` for ``decay_after`` epochs and is multiplied by ``decay`` in each
    epoch after them; ``steps`` multiplies by it at each of ``steps_after``.
    """
    epoch = step // steps_per_epoch
    if config.schedule == "steps":
        return config.max_lr * config.decay ** sum(epoch >= after for after in config.step_epochs)
    if config.schedule == "exponential":
        return config.max_lr * config.decay ** max(0, epoch - config.decay_after + 1)
    cycle = config.cycle_epochs * steps_per_epoch
    rise = cycle / 4
    if step >= cycle:
        return config.min_lr
    height = (
        (1 - math.cos(math.pi * step / rise)) / 2
        if step < rise
        else (1 + math.cos(math.pi * (step - rise) / (cycle - rise))) / 2
    )
    return config.min_lr + (config.max_lr - config.min_lr) * height
