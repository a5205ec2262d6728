"""The model card of a run, README.md in its folder: all it says is from the record."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from .._text import markdown_table, number, short_count
from ..exporting.card import card_text, licence_in, write_card
from .config import MACHINE, Config, flat
from .own_model import OWN, OwnNetwork
from .task import kind_of

__all__ = ["CARD", "run_sections", "run_title", "write_run_card"]

CARD = "README.md"
MAX_CLASS_NAMES = 30
"""How many classes are named."""
SHARES = {
    "accuracy": "accuracy",
    "accuracy_under_group": "accuracy under all elements of {group}",
    "agreement": "same class under all elements of {group}",
    "dice": "Dice",
    "dice_under_group": "Dice under all elements of {group}",
    "consistency": "Dice between predictions for rotated images and rotated predictions",
}
"""Field of a record → what a card calls it."""


OWN_PRESET = "folder"
"""What ``ien train`` calls its settings, which are no preset of the paper's tables."""
FIELDS_OF_SHAPE = {
    "one-cycle": {"cycle_epochs", "min_lr"},
    "exponential": {"decay", "decay_after"},
    "steps": {"decay", "steps_after"},
}
"""Shape of the learning rate → the settings that it has."""
OFF = {"rescale": 1.0, "shift": 0, "cutout": 0}
"""Changes of training images → the value that leaves them as they are."""


def write_run_card(folder: Path, config: Config, record: Mapping[str, Any]) -> None:
    """Write README.md into the folder of a finished run; a licence that it names already stays."""
    path = folder / CARD
    sections = run_sections(config, record) | {"How to load it": _how_to_load(config)}
    write_card(path, card_text(run_title(config), licence_in(path), sections))


def run_title(config: Config) -> str:
    """Return what a run is called."""
    preset = ""
    if config.preset != OWN_PRESET:
        preset = f", preset {config.preset}"
    return f"{config.experiment}{preset}, seed {config.seed}"


def run_sections(config: Config, record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a card says about a run: heading → Markdown."""
    return {
        "Data": _data(config, record),
        "Results": _results(config, record),
        "Equivariance": _equivariance(config, record),
        "Costs": _costs(config, record),
        "Settings": _settings(config),
    }


def _data(config: Config, record: Mapping[str, Any]) -> str:
    data = record["data"]
    unit = kind_of(config).data_unit
    text = (
        f"Trained on {data['train']:,} {unit} of {data['name']} ({data['source']}), tested on "
        f"{data['test']:,} others"
    )
    if data.get("tested_on") == "validation":
        text += ", which are a part of the training set kept for validation"
    names = data.get("class_names", [])
    if names:
        listed = escape(", ".join(names[:MAX_CLASS_NAMES]), quote=False)  # folders may have any name
        more = " …" if len(names) > MAX_CLASS_NAMES else ""
        text += f". {len(names)} classes, in this order: {listed}{more}"
    text += "."
    if "image_shape" in record:  # records of earlier versions have none
        shape = ", ".join(map(str, record["image_shape"]))
        text += f" The network takes images (B, {shape}) with values in [0, 1]."
    return text


def _results(config: Config, record: Mapping[str, Any]) -> str:
    group = _groups(config)
    rows = [["measured on the test set", ""]]
    for field, label in SHARES.items():
        value = record.get(field)
        if value is not None:
            rows.append([label.format(group=group), f"{value:.1%}"])
    if len(rows) == 1:
        return f"{kind_of(config).outcome(record)}."
    return f"{markdown_table(rows)}\n\nThese are the numbers of one seed."


def _equivariance(config: Config, record: Mapping[str, Any]) -> str:
    rows = [["layer", f"relative error under {_groups(config)}"]]
    for name, layer in record.get("layers", {}).items():
        rows.append([name, number(layer["relative"])])
    if len(rows) == 1:
        return "Not measured."
    return f"{markdown_table(rows)}\n\n0 means equivariant, about 2 means unrelated."


def _costs(config: Config, record: Mapping[str, Any]) -> str:
    rows = [["", ""]]
    rows.append(["parameters at inference", f"{record['parameters']:,}"])
    rows.append(["multiply-accumulates", short_count(record["macs"])])
    if "images_per_second" in record:
        machine = record["machine"].replace(", 1 threads,", ", 1 thread,")
        rows.append(["images per second", f"{record['images_per_second']:,.0f} on {machine}"])
    seconds = f"{record['seconds']:,.0f} s"
    if record["seconds"] < 1:
        seconds = "less than a second"
    rows.append(["training", f"{seconds}, {record['images_seen']:,} views of images"])
    versions = []
    for name, version in record["versions"].items():
        versions.append(f"{name} {version}")
    rows.append(["versions", ", ".join(versions)])
    return markdown_table(rows)


def _settings(config: Config) -> str:
    unused = _unused(config)
    rows = [["setting", "value"]]
    for name, value in flat(config).items():
        if name in MACHINE or name in unused or value is False or value in (None, ""):
            continue
        if name == "code":
            value = Path(str(value)).name  # the folder is nobody else's concern
        rows.append([name, str(value)])
    return markdown_table(rows)


def _unused(config: Config) -> set[str]:
    """Return the settings that had no effect, as the decay of a schedule without one."""
    data, objective, schedule = config.data, config.objective, config.schedule
    unused = set()
    for names in FIELDS_OF_SHAPE.values():
        unused |= names - FIELDS_OF_SHAPE[schedule.shape]
    if not objective.beta or not objective.augment:
        unused |= {"beta", "target", "action", "corners", "normalize"}
    if objective.target is not None:
        unused.add("beta")
    if not objective.augment:
        unused.add("samples")
    if objective.tie == "never":
        unused |= {"slack", "tie_group", "tie"}
    if config.preset == OWN_PRESET:
        unused.add("preset")
    if data.test_on == "test":
        unused.add("validation_images")
    if data.dataset != "rot-mnist":
        unused.add("max_angle")
    for name, value in OFF.items():
        if getattr(data, name) == value:
            unused.add(name)
    return unused


def _how_to_load(config: Config) -> str:
    argument = ""
    needed = ""
    if isinstance(config.network, OwnNetwork) and config.network.model == OWN:
        argument = ", build=build"
        needed = f" `build` is the function of `{Path(config.network.code).name}`, which is not in here."
    return (
        f'```python\nimport ien\n\nmodel = ien.load("path/to/this/folder"{argument})\n```\n\n'
        f"Nothing in the folder is executed.{needed} `ien export path/to/this/folder -o net.onnx` makes one "
        f"file that runs without ien."
    )


def _groups(config: Config) -> str:
    return ", ".join(map(str, config.objective.measured_groups))
