"""What ``ien train`` chooses for a folder: sizes, symmetry, names; and two processes that share a run."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from ien.experiments.own_images import Wanted, plan_own, train_own
from ien.training import Processes
from ien.training.run_folder import read_result
from tests.helpers.tiny import make_class_folders, make_mask_folders
from tests.helpers.two_processes import together

pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")
pytestmark = pytest.mark.usefixtures("elsewhere")


def planned(folder: str = "photos", **wanted):
    return plan_own(Wanted(Path(folder), **wanted))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ("resnet18", "4", "smooth", "auto", False)),
        ({"group": "rot4xflip", "model": "vgg"}, ("vgg", "8", "smooth", "auto", False)),
        ({"group": "rot8", "slack": "0"}, ("resnet18", "8", "smooth", "0", True)),  # 45° is resampled
        ({"group": "none", "model": "vgg"}, ("vgg", "4", "never", "0", False)),
    ],
)
def test_weights_are_tied_with_slack_unless_the_user_says_otherwise(wanted, expected) -> None:
    make_class_folders(Path("photos"), shape=(16, 16))
    config = planned(**wanted).config
    objective = config.objective
    found = config.network.model, config.network.feature_groups, objective.tie, objective.slack
    assert (*found, objective.transform) == expected
    assert (config.data.classes, config.data.channels) == (4, 1) and not objective.augment


def test_pictures_keep_their_size_up_to_a_limit_and_a_setting_is_taken_at_its_word() -> None:
    make_class_folders(Path("photos"), shape=(20, 30, 3))
    make_class_folders(Path("large"), classes=2, shape=(90, 90, 3))
    vgg = planned(model="vgg")
    assert vgg.config.data.image_size == 16 and "size 16, where the pictures have 20" in vgg.notes[1]
    assert planned("large", model="vgg").config.data.image_size == 64
    kept = planned(model="vgg", group="none", settings=["image_size=18", "epochs=5", "width=1/16"])
    assert kept.config.data.image_size == 18
    assert (kept.config.schedule.epochs, kept.config.schedule.cycle_epochs) == (5, 4)
    assert kept.config.network.width == 1 / 16


def test_a_run_is_named_after_its_folder_and_what_sets_it_apart() -> None:
    make_class_folders(Path("photos"), shape=(16, 16, 3))
    make_mask_folders(Path("cells"))
    assert planned(model="vgg", seed=3).name == "photos/vgg-rot4-seed3"
    assert planned(model="vgg", group="D4").name == "photos/vgg-rot4xflip-seed1"
    assert planned(model="vgg", slack="0").name == "photos/vgg-rot4-slack0-seed1"
    assert planned("cells", group="none").name == "cells/unet-none-seed1"
    assert planned("cells", name="mine").name == "mine"


def test_a_size_that_a_network_refuses_is_changed_even_without_a_group() -> None:
    make_mask_folders(Path("cells"), size=21)
    assert planned("cells", group="none").config.data.image_size == 24
    make_class_folders(Path("photos"), shape=(21, 21))
    assert planned(model="vgg", group="none").config.data.image_size == 21


def in_two(processes: Processes, path: Path) -> None:
    wanted = Wanted(
        path / "photos",
        model="vgg",
        epochs=1,
        batch_size=8,
        machine={"device": "cpu", "threads": 1},
        processes=2,
    )
    run = plan_own(wanted)
    train_own(run, path / "photos", path / "runs", processes, Console(file=io.StringIO()))


@pytest.mark.slow
def test_two_processes_share_a_run(tmp_path) -> None:
    make_class_folders(tmp_path / "photos", shape=(16, 16, 3))
    together(in_two, tmp_path)
    record = read_result(tmp_path / "runs/photos/vgg-rot4-seed1")
    assert record is not None and record["agreement"] == 1 and record["images_seen"] == 20
