"""``ien data get`` and ``ien data list`` for data sets of images, against a server on the loopback device."""

import os
import re
import shutil
from pathlib import Path

import pytest

from ien._files import file_digest
from ien.cli.data_sets import DOWNLOADS
from ien.data import load, mnist, stl10, tiny_imagenet
from ien.data.download import RemoteFile
from tests.helpers.mirror import serving
from tests.helpers.shell import error_of, invoke
from tests.helpers.tiny import COUNTS, make_class_folders, make_mnist, make_stl10, make_tiny_imagenet, tree

pytest.importorskip("PIL", reason="images are written with pillow: pip install 'ien[plots]'")
pytestmark = pytest.mark.usefixtures("elsewhere")

PUBLISHED = {
    "tiny-imagenet": (tiny_imagenet, "4 of 4 classes, 24 train and 12 val images"),
    "stl10": (stl10, "7 train and 5 test images"),
}


@pytest.fixture(autouse=True)
def own_cache_and_network(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


def make_archive(name):
    """A small data set in the folder packed, and its archive beside."""
    if name == "stl10":
        make_stl10(Path("packed"))
        return shutil.make_archive("stl10_binary", "gztar", "packed", "stl10_binary")
    place = make_tiny_imagenet(Path("packed"))
    return shutil.make_archive("tiny-imagenet-200", "zip", "packed", place.name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_archive_is_downloaded_and_unpacked_once(name, monkeypatch) -> None:
    module, found = PUBLISHED[name]
    archive = Path(make_archive(name))
    place = Path("target") / module.FOLDER
    sizes = {"CLASSES": 4, "TRAIN": 6, "VAL": 3} if name == "tiny-imagenet" else {"TRAIN": 7, "TEST": 5}
    for constant, value in sizes.items():
        monkeypatch.setattr(module, constant, value)
    with serving(archive.read_bytes()) as mirror:
        file, asked = mirror.file("good", name=archive.name), mirror.asked
        monkeypatch.setitem(DOWNLOADS, name, (file,))
        monkeypatch.setattr(module, "ARCHIVE", file)
        get = ("data", "get", name, "--data", "target")
        last = f"{name}: {found} in {place}"
        assert invoke(*get).stdout.splitlines()[-1] == last
        assert tree(place) == tree(Path("packed") / module.FOLDER)
        assert sorted(os.listdir("target")) == sorted([module.FOLDER, archive.name])
        assert invoke(*get).stdout == last + "\n" and len(asked) == 1
        place.rename("gone")
        assert invoke(*get).stdout.splitlines()[-1] == last and len(asked) == 1
        place.rename("gone too")
        (Path("target") / archive.name).write_bytes(b"another file")
        assert "is not the published file" in error_of(*get) and len(asked) == 1
        monkeypatch.setattr(module, "TRAIN", 500)
        before = tree(Path("packed"))
        assert f"{module.FOLDER} is only a part of" in error_of("data", "get", name, "--data", "packed")
        assert tree(Path("packed")) == before and len(asked) == 1


def test_files_are_downloaded_and_listed(monkeypatch) -> None:
    with serving(bytes(600_000)) as mirror:
        monkeypatch.setitem(DOWNLOADS, "mnist", (mirror.file("good", name="a.gz"),))
        get = ("data", "get", "mnist", "--data", "data")
        last = f"mnist: 1 files in {Path('data/mnist')}, 0.6 MB, checked"
        assert invoke(*get).stdout.splitlines()[-1] == last
        assert os.listdir("data/mnist") == ["a.gz"]
        assert invoke(*get).stdout.splitlines()[-1] == last and len(mirror.asked) == 1
        monkeypatch.setitem(DOWNLOADS, "mnist", (mirror.file("missing", name="b.gz"),))
        error = error_of(*get)
    assert error.startswith("error: cannot download b.gz") and "put into data/mnist: b.gz (600,000" in error
    assert "did you mean mnist" in error_of("data", "get", "mnits")
    assert "come with the installation" in error_of("data", "get", "mnist", "--data", "embedded")


def listed(folder):
    return " ".join(invoke("data", "list", "--data", folder, columns=400).stdout.split())


def test_an_empty_folder_lists_what_is_missing_and_how_to_get_it() -> None:
    text = listed("none")
    assert "none (does not exist)" in text and "0 of 4 files" in text
    assert "train-images-idx3-ubyte.gz 9.9 MB, missing" in text and "ien data get mnist" in text
    assert "scale-mnist generated needs mnist rot-scale-mnist generated needs mnist" in text
    assert "ien data get tiny-imagenet" in text and "tiny-imagenet-200.zip 248.1 MB, missing" in text
    assert "rot-tim generated needs tiny-imagenet" in text
    assert "eurosat pictures by class missing: no eurosat: there is no folder none/eurosat" in text
    assert "ien data get stl10" in text and "stl10_binary.tar.gz 2640.4 MB, missing" in text


def test_digits_are_listed_with_what_is_made_of_them(monkeypatch) -> None:
    place = make_mnist(Path("data"), COUNTS)
    assert "damaged" in listed("data")  # whole, and not as published
    published = []
    for file in mnist.FILES:
        path = place / file.name
        published.append(RemoteFile(file.name, path.stat().st_size, file_digest(path), ()))
    monkeypatch.setattr(mnist, "FILES", tuple(published))
    monkeypatch.setattr(mnist, "DIGITS", COUNTS)
    monkeypatch.setattr("ien.data.rot_mnist.TRAIN", 40)
    monkeypatch.setattr("ien.data.rot_mnist.TEST", 70)
    text = listed("data")
    assert "4 of 4 files" in text and "generated made from mnist" in text
    assert " scale-mnist generated made from mnist rot-scale-mnist generated made from mnist" in text
    load("rot-mnist", "data", seed=3)
    assert "generated-seed3" in listed("data")
    labels = place / "t10k-labels-idx1-ubyte.gz"
    labels.rename(f"{labels}.part")
    text = listed("data")
    assert "3 of 4 files" in text and re.search(r"missing, 0\.\d kB downloaded", text)
    Path("data/mnist_all_rotation_normalized_float_test.amat").write_text("")
    assert "original incomplete:" in listed("data")


def test_images_are_listed_with_what_is_made_of_them() -> None:
    place = make_tiny_imagenet(Path("data"))
    make_stl10(Path("data"))
    load("r2-tim", "data", seed=3, classes=3, image_size=9)
    load("stl10", "data", image_size=24)
    make_class_folders(Path("data/eurosat"))
    load("eurosat", "data", seed=2, image_size=9)
    load("tiny-imagenet", "data", seed=4, classes=2, image_size=9)
    text = listed("data")
    assert "tiny-imagenet 248.1 MB 4 of 200 classes, 24 train and 12 val images in" in text
    assert "rot-tim generated made from tiny-imagenet r2-tim generated made from tiny-imagenet cached" in text
    assert "cached seed3-3classes-9px," in text
    assert "stl10 2640.4 MB 7 train and 5 test images (published: 5,000 and 8,000) in" in text
    assert "cached 24px, " in text and "cached seed4-2classes-9px" in text
    assert "eurosat pictures by class 4 classes, 20 train and 12 test images in" in text
    assert "cached seed2-9px, " in text
    (place / "val/val_annotations.txt").write_text("val_9")
    Path("data/stl10_binary/train_X.bin").write_bytes(b"short")
    text = listed("data")
    assert "is damaged: line 1" in text and "train_X.bin is damaged" in text
