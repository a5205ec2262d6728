"""The demo, on the command line as a user runs it."""

import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import Result

import ien
from tests.helpers.shell import error_of, invoke

ROWS = ["cnn-aug", "ien-r4", "het-ien", "equivariant"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("demo")
    return invoke("demo", "--epochs", "1", "--out", folder), folder


@pytest.mark.slow
def test_demo_trains_four_nets_and_ends_with_their_table_and_page(demo) -> None:
    done, folder = demo
    assert "embedded-5k" in done.output
    rows = {}
    for line in done.output.split("Relative error")[1].splitlines():
        if line.split()[:1] and line.split()[0] in ROWS:
            rows[line.split()[0]] = [float(number) for number in re.findall(r"\d\.\de[+-]\d\d", line)]
    assert list(rows) == ROWS
    # one epoch is enough to pull the first layer, which learns fastest, towards equivariance
    assert rows["ien-r4"][0] < rows["cnn-aug"][0] and rows["het-ien"][0] < rows["cnn-aug"][0]
    assert max(rows["equivariant"]) < 1e-2  # from the start
    (run,) = (folder / "rot-mnist" / "het-ien").iterdir()
    net = ien.load(run)
    assert not net.training and net(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert net.conv1[0].out_channels == 11
    page = folder / "report.html"
    assert done.output.splitlines()[-1].endswith(str(page.absolute()))
    assert "het-ien demo seed 1" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_demo_does_not_train_again_and_without_plots_says_how_to_get_them(demo, monkeypatch) -> None:
    _, folder = demo
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    again = invoke("demo", "--epochs", "1", "--out", folder).output
    assert again.count("recorded in") == 4 and "epoch 1/1" not in again and "Relative error" in again
    assert 'pip install "ien[plots]"' in again.splitlines()[-1]


def test_missing_digits_name_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "ien[digits]"' in error_of("demo", "--out", tmp_path)
