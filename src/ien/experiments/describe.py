"""What ``ien show`` prints: a configuration, how it differs from the paper's, what it costs, its state."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from torch import nn

from ..report import read
from ..training import MACHINE, Config, differences, entries, flat, kind_of
from ..training.network import build, objective_of, plain_of
from ..training.run_folder import read_config, read_data, read_result
from ..training.schedule import epoch_length
from .catalogue import config as preset_config
from .catalogue import deviations, paper
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
        state = (
            f"not finished, {epochs} of {config.schedule.epochs} epochs done: go on with ien resume {folder}"
        )
    what = kind_of(config).data_unit
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
    texts = {name: entry.help for name, entry in entries(type(config)).items()}
    values = {
        name: _text(value)
        for name, value in flat(config).items()
        if name not in ("experiment", "preset", "seed")
    }
    first, second = max(map(len, values)), max(map(len, values.values()))
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
    plain, kind = plain_of(network), kind_of(config)
    cost = kind.cost(config, plain)
    lines = []
    if config.network.steerable or config.network.model in config.network.PLAIN:
        convs = [str(module.out_channels) for module in plain.modules() if isinstance(module, nn.Conv2d)]
        lines.append(f"channels of the layers: {', '.join(convs)}")
    lines.append(f"{cost.parameters:,} parameters at inference")
    lines.append(f"{cost.macs:,} multiply-accumulates for {cost.unit}")
    if config.weights_of:
        return [*lines, f"trains nothing: tests the weights of {config.weights_of}"]
    objective = objective_of(config, network)
    views = 1 if objective is None else objective.views
    trained = sum(parameter.numel() for parameter in network.parameters())
    there, each, note = kind.epoch_items(config, train_images)
    steps, items = epoch_length(config, there, views, config.machine.processes)
    epochs = config.schedule.epochs
    seen = f"{epochs * items * views:,} {each}s seen ({views} for each {each}){note}"
    return [*lines, f"{trained:,} parameters trained, {epochs * steps:,} steps, {seen}"]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
