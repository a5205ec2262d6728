"""STL-10 from its binary files, or not where they do not fit together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ien.data import Dataset, load, stl10, to_float
from ien.data.cache import cache_folder
from ien.data.stl10 import find

from ..helpers.tiny import make_stl10

Made = dict[str, tuple[list[np.ndarray], list[int]]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def stl(folder: Path) -> Made:
    return make_stl10(folder)


def cache_files() -> list[Path]:
    return sorted(cache_folder().iterdir()) if cache_folder().exists() else []


def tensors(data: Dataset) -> list[Tensor]:
    return [data.train_x, data.train_y, data.test_x, data.test_y]


def test_stl10_is_what_was_written_column_by_column(stl: Made, folder: Path) -> None:
    data = load("stl10", folder)
    assert str(data) == "Dataset(stl10, subset: 7 train and 5 test images 3×96×96 uint8, 10 classes)"
    assert data.train_x.is_contiguous()
    for x, y, part in ((data.train_x, data.train_y, "train"), (data.test_x, data.test_y, "test")):
        images, labels = stl[part]
        assert np.array_equal(x.numpy(), np.stack(images))
        assert y.tolist() == [label - 1 for label in labels] and y.dtype == torch.int64
    assert all(map(torch.equal, tensors(data), tensors(load("stl10", folder / "stl10_binary", seed=3))))
    (path,) = cache_files()
    assert path.name.startswith("stl10-96px-")


def means_of_areas(image: np.ndarray, size: int) -> np.ndarray:
    """Every pixel cut into ``size`` × ``size``, and the mean over 96 × 96 of these pieces."""
    for axis in (0, 1):
        image = np.moveaxis(np.repeat(image.astype(np.int64), size, axis), axis, 0)
        image = np.moveaxis(image.reshape(size, 96, -1).sum(1), 0, axis)
    return image / 96**2


@pytest.mark.parametrize("size", [48, 40, 95, 8])
def test_smaller_images_are_means_over_areas(size: int, stl: Made, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(stl10, "CHUNK", 3)  # not a divisor of 7
    data = load("stl10", folder, image_size=size)
    for image, made in zip(stl["train"][0], data.train_x, strict=True):
        for channel, result in zip(image, made, strict=True):
            assert np.array_equal(result.numpy(), np.rint(means_of_areas(channel, size)))
    assert cache_files()[0].name.startswith(f"stl10-{size}px-")


def test_changed_stl10_is_read_again(stl: Made, folder: Path) -> None:
    place = folder / "stl10_binary"
    before = load("stl10", folder)
    for name in ("train_y.bin", "test_X.bin"):
        content = bytearray((place / name).read_bytes())
        content[0] = content[0] % 10 + 1
        (place / name).write_bytes(content)
        stamp = (place / name).stat().st_mtime_ns + 1_000_000
        os.utime(place / name, ns=(stamp, stamp))
        after = load("stl10", folder)
        assert sum(not torch.equal(a, b) for a, b in zip(tensors(before), tensors(after), strict=True)) == 1
        before = after
    assert len(cache_files()) == 3


def test_whole_stl10_is_called_original(stl: Made, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(find(folder)) == "7 train and 5 test images (published: 5,000 and 8,000)"
    monkeypatch.setattr(stl10, "TRAIN", 7)
    monkeypatch.setattr(stl10, "TEST", 5)
    assert load("stl10", folder).source == "original" and str(find(folder)) == "7 train and 5 test images"


def cut(name: str, end: int | None) -> Callable[[Path], None]:
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:end]) and None


def labelled(label: int) -> Callable[[Path], None]:
    return lambda place: (place / "test_y.bin").write_bytes(bytes([1, 10, label, 0, 5])) and None


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (
            cut("train_X.bin", -1),
            r"train_X\.bin is damaged: 193,535 bytes are 6 images of 27,648 and 27,647 ",
        ),
        (
            cut("test_X.bin", 27_650),
            r"test_X\.bin is damaged: 27,650 bytes are 1 images of 27,648 and 2 bytes",
        ),
        (cut("test_X.bin", 0), r"test_X\.bin is damaged: 0 bytes are 0 images"),
        (cut("train_X.bin", -27_648), r"train_X\.bin holds 6 images and train_y\.bin 7 labels"),
        (cut("test_y.bin", 4), r"test_X\.bin holds 5 images and test_y\.bin 4 labels"),
        (labelled(0), r"test_y\.bin is damaged: image 3 has the label 0, and they go from 1 to 10"),
        (labelled(11), r"test_y\.bin is damaged: image 3 has the label 11, and"),
        (lambda place: (place / "test_y.bin").unlink(), r"is incomplete, without test_y\.bin\. Run"),
        (lambda place: [p.unlink() for p in place.glob("*_X.bin")], r"without train_X\.bin, test_X\.bin\."),
    ],
)
def test_damaged_stl10_is_told_even_if_it_is_cached(
    damage: Callable[[Path], None], match: str, stl: Made, folder: Path
) -> None:
    load("stl10", folder)
    damage(folder / "stl10_binary")
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        load("stl10", folder)
    assert f"`ien data get stl10 --data {folder}` after moving it away" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_made_of_stl10_is_told(stl: Made, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"no STL-10: .*`ien data get stl10 --data {tmp_path}`, or put"
    ):
        load("stl10", tmp_path)
    for size, nearest in ((97, 96), (7, 8)):
        with pytest.raises(ValueError, match=f"8 to 96.*got {size}: take --set image_size={nearest}"):
            load("stl10", folder, image_size=size)
    with pytest.raises(ValueError, match="stl10 takes no setting 'mask'"):
        load("stl10", folder, mask=True)
    with pytest.raises(
        ValueError, match=r"stl10 is not made of the embedded digits: .*STL-10.*ien data get stl10"
    ):
        load("stl10", "embedded")
    assert cache_files() == []


# the real files

REAL = Path(os.environ.get("IEN_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.skipif(
    not (REAL / "stl10_binary").is_dir(), reason="needs stl10_binary in $IEN_DATA or ../shared/data"
)
def test_real_images_are_upright() -> None:
    data = load("stl10", REAL, image_size=32)
    assert data.classes == 10 and data.train_y.unique().tolist() == list(range(10))
    x = to_float(data.train_x)
    mean = x.mean((0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.4467, 0.4398, 0.4066]), atol=0.02, rtol=0)
    rows, columns = x.mean((0, 1, 3)), x.mean((0, 1, 2))
    # the sky is above: rows differ much more than columns, and the upper are brighter
    assert rows.std() > 2 * columns.std() and rows[:8].mean() > rows[-8:].mean()
