"""STL-10 from its binary files, or not where they do not fit together."""

import os

import numpy as np
import pytest
import torch

from ien.data import load, stl10, to_float
from ien.data.stl10 import find

from ..helpers import real
from ..helpers.tiny import cache_files, differing, make_stl10


@pytest.fixture
def made(tmp_path):
    return make_stl10(tmp_path)


def test_images_are_those_written_column_by_column(made, tmp_path) -> None:
    data = load("stl10", tmp_path)
    assert str(data) == "Dataset(stl10, subset: 7 train and 5 test images 3×96×96 uint8, 10 classes)"
    assert data.train_x.is_contiguous()
    for x, y, part in ((data.train_x, data.train_y, "train"), (data.test_x, data.test_y, "test")):
        images, labels = made[part]
        assert np.array_equal(x.numpy(), np.stack(images))
        assert y.tolist() == [label - 1 for label in labels] and y.dtype == torch.int64
    assert differing(data, load("stl10", tmp_path / "stl10_binary", seed=3)) == [] and len(cache_files()) == 1


def means_of_areas(image, size):
    """Every pixel cut into ``size`` × ``size``, and the mean over 96 × 96 of these pieces."""
    for axis in (0, 1):
        image = np.moveaxis(np.repeat(image.astype(np.int64), size, axis), axis, 0)
        image = np.moveaxis(image.reshape(size, 96, -1).sum(1), 0, axis)
    return image / 96**2


@pytest.mark.parametrize("size", [48, 40, 95, 8])
def test_smaller_images_are_means_over_areas(size, made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stl10, "CHUNK", 3)  # not a divisor of 7
    data = load("stl10", tmp_path, image_size=size)
    for image, result in zip(made["train"][0], data.train_x.numpy(), strict=True):
        for channel, means in zip(image, result, strict=True):
            assert np.array_equal(means, np.rint(means_of_areas(channel, size)))


def test_changed_files_are_read_again(made, tmp_path) -> None:
    before = load("stl10", tmp_path)
    for name, changed in (("train_y.bin", "train_y"), ("test_X.bin", "test_x")):
        path = tmp_path / "stl10_binary" / name
        content = bytearray(path.read_bytes())
        content[0] = content[0] % 10 + 1
        path.write_bytes(content)
        stamp = path.stat().st_mtime_ns + 1_000_000
        os.utime(path, ns=(stamp, stamp))
        after = load("stl10", tmp_path)
        assert differing(before, after) == [changed]
        before = after
    assert len(cache_files()) == 3


def test_the_whole_is_called_original(made, tmp_path, monkeypatch) -> None:
    assert str(find(tmp_path)) == "7 train and 5 test images (published: 5,000 and 8,000)"
    monkeypatch.setattr(stl10, "TRAIN", 7)
    monkeypatch.setattr(stl10, "TEST", 5)
    assert load("stl10", tmp_path).source == "original" and str(find(tmp_path)) == "7 train and 5 test images"


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        ("train_X.bin", slice(-1), "damaged: 193,535 bytes are 6 images of 27,648 bytes and 27,647"),
        ("test_X.bin", slice(27_650), r"damaged: 27,650 bytes are 1 images .* and 2 bytes more"),
        ("test_X.bin", slice(0), r"test_X\.bin is damaged: 0 bytes are 0 images"),
        ("train_X.bin", slice(-27_648), r"train_X\.bin holds 6 images but train_y\.bin 7 labels"),
        ("test_y.bin", slice(4), r"test_X\.bin holds 5 images but test_y\.bin 4 labels"),
        ("test_y.bin", [1, 10, 0, 0, 5], r"y\.bin is damaged: image 3 has the label 0, but .* from 1 to 10"),
        ("test_y.bin", [1, 10, 11, 0, 5], r"test_y\.bin is damaged: image 3 has the label 11, but"),
        ("test_y.bin", None, r"is incomplete, without test_y\.bin\. Run"),
        ("*_X.bin", None, r"without train_X\.bin, test_X\.bin\."),
    ],
)
def test_damaged_files_are_told_even_if_they_are_cached(name, damage, match, made, tmp_path) -> None:
    load("stl10", tmp_path)
    for path in (tmp_path / "stl10_binary").glob(name):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[damage] if isinstance(damage, slice) else bytes(damage))
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        load("stl10", tmp_path)
    assert f"`ien data get stl10 --data {tmp_path}` after moving it away" in str(caught.value)
    assert "\n" not in str(caught.value)


@real.needs("stl10_binary")
def test_real_images_are_upright() -> None:
    data = load("stl10", real.DATA, image_size=32)
    assert data.classes == 10 and data.train_y.unique().tolist() == list(range(10))
    x = to_float(data.train_x)
    mean = x.mean((0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.4467, 0.4398, 0.4066]), atol=0.02, rtol=0)
    rows, columns = x.mean((0, 1, 3)), x.mean((0, 1, 2))
    # the sky is above: rows differ much more than columns, and the upper are brighter
    assert rows.std() > 2 * columns.std() and rows[:8].mean() > rows[-8:].mean()
