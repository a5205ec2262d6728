"""What ``ien show`` prints: a configuration, how it differs from the paper's, and what it costs.

For a run folder, also how far the run is.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from torch import nn

from ..report import read
from ..training import MACHINE, Config, differences, entries, flat, kind_of
from ..training.network import build, count_views, objective_of, plain_of
from ..training.own_model import NotGiven
from ..training.run_folder import count_epochs, read_config, read_data, read_result
from ..training.schedule import epoch_length
from ..tying.tied import count_parameters
from .catalogue import config as preset_config
from .catalogue import deviations, names, paper

__all__ = ["describe", "describe_run"]

LINE_WIDTH = 100
MAX_VALUE_WIDTH = 40
TITLE_FIELDS = ("experiment", "preset", "seed")
# with several processes BatchNorm sees smaller batches, so their number does count
UNCOMPARED_FIELDS = {"preset", "seed", *MACHINE} - {"processes"}
"""Fields that say nothing about how a run differs from the paper's."""


def describe(config: Config, train_images: int | None = None) -> str:
    """Describe a configuration.

    Args:
        config: The configuration.
        train_images: How many images or sequences an epoch has, if that is known.
    """
    title = f"{config.experiment}, preset {config.preset}, seed {config.seed}"
    sections = [_section(title, _settings(config))]
    if config.experiment in names():
        sections.append(_section("against the paper", _wrapped(_against_the_paper(config))))
    sections.append(_section("cost", _wrapped(_costs(config, train_images))))
    return "\n\n".join(sections)


def describe_run(folder: Path) -> str:
    """Describe a run folder: its state, its data and its configuration."""
    config, data = read_config(folder), read_data(folder)
    kind = kind_of(config)
    source = (
        f"{data['source']} {data['name']} from {data['folder']}: "
        f"{data['train']:,} {kind.data_unit} to train on"
    )
    state = _section(str(folder), [_state(folder, config), source])
    # a subset is seen in epochs as long as those of the images that it is drawn from
    in_epoch = data.get("drawn_from", data["train"])
    return f"{state}\n\n{describe(config, in_epoch)}"


def _state(folder: Path, config: Config) -> str:
    """Say whether a run is finished, and how far it is if not."""
    result = read_result(folder)
    if result is not None:
        finished = read(folder / "result.json").finished
        return f"finished {finished:%Y-%m-%d %H:%M} UTC, {kind_of(config).outcome(result)}"
    done = count_epochs(folder)
    return f"not finished, {done} of {config.schedule.epochs} epochs done: go on with ien resume {folder}"


def _section(title: str, lines: list[str]) -> str:
    indented = [f"  {line}" for line in lines]
    return "\n".join([title, *indented])


def _wrapped(texts: list[str]) -> list[str]:
    lines = []
    for text in texts:
        # names such as ien-r4-beta0.1 stay whole, to be copied
        lines += textwrap.wrap(
            text, LINE_WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    return lines


def _settings(config: Config) -> list[str]:
    """Each field with its value and its help text, in three columns."""
    values = {}
    for name, value in flat(config).items():
        if name not in TITLE_FIELDS:
            values[name] = _text(value)[-MAX_VALUE_WIDTH:]  # a path ends with the file
    name_width = max(map(len, values))
    value_width = max(map(len, values.values()))
    # an indent of 2, and 2 spaces after each of the first two columns
    help_width = LINE_WIDTH - 2 - name_width - value_width - 4
    lines = []
    for name, entry in entries(type(config)).items():
        if name not in values:
            continue
        left = f"{name:{name_width}}  {values[name]:{value_width}}  "
        for line in textwrap.wrap(entry.help, help_width, break_on_hyphens=False):
            lines.append(left + line)
            left = " " * len(left)  # name and value stand on the first line of the help only
    return lines


def _against_the_paper(config: Config) -> list[str]:
    lines = []
    papers = preset_config(config.experiment, "paper")
    for name, (ours, theirs) in differences(config, papers).items():
        if name not in UNCOMPARED_FIELDS:
            lines.append(f"{name} {_text(ours)} instead of {_text(theirs)}")
    lines += deviations(config.experiment)
    table = config.experiment.split("/")[0]
    if config.experiment not in paper(table):
        lines.append("the paper prints no numbers for this row")
    return lines


def _costs(config: Config, train_images: int | None) -> list[str]:
    try:
        network = build(config)
    except (ModuleNotFoundError, NotGiven) as error:
        # the network is code of the user's; all else can be shown without
        return [f"unknown: {error}"]
    kind = kind_of(config)
    plain = plain_of(network)
    cost = kind.cost(config, plain)
    lines = []
    # baselines for scale have convolutions of their own, which this would miss
    if config.network.plain_model in config.network.PLAIN:
        channels = []
        for module in plain.modules():
            if isinstance(module, nn.Conv2d):
                channels.append(str(module.out_channels))
        lines.append(f"channels of the layers: {', '.join(channels)}")
    lines.append(f"{cost.parameters:,} parameters at inference")
    lines.append(f"{cost.macs:,} multiply-accumulates for {cost.unit}")
    if config.weights_of:
        lines.append(f"trains nothing: tests the weights of {config.weights_of}")
        return lines

    objective = objective_of(config, network)
    views = count_views(objective)
    trained = f"{count_parameters(network):,} parameters trained"
    if config.objective.tied:
        # how many there are is known once the weights are tied, which takes a while
        if config.objective.slack_value == 0:
            trained = f"fewer than {trained} (tied)"
        else:
            trained = "tied parameters and their free remainders trained"
    total, name, note = kind.epoch_items(config, train_images)
    steps, items = epoch_length(config, total, views, config.machine.processes)
    epochs = config.schedule.epochs
    seen = f"{epochs * items * views:,} {name}s seen ({views} for each {name}){note}"
    lines.append(f"{trained}, {epochs * steps:,} steps, {seen}")
    return lines


def _text(value: Any) -> str:
    """Write a value as ``--set`` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
