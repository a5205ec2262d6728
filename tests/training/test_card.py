"""The card of a run: every number is that of the record, and nothing private is in it."""

import json
import shutil
from pathlib import Path

import pytest

from ien.training.card import run_sections, write_run_card
from ien.training.config import changed
from ien.training.folder import FolderConfig
from ien.training.own_model import OWN
from ien.training.run_folder import read_config

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture
def run(finished, tmp_path):
    """A finished toy run, whose card may be changed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def cells(section: str) -> dict[str, str]:
    """First cell → second, of a table of two columns."""
    rows = {}
    for line in section.splitlines():
        if line.startswith("| "):
            _, first, second, _ = line.split("|")
            rows[first.strip()] = second.strip()
    return rows


def test_a_finished_run_has_a_card_with_the_numbers_of_its_record(run) -> None:
    text = (run / "README.md").read_text()
    record = json.loads((run / "result.json").read_text())
    assert text.startswith("---\nlibrary_name: ien\nlicense: unknown\n")
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert list(parts) == [
        "Data",
        "Results",
        "Equivariance",
        "Costs",
        "Settings",
        "How to load it",
        "Licence",
    ]
    assert "Trained on 96 images of toy (random), tested on 40 others." in parts["Data"]
    results = cells(parts["Results"])
    assert results["accuracy"] == f"{record['accuracy']:.1%}"
    assert "takes images (B, 1, 28, 28) with values in [0, 1]." in parts["Data"]
    errors = cells(parts["Equivariance"])
    for name, layer in record["layers"].items():
        assert float(errors[name]) == pytest.approx(layer["relative"], rel=0.06)
    assert cells(parts["Costs"])["parameters at inference"] == f"{record['parameters']:,}"
    settings = cells(parts["Settings"])
    assert settings["model"] == "cnn6" and settings["epochs"] == "3" and "device" not in settings
    for unused in ("decay", "steps_after", "slack", "validation_images", "cutout", "rescale", "mirror"):
        assert unused not in settings
    assert settings["data_seed"] == "0" and "cycle_epochs" in settings and "1 threads" not in parts["Costs"]
    assert "ien.load(" in parts["How to load it"]
    assert str(run.parent) not in text  # where it lay is nobody else's concern


def test_a_licence_that_was_filled_in_stays(run) -> None:
    path = run / "README.md"
    path.write_text(path.read_text().replace("license: unknown", "license: mit"))
    write_run_card(run, read_config(run), json.loads((run / "result.json").read_text()))
    assert "license: mit\n" in path.read_text()


def test_a_network_of_your_own_is_named_without_its_folder(run, tmp_path) -> None:
    config = FolderConfig.of(
        "photos/net-rot4",
        "train",
        dataset="photos",
        model=OWN,
        code="/home/somebody/secret/net.py:build",
        code_sha256="0" * 64,
    )
    record = json.loads((run / "result.json").read_text())
    record["data"] |= {"class_names": ["cat|dog", "<b>"], "tested_on": "validation"}
    write_run_card(tmp_path, config, record)
    text = (tmp_path / "README.md").read_text()
    assert "build=build" in text and "`net.py:build`" in text and "secret" not in text
    assert "2 classes, in this order: cat|dog, &lt;b&gt;." in text and "kept for validation" in text


def test_what_was_not_measured_is_left_out(run) -> None:
    record = json.loads((run / "result.json").read_text())
    record |= {"accuracy": 0.5, "agreement": None, "layers": {}}
    sections = run_sections(read_config(run), record)
    assert "same class" not in sections["Results"] and sections["Equivariance"] == "Not measured."
    assert cells(sections["Results"])["accuracy"] == "50.0%"


def test_settings_are_those_that_the_schedule_and_the_loss_use(run) -> None:
    config = read_config(run)
    stepwise = changed(config, {"shape": "steps", "steps_after": "1", "beta": 0.0, "tie": "free"})
    settings = cells(run_sections(stepwise, json.loads((run / "result.json").read_text()))["Settings"])
    assert settings["steps_after"] == "1" and settings["tie"] == "free" and "slack" in settings
    assert not {"cycle_epochs", "min_lr", "decay_after", "beta", "action"} & set(settings)
