"""STL-10 from its binary files, or not where they do not fit together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data import load, stl10, to_float
from ien.data.stl10 import ARCHIVE, find

from ..helpers import real
from ..helpers.tiny import cache_files, make_stl10, same, tensors_of

Made = dict[str, tuple[list[np.ndarray], list[int]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def made(folder: Path) -> Made:
    return make_stl10(folder)


def test_images_are_those_written_column_by_column(made: Made, folder: Path) -> None:
    data = load("stl10", folder)
    assert str(data) == "Dataset(stl10, subset: 7 train and 5 test images 3×96×96 uint8, 10 classes)"
    assert data.train_x.is_contiguous()
    for x, y, part in ((data.train_x, data.train_y, "train"), (data.test_x, data.test_y, "test")):
        images, labels = made[part]
        assert np.array_equal(x.numpy(), np.stack(images))
        assert y.tolist() == [label - 1 for label in labels] and y.dtype == torch.int64
    assert same(data, load("stl10", folder / "stl10_binary", seed=3))
    assert [path.name.rpartition("-")[0] for path in cache_files()] == ["stl10-96px"]


def means_of_areas(image: np.ndarray, size: int) -> np.ndarray:
    """Every pixel cut into ``size`` × ``size``, and the mean over 96 × 96 of these pieces."""
    for axis in (0, 1):
        image = np.moveaxis(np.repeat(image.astype(np.int64), size, axis), axis, 0)
        image = np.moveaxis(image.reshape(size, 96, -1).sum(1), 0, axis)
    return image / 96**2


@pytest.mark.parametrize("size", [48, 40, 95, 8])
def test_smaller_images_are_means_over_areas(size: int, made: Made, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(stl10, "CHUNK", 3)  # not a divisor of 7
    data = load("stl10", folder, image_size=size)
    for image, result in zip(made["train"][0], data.train_x.numpy(), strict=True):
        for channel, means in zip(image, result, strict=True):
            assert np.array_equal(means, np.rint(means_of_areas(channel, size)))
    assert cache_files()[0].name.startswith(f"stl10-{size}px-")


def test_changed_files_are_read_again(made: Made, folder: Path) -> None:
    before = load("stl10", folder)
    for name in ("train_y.bin", "test_X.bin"):
        path = folder / "stl10_binary" / name
        content = bytearray(path.read_bytes())
        content[0] = content[0] % 10 + 1
        path.write_bytes(content)
        stamp = path.stat().st_mtime_ns + 1_000_000
        os.utime(path, ns=(stamp, stamp))
        after = load("stl10", folder)
        changed = [not torch.equal(a, b) for a, b in zip(tensors_of(before), tensors_of(after), strict=True)]
        assert sum(changed) == 1
        before = after
    assert len(cache_files()) == 3


def test_the_whole_is_called_original(made: Made, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(find(folder)) == "7 train and 5 test images (published: 5,000 and 8,000)"
    monkeypatch.setattr(stl10, "TRAIN", 7)
    monkeypatch.setattr(stl10, "TEST", 5)
    assert load("stl10", folder).source == "original" and str(find(folder)) == "7 train and 5 test images"


def cut(name: str, end: int | None) -> Callable[[Path], object]:
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:end])


def labelled(label: int) -> Callable[[Path], object]:
    return lambda place: (place / "test_y.bin").write_bytes(bytes([1, 10, label, 0, 5]))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (
            cut("train_X.bin", -1),
            "damaged: 193,535 bytes are 6 images of 27,648 bytes and 27,647",
        ),
        (cut("test_X.bin", 27_650), r"test_X\.bin is damaged: 27,650 bytes are 1 images .* and 2 bytes more"),
        (cut("test_X.bin", 0), r"test_X\.bin is damaged: 0 bytes are 0 images"),
        (cut("train_X.bin", -27_648), r"train_X\.bin holds 6 images but train_y\.bin 7 labels"),
        (cut("test_y.bin", 4), r"test_X\.bin holds 5 images but test_y\.bin 4 labels"),
        (labelled(0), r"test_y\.bin is damaged: image 3 has the label 0, but labels go from 1 to 10"),
        (labelled(11), r"test_y\.bin is damaged: image 3 has the label 11, but"),
        (lambda place: (place / "test_y.bin").unlink(), r"is incomplete, without test_y\.bin\. Run"),
        (lambda place: [p.unlink() for p in place.glob("*_X.bin")], r"without train_X\.bin, test_X\.bin\."),
    ],
)
def test_damaged_files_are_told_even_if_they_are_cached(
    damage: Callable[[Path], object], match: str, made: Made, folder: Path
) -> None:
    load("stl10", folder)
    damage(folder / "stl10_binary")
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        load("stl10", folder)
    assert f"`ien data get stl10 --data {folder}` after moving it away" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no STL-10: .*`ien data get stl10 --data {tmp_path}`, or"):
        load("stl10", tmp_path)


def test_the_archive_has_the_published_name_and_digest() -> None:
    assert ARCHIVE.size == 2_640_397_119 and ARCHIVE.md5 == "91f7769df0f17e558f3565bffb0c7dfb"
    assert all(url.endswith(".stanford.edu/~acoates/stl10/stl10_binary.tar.gz") for url in ARCHIVE.urls)


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
