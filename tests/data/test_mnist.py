"""MNIST from its idx files, and what is said of files that are damaged, missing or from elsewhere."""

import gzip
import hashlib
import os

import numpy as np
import pytest
import torch

from ien._files import file_digest
from ien.data import load, mnist

from ..helpers import real
from ..helpers.tiny import COUNTS, cache_files, idx, tagged_digits, write_gz


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_idx_is_read_as_written(name, tmp_path) -> None:
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    read = mnist.read_idx(tmp_path / name, (2, 1, 3))
    assert read.dtype == torch.uint8 and read.tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


GOOD = idx(np.arange(6).reshape(3, 2))
DAMAGES = {
    "labels": (gzip.compress(idx(np.arange(6))), "starts with 0x00000801 instead of 0x00000802"),
    "no idx": (gzip.compress(b"PNG" + GOOD), "starts with 0x504e4700"),
    "nothing inside": (gzip.compress(b""), "starts with 0x00000000"),
    "count": (gzip.compress(idx(np.arange(8).reshape(4, 2))), "header says 4×2 values instead of 3×2"),
    "header": (gzip.compress(GOOD[:10]), "header says 3×0 values"),
    "truncated": (gzip.compress(GOOD[:-1]), "fewer values than its header says"),
    "trailing": (gzip.compress(GOOD + b"x"), "more values than its header says"),
    "gzip cut": (gzip.compress(GOOD)[:-9], "ended before"),
    "crc": (gzip.compress(GOOD)[:-8] + bytes(8), "CRC check failed"),
    "stream": (gzip.compress(GOOD)[:12] + b"\xff\xff\xff", "damaged or not from MNIST"),
    "tail": (gzip.compress(GOOD) + b"tail", "Not a gzipped file"),
    "no gzip": (GOOD, "Not a gzipped file"),
    "empty": (b"", "starts with 0x00000000"),
}


@pytest.mark.parametrize(("content", "match"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_idx_names_file_and_remedy(content, match, tmp_path) -> None:
    (tmp_path / "some.gz").write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        mnist.read_idx(tmp_path / "some.gz", (3, 2))
    assert str(tmp_path / "some.gz") in str(caught.value)
    assert "delete it and run `ien data get mnist`, or replace it" in str(caught.value)


@pytest.mark.parametrize("inside", ["mnist", "."])
def test_training_images_come_first_and_a_missing_file_is_named(inside, mnist_folder) -> None:
    place = mnist_folder / "mnist"
    folder = mnist_folder if inside == "mnist" else place
    x, y = mnist.mnist(folder)
    assert x.shape == (120, 1, 28, 28) and x.dtype == torch.uint8 and y.dtype == torch.int64
    assert x[:, 0, 13, 13].tolist() == list(range(1, 121))
    labels = [np.repeat(np.arange(10), counts) for counts in COUNTS.values()]
    assert y.tolist() == np.concatenate(labels).tolist()
    (place / "t10k-labels-idx1-ubyte.gz").unlink()
    missing = r"incomplete, without t10k-labels-idx1-ubyte\.gz\."
    with pytest.raises(FileNotFoundError, match=f"{missing} .*put t10k-labels.*gz into {place}, or"):
        mnist.mnist(folder)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([10] + [0] * 99, "holds the label 10, but digits only go up to 9"),
        (list(range(10)) * 10, "belongs to another data set"),
    ],
)
def test_labels_that_are_not_those_of_mnist_are_refused(labels, match, mnist_folder) -> None:
    write_gz(mnist_folder / "mnist" / "train-labels-idx1-ubyte.gz", idx(np.array(labels)))
    with pytest.raises(ValueError, match=rf"train-labels-idx1-ubyte\.gz .*{match}"):
        mnist.mnist(mnist_folder)


@pytest.mark.parametrize(
    ("name", "folder", "found"),
    [
        ("rot-mnist", "none", "the folder does not exist"),
        ("scale-mnist", "empty", "it is empty"),
        ("rot-scale-mnist", "other", "it holds a, b, c, d, e, f, …"),
        ("rot-mnist", "file", "this is not a folder"),
    ],
)
def test_missing_files_are_named_with_all_remedies(name, folder, found, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for other in "abcdefgh":
        (tmp_path / "other" / other).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f"no MNIST in .*{folder}: {found}") as caught:
        load(name, tmp_path / folder)
    message = str(caught.value)
    assert f"`ien data get mnist --data {tmp_path / folder}`" in message and "--data embedded" in message
    assert f"into {tmp_path / folder / 'mnist'}" in message and "\n" not in message
    assert all(file.name in message for file in mnist.FILES)


@pytest.mark.parametrize("name", ["rot-mnist", "scale-mnist"])
def test_a_changed_source_is_not_served_from_the_cache(name, mnist_folder) -> None:
    before = load(name, mnist_folder)
    path = mnist_folder / "mnist" / "train-images-idx3-ubyte.gz"
    stamp = path.stat()
    write_gz(path, idx(255 - tagged_digits(100, 0)))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the content counts, not the date
    assert not torch.equal(before.train_x, load(name, mnist_folder).train_x) and len(cache_files()) == 2


@real.needs("mnist")
def test_the_published_files_are_what_the_table_says() -> None:
    for file in mnist.FILES:
        path = real.DATA / "mnist" / file.name
        assert (path.stat().st_size, file_digest(path)) == (file.size, file.sha256)
    # as they have always been published
    published = "f68b3c2dcbeaaa9fbdd348bbdeb94873"
    first = real.DATA / "mnist" / mnist.FILES[0].name
    assert hashlib.md5(first.read_bytes(), usedforsecurity=False).hexdigest() == published
    x, y = mnist.mnist(real.DATA)
    assert x.shape == (70_000, 1, 28, 28) and int(x.max()) == 255
    assert y[:5].tolist() == [5, 0, 4, 1, 9] and y[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
