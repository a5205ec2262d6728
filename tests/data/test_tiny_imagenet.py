"""Tiny ImageNet from its folder, and what is said of a folder that is incomplete or damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data import load
from ien.data.tiny_imagenet import ARCHIVE, find, read_images

from ..helpers.tiny import cache_files, make_tiny_imagenet

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")

CLASSES, TRAIN, VAL = 4, 6, 3


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_tiny_imagenet(tmp_path / "data", CLASSES, TRAIN, VAL)


def test_classes_are_those_listed_that_have_images(place: Path) -> None:
    (place / "train" / "n00000001" / "images").mkdir(parents=True)  # listed, and empty
    (place / "train" / "n77777777" / "images").mkdir(parents=True)  # not listed
    found = find(place.parent)
    names = [f"n{1000 + 37 * k:08d}" for k in range(CLASSES)]
    assert list(found.train) == list(found.val) == names and found.folder == place
    for name in names:
        images = place / "train" / name / "images"
        assert list(found.train[name]) == [images / f"{name}_{i}.JPEG" for i in range(TRAIN)]
    lines = (place / "val/val_annotations.txt").read_text().splitlines()
    annotated = dict(line.split("\t")[:2] for line in lines)
    assert {file.name: name for name, files in found.val.items() for file in files} == annotated
    assert str(found) == "4 of 200 classes, 24 train and 12 val images" and not found.whole
    assert find(place) == found  # the folder itself will do


def test_images_are_those_of_pillow_and_grey_ones_get_three_channels(place: Path) -> None:
    files = [file for some in find(place).train.values() for file in some]
    x = read_images(files)
    assert x.shape == (len(files), 3, 64, 64) and x.dtype == torch.uint8
    greys = 0
    for image, path in zip(x, files, strict=True):
        with Image.open(path) as file:
            assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(file.convert("RGB")))
            assert (file.mode == "L") == bool((image == image[0]).all())
            greys += file.mode == "L"
    assert greys == 1


@pytest.mark.parametrize("name", ["wnids.txt", "train", "val/images", "val/val_annotations.txt"])
def test_a_missing_part_is_named(name: str, place: Path) -> None:
    (place / name).rename(place.parent / "elsewhere")
    match = f"{place} is incomplete, without {name}.*ien data get .* after moving it away"
    with pytest.raises(FileNotFoundError, match=match) as caught:
        load("rot-tim", place.parent, classes=CLASSES)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"`ien data get tiny-imagenet --data {tmp_path}`, or put"):
        load("r2-tim", tmp_path)


def removed(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda place: (place / name).write_text(text)


def appended(text: str) -> Callable[[Path], None]:
    def append(place: Path) -> None:
        with (place / "val/val_annotations.txt").open("a") as file:
            file.write(text)

    return append


def without_a_line(place: Path) -> None:
    path = place / "val/val_annotations.txt"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.startswith("val_4.")))


def without_any_val_image(place: Path) -> None:
    for path in (place / "val/images").iterdir():
        path.unlink()
    (place / "val/val_annotations.txt").write_text("")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (removed("val/images/val_4.JPEG"), r"names val_4\.JPEG, but there is no .*val/images/val_4\.JPEG"),
        (removed("train/n00001037/images/n00001037_2.JPEG"), "n00001037 has 5 train images, others have 6"),
        (without_a_line, r"does not name 1 of the 12 files in val/images, such as val_4\.JPEG"),
        (appended("val_9"), r"txt is damaged: line 13 is not a file, a tab and a class"),
        (appended("val_3.JPEG\tn00001000\n"), r"line 13 names val_3\.JPEG twice"),
        (written("wnids.txt", "n5\n"), r"none of the 1 classes in wnids\.txt has images"),
        (
            lambda place: (place / "wnids.txt").write_bytes(b"\xff\xfe"),
            r"wnids\.txt is damaged .*: replace it",
        ),
        (without_any_val_image, r"class n00001000 has 0 val images"),
    ],
)
def test_a_damaged_folder_is_told(damage: Callable[[Path], object], match: str, place: Path) -> None:
    damage(place)
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        find(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:700]), "cannot be read as an image .*truncated"),
        (lambda path: path.write_bytes(b""), "cannot be read as an image"),
        (lambda path: Image.new("RGB", (32, 48)).save(path), "has 32×48 pixels, but images .* have 64×64"),
    ],
    ids=["truncated", "empty", "size"],
)
def test_a_damaged_image_is_named(damage: Callable[[Path], object], match: str, place: Path) -> None:
    path = place / "train/n00001037/images/n00001037_2.JPEG"
    damage(path)
    with pytest.raises(ValueError, match=f"{path} {match}"):
        load("rot-tim", place, classes=CLASSES)
    assert cache_files() == []


def test_without_pillow_the_extra_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs pillow: pip install "ien\[plots\]"'):
        load("rot-tim", place, classes=CLASSES)


def test_the_archive_has_the_published_name_and_digest() -> None:
    assert ARCHIVE.size == 248_100_043 and ARCHIVE.md5 == "90528d7ca1a48142e341f4ef8d21d0de"
    assert all(url.endswith("//cs231n.stanford.edu/tiny-imagenet-200.zip") for url in ARCHIVE.urls)
