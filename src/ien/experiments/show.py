"""What ``ien show`` prints: a configuration, how it differs from the paper's, and what it costs."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch

from ..training import Config, differences, field_help
from ..training.evaluate import cost
from ..training.setup import build, objective_of, plain_of
from . import config as preset_config
from . import deviations

__all__ = ["describe"]


def describe(config: Config) -> str:
    texts = field_help()
    lines = [f"{config.experiment}, preset {config.preset}, seed {config.seed}", ""]
    lines += [
        f"  {field.name:18} {_text(getattr(config, field.name)):12} {texts[field.name]}"
        for field in fields(Config)
        if field.name not in ("experiment", "preset", "seed")
    ]
    paper = preset_config(config.experiment, "paper")
    changed = {
        name: pair
        for name, pair in differences(config, paper).items()
        if name not in ("preset", "seed", "threads")
    }
    lines += ["", "against the paper:"]
    lines += [
        f"  {name} {_text(ours)} instead of {_text(theirs)}" for name, (ours, theirs) in changed.items()
    ]
    lines += [f"  {text}" for text in deviations(config.experiment)]
    return "\n".join([*lines, "", "cost:", *(f"  {line}" for line in _costs(config))])


def _costs(config: Config) -> list[str]:
    network = build(config)
    numbers = cost(config, plain_of(network), torch.zeros(1, 1, 28, 28))
    objective = objective_of(config, network)
    views = 1 if objective is None else objective.views
    images = 12_000 if config.train_images is None else config.train_images
    steps = config.epochs * math.ceil(images / config.batch_size)
    trained = sum(parameter.numel() for parameter in network.parameters())
    return [
        f"{numbers['parameters']:,} parameters at inference, {trained:,} trained",
        f"{numbers['macs']:,} multiply-accumulates for an image at inference",
        f"{steps:,} training steps, {config.epochs * images * views:,} images seen ({views} views of each)",
    ]


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
