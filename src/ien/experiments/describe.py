"""What ``ien show`` prints: a configuration, how it differs from the paper's, what it costs, its state."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data import rot_mnist, scale_mnist, tiny_imagenet
from ..models import NAMES
from ..report import read
from ..tracking import Tracker
from ..tracking.data import sets as tracking_sets
from ..tracking.training.evaluate import update_cost
from ..training import MACHINE, Config, differences, field_help
from ..training.evaluate import cost
from ..training.network import build, objective_of, plain_of
from ..training.run_folder import read_config, read_data, read_result
from ..training.schedule import epoch_length
from . import config as preset_config
from . import deviations, paper
from .queue import outcome

__all__ = ["describe", "describe_run"]

WIDTH = 100


def describe(config: Config, train_images: int | None = None) -> str:
    """``train_images`` is how many images, or sequences, an epoch has, where that is known."""
    title = f"{config.experiment}, preset {config.preset}, seed {config.seed}"
    parts = {
        title: _settings(config),
        "against the paper": _wrapped(_against_the_paper(config)),
        "cost": _wrapped(_costs(config, train_images)),
    }
    return _page(parts)


def describe_run(folder: Path) -> str:
    """The same of a run folder, and its state."""
    config, data = read_config(folder), read_data(folder)
    if (result := read_result(folder)) is not None:
        finished = read(folder / "result.json").finished
        state = f"finished {finished:%Y-%m-%d %H:%M} UTC, {outcome(result)}"
    else:
        metrics = folder / "metrics.jsonl"
        epochs = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        state = f"not finished, {epochs} of {config.epochs} epochs done: go on with ien resume {folder}"
    what = "sequences" if config.tracks else "images"
    source = f"{data['source']} {data['name']} from {data['folder']}: {data['train']:,} {what} to train on"
    in_epoch = data.get("drawn_from", data["train"])
    return f"{_page({str(folder): [state, source]})}\n\n{describe(config, in_epoch)}"


def _page(parts: dict[str, list[str]]) -> str:
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts.items())


def _wrapped(texts: list[str]) -> list[str]:
    options: dict[str, Any] = {
        "subsequent_indent": "  ",
        "break_on_hyphens": False,
        "break_long_words": False,
    }
    return [line for text in texts for line in textwrap.wrap(text, WIDTH - 2, **options)]


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
    table = config.experiment.split("/")[0]
    return [
        *(
            f"{name} {_text(ours)} instead of {_text(theirs)}"
            for name, (ours, theirs) in changed.items()
            if name not in {"preset", "seed", *MACHINE} - {"processes"}
        ),
        *deviations(config.experiment),
        *([] if config.experiment in paper(table) else ["the paper prints no figures for this row"]),
    ]


def _costs(config: Config, train_images: int | None) -> list[str]:
    try:
        network = build(config)
    except ModuleNotFoundError as error:
        return [f"unknown: {error}"]
    plain = plain_of(network)
    if config.tracks:
        tracker = Tracker(plain, config.rotations)
        templates = f"{config.rotations} template{'s' * (config.rotations > 1)}"
        numbers, of = update_cost(tracker), f"an update, {tracker.settings.scales} sizes × {templates}"
    else:
        numbers, of = cost(config, plain, torch.zeros(1, *_image_shape(config))), "an image at inference"
    convs = [str(module.out_channels) for module in plain.modules() if isinstance(module, nn.Conv2d)]
    lines = [
        *(
            [f"channels of the layers: {', '.join(convs)}"]
            if config.model in NAMES or config.steerable
            else []
        ),
        f"{numbers['parameters']:,} parameters at inference",
        f"{numbers['macs']:,} multiply-accumulates for {of}",
    ]
    if config.weights_of:
        return [*lines, f"trains nothing: tests the weights of {config.weights_of}"]
    there, each, note = _items(config, train_images)
    objective = objective_of(config, network)
    views = 1 if objective is None else objective.views
    trained = sum(parameter.numel() for parameter in network.parameters())
    steps, items = epoch_length(config, there, views, config.processes)
    seen = f"{config.epochs * items * views:,} {each}s seen ({views} for each {each}){note}"
    return [*lines, f"{trained:,} parameters trained, {config.epochs * steps:,} steps, {seen}"]


def _items(config: Config, train: int | None) -> tuple[int, str, str]:
    """What there is in an epoch, what one of them is called, and what is not known of it.

    ``train`` are the images, or the sequences of clips, in an epoch, where that is known.
    """
    if train is None:
        whole = _train_images(config)
        held_out = tracking_sets.held_out(whole) if config.tracks else config.validation_images
        train = config.train_images or whole - held_out * (config.test_on == "validation")
    if not config.tracks:
        return train, "image", ""
    if config.pairs is not None:
        return config.pairs, "pair", ""
    return train, "pair", f", one of each of {train:,} sequences in an epoch, or of those that can be used"


def _image_shape(config: Config) -> tuple[int, int, int]:
    digits = config.dataset.endswith("mnist")
    return (1, 28, 28) if digits else (3, config.image_size, config.image_size)


def _train_images(config: Config) -> int:
    """How many images, or sequences, there are in the whole data set."""
    match config.dataset:
        case "rot-mnist":
            return rot_mnist.TRAIN
        case "scale-mnist" | "rot-scale-mnist":
            return scale_mnist.SIZES.train + scale_mnist.SIZES.validation
        case "stl10":
            return 5000
        case "got10k":
            return tracking_sets.PUBLISHED[0]
        case "synthetic-clips":
            return tracking_sets.SYNTHETIC[0]
    return tiny_imagenet.TRAIN * config.classes


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
