"""Rows that segment nuclei: the same network and as many images, and each runs end to end."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ien
from ien.experiments import config, find
from ien.experiments.queue import plan, run_all
from ien.experiments.tables import print_table
from ien.training import flat
from tests.helpers.configs import network
from tests.helpers.tiny import make_mask_folders

pytestmark = pytest.mark.usefixtures("elsewhere", "one_thread")

NAMES = find("nuclei/*")


def changed(name: str, preset: str) -> dict[str, Any]:
    """The fields in which a row differs from the first."""
    ours, theirs = (flat(config(f"nuclei/{each}", preset)) for each in (name, "cnn"))
    return {field: ours[field] for field in ours if ours[field] != theirs[field] and field != "experiment"}


@pytest.mark.parametrize("preset", ["paper", "small", "demo", "smoke"])
def test_rows_differ_as_their_names_say(preset) -> None:
    assert NAMES == ["nuclei/cnn", "nuclei/cnn-aug", "nuclei/tied", "nuclei/slack"]
    assert changed("cnn-aug", preset) == {"transform": True}
    assert changed("tied", preset) == {"tie": "smooth"}
    assert changed("slack", preset) == {"tie": "smooth", "slack": "auto"}
    row = config("nuclei/tied", preset)
    net = network(row)
    assert net.level1[0].out_channels // 4 >= 6  # so few features are the fewest that a head learns from
    assert ien.doctor(net, (1, row.data.image_size, row.data.image_size)).exact


def test_every_row_runs_and_stands_in_the_table() -> None:
    pytest.importorskip("PIL.Image")
    make_mask_folders(Path("data/dsb2018-nuclei"), {"train": 9, "test": 5})
    shown = Console(file=io.StringIO())
    run_all(plan(NAMES[-1:], "smoke", [1]), Path("runs"), Path("results"), console=shown)  # not recorded
    settings = ["epochs=2", "image_size=16", "device=cpu", "threads=1"]
    records = run_all(plan(NAMES, "small", [1], settings), Path("runs"), Path("results"), console=shown)
    cnn, _, tied, slack = records
    assert tied["consistency"] == slack["consistency"] == 1 and cnn["data"]["source"] == "subset"
    assert tied["macs"] == cnn["macs"] and tied["trained_parameters"] < cnn["trained_parameters"] / 3
    table = io.StringIO()
    print_table("nuclei", Path("results"), "smoke", Console(file=table))
    assert "no records of nuclei at preset smoke" in table.getvalue()
    table = io.StringIO()
    print_table("nuclei", Path("results"), console=Console(file=table, width=260))
    line, *_ = [line for line in table.getvalue().splitlines() if line.strip().startswith("tied (")]
    expected = f"{tied['dice']:.3f}", f"{tied['dice_under_group']:.3f}", "1.000"
    assert all(text in line for text in expected) and "consistency: Dice between" in table.getvalue()
