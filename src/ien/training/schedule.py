"""How long a run is, and the learning rate of every step, as functions of the configuration."""

from __future__ import annotations

import math

from .config import Config

__all__ = ["epoch_length", "items_in", "learning_rate", "total_steps"]


def epoch_length(config: Config, items: int, views: int, processes: int = 1) -> tuple[int, int]:
    """Steps of an epoch, and how many of so many ``items`` are in it, each seen in so many ``views``.

    All of them; of whole orbits so many that the steps and the pictures are those of a run with one copy of
    each item, and at least one item in a step of each process.

    >>> orbits = Config("rot-mnist/ien-r4", "small", orbits=True)
    >>> epoch_length(orbits, 12_000, views=4), epoch_length(orbits, 12_000, views=8)
    ((188, 6000), (188, 3000))
    """
    steps = math.ceil(items / config.batch_size)
    if not config.orbits:
        return steps, items
    return steps, max(steps * processes, round(items * (1 + len(config.groups)) / views))


def total_steps(config: Config, steps_per_epoch: int) -> int:
    """Steps of the whole run; the last epoch may be cut."""
    return config.epochs * steps_per_epoch if config.steps is None else config.steps


def items_in(steps: int, steps_per_epoch: int, items: int) -> int:
    """Items seen in so many steps, of epochs of ``items`` in equal batches, give or take one, larger first.

    >>> items_in(7, steps_per_epoch=5, items=96)  # an epoch, and batches of 20 and 19
    135
    """
    epochs, rest = divmod(steps, steps_per_epoch)
    return epochs * items + rest * (items // steps_per_epoch) + min(rest, items % steps_per_epoch)


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """The paper's cycle of T steps: up by a cosine for T/4, down by one for 3T/4, and then flat.

    ``exponential`` stays at ``max_lr`` for ``decay_after`` epochs and is multiplied by ``decay`` in each
    epoch after them; ``steps`` multiplies by it at each of ``steps_after``. A run of so many steps has the
    schedule of ``epochs`` epochs, stretched to them.
    """
    steps, epochs = (steps_per_epoch, 1) if config.steps is None else (config.steps, config.epochs)
    epoch = step * epochs // steps
    if config.schedule == "steps":
        return config.max_lr * config.decay ** sum(epoch >= after for after in config.step_epochs)
    if config.schedule == "exponential":
        return config.max_lr * config.decay ** max(0, epoch - config.decay_after + 1)
    cycle = config.cycle_epochs * steps / epochs
    rise = cycle / 4
    if step >= cycle:
        return config.min_lr
    height = (
        (1 - math.cos(math.pi * step / rise)) / 2
        if step < rise
        else (1 + math.cos(math.pi * (step - rise) / (cycle - rise))) / 2
    )
    return config.min_lr + (config.max_lr - config.min_lr) * height
