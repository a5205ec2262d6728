"""The demo, on the command line as a user runs it."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import Result

import ien
from ien.data import load, to_float
from ien.experiments import demo as demos
from ien.experiments.demo import NETWORKS, PAPER_ROWS
from ien.training import Stopped
from tests.helpers.shell import invoke

TINY = ["--epochs", "3", "--set", "train_images=1000", "--set", "test_images=100", "--set", "width=1/16"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("demo")
    return invoke("demo", *TINY, "--out", folder, columns=80), folder


def table(output: str) -> dict[str, list[float]]:
    """The numbers of each network: upright, rotated, predictions that change, seconds."""
    rows = {}
    for line in output.splitlines():
        found = re.match(r"(.+?) +([\d.]+)% +([\d.]+)% +([\d.]+)% +(\d+) s$", line)
        if found:
            rows[found[1]] = [float(text) for text in found.groups()[1:]]
    return rows


@pytest.mark.slow
def test_demo_rotates_the_test_of_four_nets_and_ends_with_a_table_and_a_page(demo) -> None:
    done, folder = demo
    rows = table(done.output)
    assert list(rows) == list(NETWORKS)
    data = load("rot-mnist", "embedded", max_angle=0)
    x, y = to_float(data.test_x[:100]), data.test_y[:100]
    for name, experiment in NETWORKS.items():
        (run,) = (folder / experiment).iterdir()
        net = ien.load(run)
        with torch.no_grad():  # by hand: quarter turns with torch.rot90
            predicted = torch.stack([net(x.rot90(k, (2, 3))).argmax(1) for k in range(4)])
        right = (predicted == y).double().mean(1)
        changed = (predicted != predicted[0]).any(0).double().mean()
        expected = [100 * float(value) for value in (right[0], right[1:].mean(), changed)]
        assert rows[name][:3] == pytest.approx(expected, abs=0.051)  # as printed, with one decimal
    upright, rotated, changing, _ = rows["equivariant CNN"]
    assert upright == rotated and changing == 0
    assert rows["ordinary CNN"][1] < rows["ordinary CNN"][0] and rows["ordinary CNN"][2] > 10


@pytest.mark.slow
def test_demo_fits_80_columns_and_the_address_of_its_page_is_whole(demo) -> None:
    done, folder = demo
    lines = done.output.splitlines()
    address = (folder / "report.html").absolute().as_uri()
    assert lines[-2] == address and lines[-1].startswith("Next, ")
    assert (folder / "report.html").stat().st_size > 100_000
    after = lines[next(i for i, line in enumerate(lines) if "upright  rotated" in line) :]
    assert all(len(line) <= 80 for line in after if line != address)
    assert "a 6 is nearly a 9" in " ".join(after) and 'slack="auto"' in " ".join(after)


@pytest.mark.slow
def test_the_page_opens_on_a_digit_that_the_ordinary_net_gets_wrong_at_that_angle(demo) -> None:
    _, folder = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<script[^>]*id="explorer-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    content = json.loads(found[1])
    image = content["images"][0]
    assert image["opening"] in (18, 36, 54)  # of every 5°: a quarter turn
    at_opening = [run["images"][0]["predicted"][image["opening"]] for run in content["runs"]]
    assert at_opening[0] != image["label"] and at_opening[-1] == image["label"]


@pytest.mark.slow
def test_demo_does_not_train_again_and_without_plots_says_how_to_get_them(demo, monkeypatch) -> None:
    done, folder = demo
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    again = invoke("demo", *TINY, "--out", folder, columns=200).output
    assert "epoch 3/3" in done.output and "epoch 3/3" not in again and table(again) == table(done.output)
    assert "No page was written: plotting needs matplotlib: pip install " in again


def test_a_stopped_demo_goes_on_with_the_same_command(monkeypatch, tmp_path) -> None:
    def stop(*arguments, **options):
        raise Stopped(tmp_path)

    monkeypatch.setattr("ien.experiments.demo.run_all", stop)
    said = invoke("demo", "--out", tmp_path, code=130).stderr
    assert said == "stopped; the same command resumes from the last checkpoint\n"


@pytest.mark.slow
def test_the_papers_rows_are_trained_on_rotated_digits(tmp_path) -> None:
    output = invoke("demo", "--paper", *TINY, "--out", tmp_path).output
    assert "embedded-5k" in output
    rows = {}
    for line in output.split("Relative error")[1].splitlines():
        if line.split()[:1] and line.split()[0] in PAPER_ROWS:
            rows[line.split()[0]] = [float(number) for number in re.findall(r"\d\.\de[+-]\d\d", line)]
    assert tuple(rows) == PAPER_ROWS
    # this is enough to pull the first layer, which learns fastest, towards equivariance
    assert rows["ien-r4"][0] < rows["cnn-aug"][0] and rows["het-ien"][0] < rows["cnn-aug"][0]
    assert max(rows["equivariant"]) < 1e-2  # from the start
    (run,) = (tmp_path / "rot-mnist" / "het-ien").iterdir()
    assert ien.load(run)(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    page = tmp_path / "paper.html"
    assert output.splitlines()[-1] == page.absolute().as_uri()
    assert "het-ien" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("slack", "says"), [(0.0, "kept the symmetry"), (0.1, "digits have an upright")])
def test_what_slack_did_is_read_from_its_run(slack: float, says: str) -> None:
    record = {"accuracy": 0.9, "accuracy_under_group": 0.9, "slack": {"conv1": slack}}
    assert says in demos._meaning(dict.fromkeys(NETWORKS, record))
