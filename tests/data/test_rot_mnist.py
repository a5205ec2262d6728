"""Rot-MNIST: made from MNIST, or read from the original files."""

import math
import os

import numpy as np
import pytest
import torch

import ien.data
from ien.data import load, mnist, rot_mnist, to_float

from ..helpers import real
from ..helpers.resampling import resampled
from ..helpers.tiny import cache_files, source_numbers, tagged_digits

TRAIN, TEST = 40, 70


def test_parts_share_no_digit_and_keep_their_labels(mnist_folder) -> None:
    data = load("rot-mnist", mnist_folder, seed=7)
    assert str(data) == "Dataset(rot-mnist, generated: 40 train and 70 test images 1×28×28 uint8, 10 classes)"
    numbers = source_numbers(data)
    assert len(numbers.unique()) == TRAIN + TEST
    assert torch.equal(torch.cat([data.train_y, data.test_y]), mnist.mnist(mnist_folder)[1][numbers])
    assert (numbers[:TRAIN] >= 100).any() and (numbers[TRAIN:] < 100).any()  # both have both parts of MNIST


def test_digits_are_rotated_by_angles_from_the_whole_circle(mnist_folder, spied) -> None:
    drawn = spied(rot_mnist, "rotate")
    data = load("rot-mnist", mnist_folder)
    (_, degrees), _ = drawn[0]
    assert (torch.histc(degrees, 6, 0, 360) >= 8).all() and degrees.max() < 360  # 110 of them
    made, upright = torch.cat([data.train_x, data.test_x])[:, 0], tagged_digits(120, 0)[source_numbers(data)]
    for k in range(0, 110, 10):
        exact = resampled(upright[k], float(degrees[k]))
        assert np.abs(made[k].numpy() - exact).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("max_angle", [90, 30, 0])
def test_the_ladder_has_the_same_digits_within_a_smaller_angle(max_angle, mnist_folder, spied) -> None:
    drawn = spied(rot_mnist, "rotate")
    data = load("rot-mnist", mnist_folder, 7, max_angle=max_angle)
    (_, degrees), _ = drawn[0]
    assert degrees.abs().max() <= max_angle
    assert max_angle == 0 or (torch.histc(degrees, 4, -max_angle, max_angle) >= 10).all()  # 110 of them
    full = load("rot-mnist", mnist_folder, 7)
    assert torch.equal(source_numbers(data), source_numbers(full)) and len(cache_files()) == 2
    assert data.source == "generated" and data.name == {90: "rot-mnist ±90°", 30: "rot-mnist ±30°"}.get(
        max_angle, "rot-mnist upright"
    )
    if max_angle == 0:
        upright = tagged_digits(120, 0)[source_numbers(data)]
        assert np.array_equal(torch.cat([data.train_x, data.test_x])[:, 0].numpy(), upright)


def test_the_originals_have_all_angles_and_are_not_read_for_fewer(mnist_folder) -> None:
    for part, count in (("train_valid", TRAIN), ("test", TEST)):
        write_amat(mnist_folder, part, amat_rows(count))
    assert load("rot-mnist", mnist_folder).source == "original"
    assert load("rot-mnist", mnist_folder, max_angle=60).source == "generated"


def test_the_embedded_digits_are_rotated_no_further_than_asked() -> None:
    upright, rotated = (load("rot-mnist", "embedded", 3, max_angle=angle) for angle in (0, 180))
    x, _ = ien.data.embedded_digits(3)
    found = {image.tobytes() for image in upright.train_x.numpy()}
    assert found <= {image.tobytes() for image in (255 * x).round().to(torch.uint8).numpy()}
    assert torch.equal(upright.train_y, rotated.train_y) and not torch.equal(upright.train_x, rotated.train_x)


def test_the_result_does_not_depend_on_the_size_of_the_chunks() -> None:
    images = torch.randint(256, (1500, 1, 8, 8), dtype=torch.uint8)
    made = rot_mnist.generate(images, torch.arange(1500), 0, 1000, 500)
    assert sorted(torch.cat([made["train_y"], made["test_y"]]).tolist()) == list(range(1500))
    longer = rot_mnist.generate(images, torch.arange(1500), 0, 1200, 300)
    assert torch.equal(longer["train_x"][:1000], made["train_x"])
    with pytest.raises(ValueError, match=r"1000 \+ 501 different digits cannot be drawn from 1500"):
        rot_mnist.generate(images, torch.arange(1500), 0, 1000, 501)


# the original files


def amat_rows(count, spoiled=None) -> np.ndarray:
    pixels = np.random.default_rng(count).random((count, 784)).astype(np.float32)
    rows = np.concatenate([pixels, np.arange(count)[:, None] % 10], axis=1)
    if spoiled:
        column, value = spoiled
        rows[3, column] = value
    return rows


def write_amat(place, part, rows):
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"mnist_all_rotation_normalized_float_{part}.amat"
    path.write_text("\n".join("   " + "   ".join(f"{v:.9g}" for v in row) + " " for row in rows) + "\n")
    return path


@pytest.mark.parametrize("where", ["rot-mnist", "mnist_rotation_new", "."])
def test_original_files_are_preferred_and_read_as_written(where, mnist_folder) -> None:
    train, test = amat_rows(TRAIN), amat_rows(TEST)
    write_amat(mnist_folder / where, "train_valid", train)
    path = write_amat(mnist_folder / where, "test", test)
    for seed in range(2):  # from the files, then from the cache
        data = load("rot-mnist", mnist_folder, seed)
        assert data.source == "original" and data.train_x.dtype == torch.float32
        for x, y, rows in ((data.train_x, data.train_y, train), (data.test_x, data.test_y, test)):
            assert np.array_equal(x.numpy(), rows[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32))
            assert y.tolist() == rows[:, -1].tolist() and y.dtype == torch.int64
    assert len(cache_files()) == 1
    path.write_text(path.read_text().replace("0.1", "0.2"))
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))
    assert not torch.equal(load("rot-mnist", mnist_folder).test_x, data.test_x)


def test_one_original_file_without_the_other_is_an_error(mnist_folder) -> None:
    path = write_amat(mnist_folder / "rot-mnist", "test", amat_rows(TEST))
    other = path.with_name(path.name.replace("test", "train_valid"))
    with pytest.raises(FileNotFoundError, match=f"{other}, one of the two .*, is missing: put it there, or"):
        load("rot-mnist", mnist_folder)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (amat_rows(TRAIN)[:, 1:], "40 rows of 784 numbers instead of 40 of 785"),
        (amat_rows(TRAIN)[1:], "39 rows of 785 numbers instead of 40"),
        (amat_rows(TRAIN)[:0], "0 rows"),
        (amat_rows(TRAIN, (-1, 10)), "labels should be whole numbers from 0 to 9"),
        (amat_rows(TRAIN, (-1, 2.5)), "labels should be whole numbers"),
        (amat_rows(TRAIN, (-1, math.nan)), "labels should be whole numbers"),
        (amat_rows(TRAIN, (5, 255)), "pixels should lie between 0 and 1"),
        (amat_rows(TRAIN, (5, -0.5)), "pixels should lie between 0 and 1"),
        (amat_rows(TRAIN, (5, math.nan)), "pixels should lie between 0 and 1"),
        ("1 2 3\n4 5\n", "number of columns changed"),
        ("1 two 3\n", "two"),
    ],
)
def test_a_damaged_original_is_refused(rows, match, mnist_folder) -> None:
    write_amat(mnist_folder, "test", amat_rows(TEST))
    if isinstance(rows, str):
        path = write_amat(mnist_folder, "train_valid", [])
        path.write_text(rows)
    else:
        path = write_amat(mnist_folder, "train_valid", rows)
    with pytest.raises(ValueError, match=f"{path} is damaged or not from Rot-MNIST .*{match}"):
        load("rot-mnist", mnist_folder)
    assert cache_files() == []


@real.needs("mnist")
def test_made_from_the_published_files_it_has_the_papers_sizes() -> None:
    data = load("rot-mnist", real.DATA)
    assert len(data.train_x) == len(data.train_y) == 12_000 and len(data.test_x) == len(data.test_y) == 50_000
    ink = to_float(data.train_x).mean((0, 1))
    torch.testing.assert_close(ink, ink.rot90(), atol=0.02, rtol=0)  # no angle is preferred
