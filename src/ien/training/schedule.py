"""The learning rate of every step, as a function of the step."""

from __future__ import annotations

import math

from .config import Config

__all__ = ["learning_rate"]


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
