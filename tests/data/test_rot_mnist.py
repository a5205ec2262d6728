"""Rot-MNIST: made from MNIST, or read from the original files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ien.data import Dataset, load, mnist, rot_mnist, to_float
from ien.data.scale_mnist import Sizes

from ..helpers import real
from ..helpers.resampling import resampled
from ..helpers.tiny import cache_files, idx, tagged_digits, write_gz

TRAIN, TEST = 40, 70


@pytest.fixture
def folder(mnist_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ien.data.rot_mnist.TRAIN", TRAIN)
    monkeypatch.setattr("ien.data.rot_mnist.TEST", TEST)
    return mnist_folder


def all_images(data: Dataset) -> Tensor:
    return torch.cat([data.train_x, data.test_x])[:, 0]


def source_numbers(data: Dataset) -> Tensor:
    """Which source image each one is: the middle of the disc does not change when it is rotated."""
    return all_images(data)[:, 13, 13].long() - 1


def test_parts_share_no_digit_and_keep_their_labels(folder: Path) -> None:
    data = load("rot-mnist", folder, seed=7)
    assert (data.name, data.source, data.classes) == ("rot-mnist", "generated", 10)
    assert data.train_x.shape == (TRAIN, 1, 28, 28) and data.test_x.shape == (TEST, 1, 28, 28)
    numbers = source_numbers(data)
    assert len(numbers.unique()) == TRAIN + TEST
    assert torch.equal(torch.cat([data.train_y, data.test_y]), mnist.mnist(folder)[1][numbers])
    assert (numbers[:TRAIN] >= 100).any() and (numbers[TRAIN:] < 100).any()  # both have both parts of MNIST
    assert [path.name.rpartition("-")[0] for path in cache_files()] == ["rot-mnist-generated-seed7"]


def test_digits_are_rotated_by_angles_from_the_whole_circle(folder: Path) -> None:
    data = load("rot-mnist", folder)
    x, numbers = all_images(data).double(), source_numbers(data)
    right, down = torch.arange(28) - 13.5, torch.arange(28).view(-1, 1) - 13.5
    dot = x * (right**2 + down**2 > 6**2)
    angles = torch.atan2(-(dot * down).sum((1, 2)), (dot * right).sum((1, 2))).rad2deg() % 360
    assert (torch.histc(angles, 6, 0, 360) >= 8).all()  # 110 of them
    upright = np.concatenate([tagged_digits(100, 0), tagged_digits(20, 100)])
    for k in range(0, len(x), 25):
        near = float(angles[k]) + np.arange(-1, 1, 0.1)  # the angle is known from the picture only
        difference = [np.abs(x[k].numpy() - resampled(upright[numbers[k]], angle)).max() for angle in near]
        assert min(difference) < 2.5 and max(difference) > 20


def test_the_seed_decides_and_the_global_generator_stays(folder: Path) -> None:
    images, labels = mnist.mnist(folder)
    state = torch.get_rng_state()
    first, again, other = (rot_mnist.generate(images, labels, seed, TRAIN, TEST) for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["train_x"], other["train_x"])
    assert not torch.equal(first["train_y"], other["train_y"])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_result_does_not_depend_on_the_size_of_the_chunks() -> None:
    images = torch.randint(256, (1500, 1, 8, 8), dtype=torch.uint8)
    made = rot_mnist.generate(images, torch.arange(1500), 0, 1000, 500)
    assert sorted(torch.cat([made["train_y"], made["test_y"]]).tolist()) == list(range(1500))
    longer = rot_mnist.generate(images, torch.arange(1500), 0, 1200, 300)
    assert torch.equal(longer["train_x"][:1000], made["train_x"])
    with pytest.raises(ValueError, match=r"1000 \+ 501 different digits cannot be drawn from 1500"):
        rot_mnist.generate(images, torch.arange(1500), 0, 1000, 501)


@pytest.mark.parametrize("name", ["rot-mnist", "scale-mnist"])
def test_a_changed_source_is_not_served_from_the_cache(name: str, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("ien.data.scale_mnist.SIZES", Sizes(40, 10, 60))
    before = load(name, folder)
    path = folder / "mnist" / "train-images-idx3-ubyte.gz"
    stamp = path.stat()
    write_gz(path, idx(255 - tagged_digits(100, 0)))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the content counts, not the date
    assert not torch.equal(before.train_x, load(name, folder).train_x) and len(cache_files()) == 2


# the original files


def amat_rows(count: int) -> np.ndarray:
    pixels = np.random.default_rng(count).random((count, 784)).astype(np.float32)
    return np.concatenate([pixels, np.arange(count)[:, None] % 10], axis=1)


def write_amat(place: Path, part: str, rows: np.ndarray) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"mnist_all_rotation_normalized_float_{part}.amat"
    path.write_text("\n".join("   " + "   ".join(f"{v:.9g}" for v in row) + " " for row in rows) + "\n")
    return path


@pytest.mark.parametrize("where", ["rot-mnist", "mnist_rotation_new", "."])
def test_original_files_are_preferred_and_read_as_written(where: str, folder: Path) -> None:
    train, test = amat_rows(TRAIN), amat_rows(TEST)
    write_amat(folder / where, "train_valid", train)
    path = write_amat(folder / where, "test", test)
    for _ in range(2):  # from the files, then from the cache
        data = load("rot-mnist", folder, seed=1)
        assert data.source == "original" and data.train_x.dtype == torch.float32
        for x, y, rows in ((data.train_x, data.train_y, train), (data.test_x, data.test_y, test)):
            assert np.array_equal(x.numpy(), rows[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32))
            assert y.tolist() == rows[:, -1].tolist() and y.dtype == torch.int64
    assert [path.name.rpartition("-")[0] for path in cache_files()] == ["rot-mnist-original"]
    path.write_text(path.read_text().replace("0.1", "0.2"))
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))
    assert not torch.equal(load("rot-mnist", folder).test_x, data.test_x)


def test_one_original_file_without_the_other_is_an_error(folder: Path) -> None:
    path = write_amat(folder / "rot-mnist", "test", amat_rows(TEST))
    other = path.with_name(path.name.replace("test", "train_valid"))
    with pytest.raises(FileNotFoundError, match=f"{other}, one of the two .*, is missing: put it there, or"):
        load("rot-mnist", folder)


def spoiled(column: int, value: float) -> np.ndarray:
    rows = amat_rows(TRAIN)
    rows[3, column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (amat_rows(TRAIN)[:, 1:], "40 rows of 784 numbers instead of 40 of 785"),
        (amat_rows(TRAIN)[1:], "39 rows of 785 numbers instead of 40"),
        (amat_rows(TRAIN)[:0], "0 rows"),
        (spoiled(-1, 10), "labels should be whole numbers from 0 to 9"),
        (spoiled(-1, 2.5), "labels should be whole numbers"),
        (spoiled(-1, math.nan), "labels should be whole numbers"),
        (spoiled(5, 255), "pixels should lie between 0 and 1"),
        (spoiled(5, -0.5), "pixels should lie between 0 and 1"),
        (spoiled(5, math.nan), "pixels should lie between 0 and 1"),
        ("1 2 3\n4 5\n", "number of columns changed"),
        ("1 two 3\n", "two"),
    ],
)
def test_a_damaged_original_is_refused(rows: np.ndarray | str, match: str, folder: Path) -> None:
    path = write_amat(folder, "train_valid", amat_rows(TRAIN) if isinstance(rows, str) else rows)
    if isinstance(rows, str):
        path.write_text(rows)
    write_amat(folder, "test", amat_rows(TEST))
    with pytest.raises(ValueError, match=f"{path} is damaged or not from Rot-MNIST .*{match}"):
        load("rot-mnist", folder)
    assert cache_files() == []


@real.needs("mnist")
def test_made_from_the_published_files_it_has_the_papers_sizes() -> None:
    data = load("rot-mnist", real.DATA)
    assert len(data.train_x) == len(data.train_y) == 12_000 and len(data.test_x) == len(data.test_y) == 50_000
    assert str(data).startswith("Dataset(rot-mnist, generated")
    ink = to_float(data.train_x).mean((0, 1))
    torch.testing.assert_close(ink, ink.rot90(), atol=0.02, rtol=0)  # no angle is preferred
