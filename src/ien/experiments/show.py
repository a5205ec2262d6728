"""What ``ien show`` prints: a configuration, how it differs from the paper's, what it costs, its state."""

from __future__ import annotations

import math
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data import rot_mnist, scale_mnist, tiny_imagenet
from ..models import MODELS
from ..report import read
from ..training import Config, differences, field_help
from ..training.evaluate import cost
from ..training.folder import read_config, read_data, read_result
from ..training.setup import build, objective_of, plain_of
from . import config as preset_config
from . import deviations, paper

__all__ = ["describe", "describe_run"]

WIDTH = 100


def describe(config: Config, train_images: int | None = None) -> str:
    """``train_images`` is how many images there are to train on, where that is known."""
    title = f"{config.experiment}, preset {config.preset}, seed {config.seed}"
    parts = {
        title: _settings(config),
        "against the paper": _against_the_paper(config),
        "cost": _costs(config, train_images),
    }
    return _page(parts)


def describe_run(folder: Path) -> str:
    """The same of a run folder, and its state."""
    config, data = read_config(folder), read_data(folder)
    if read_result(folder) is not None:
        record = read(folder / "result.json")
        state = f"finished {record.finished:%Y-%m-%d %H:%M} UTC, accuracy {record.accuracy:.2%}"
    else:
        metrics = folder / "metrics.jsonl"
        epochs = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        state = f"not finished, {epochs} of {config.epochs} epochs done: go on with ien resume {folder}"
    source = f"{data['source']} {data['name']} from {data['folder']}: {data['train']:,} images to train on"
    return f"{_page({str(folder): [state, source]})}\n\n{describe(config, data['train'])}"


def _page(parts: dict[str, list[str]]) -> str:
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts.items())


def _settings(config: Config) -> list[str]:
    texts = field_help()
    shown = [field.name for field in fields(Config) if field.name not in ("experiment", "preset", "seed")]
    values = {name: _text(getattr(config, name)) for name in shown}
    first, second = max(map(len, shown)), max(map(len, values.values()))
    lines = []
    for name, value in values.items():
        left = f"{name:{first}}  {value:{second}}  "
        wrapped = textwrap.wrap(texts[name], WIDTH - 2 - len(left), break_on_hyphens=False)
        lines += [left + wrapped[0], *(" " * len(left) + line for line in wrapped[1:])]
    return lines


def _against_the_paper(config: Config) -> list[str]:
    changed = differences(config, preset_config(config.experiment, "paper"))
    return [
        *(
            f"{name} {_text(ours)} instead of {_text(theirs)}"
            for name, (ours, theirs) in changed.items()
            if name not in ("preset", "seed", "device", "threads")
        ),
        *deviations(config.experiment),
        *([] if config.experiment in paper(config.dataset) else ["the paper prints no figures for this row"]),
    ]


def _costs(config: Config, train_images: int | None) -> list[str]:
    try:
        network = build(config)
    except ModuleNotFoundError as error:
        return [f"unknown: {error}"]
    plain = plain_of(network)
    numbers = cost(config, plain, torch.zeros(1, *_image_shape(config)))
    convs = [str(module.out_channels) for module in plain.modules() if isinstance(module, nn.Conv2d)]
    lines = [
        *(
            [f"channels of the layers: {', '.join(convs)}"]
            if config.model in MODELS or config.steerable
            else []
        ),
        f"{numbers['parameters']:,} parameters at inference",
        f"{numbers['macs']:,} multiply-accumulates for an image at inference",
    ]
    if config.weights_of:
        return [*lines, f"trains nothing: tests the weights of {config.weights_of}"]
    if train_images is None:
        held_out = config.validation_images if config.test_on == "validation" else 0
        train_images = config.train_images or _train_images(config) - held_out
    objective = objective_of(config, network)
    views = 1 if objective is None else objective.views
    trained = sum(parameter.numel() for parameter in network.parameters())
    steps = config.epochs * math.ceil(train_images / config.batch_size)
    seen = f"{config.epochs * train_images * views:,} images seen"
    return [*lines, f"{trained:,} parameters trained, {steps:,} steps, {seen} ({views} for each image)"]


def _image_shape(config: Config) -> tuple[int, int, int]:
    digits = config.dataset.endswith("mnist")
    return (1, 28, 28) if digits else (3, config.image_size, config.image_size)


def _train_images(config: Config) -> int:
    """How many there are in the whole data set."""
    match config.dataset:
        case "rot-mnist":
            return rot_mnist.TRAIN
        case "scale-mnist" | "rot-scale-mnist":
            return scale_mnist.SIZES.train + scale_mnist.SIZES.validation
        case "stl10":
            return 5000
    return tiny_imagenet.TRAIN * config.classes


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
