"""Tiny ImageNet from its folder, and what is said of a folder that is incomplete or damaged."""

import sys

import numpy as np
import pytest
import torch

from ien.data import load
from ien.data.tiny_imagenet import find, read_images

from ..helpers.tiny import cache_files, make_tiny_imagenet

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")

CLASSES, TRAIN = 4, 6


@pytest.fixture
def place(tmp_path):
    return make_tiny_imagenet(tmp_path / "data", CLASSES, TRAIN, 3)


def test_classes_are_those_listed_that_have_images(place) -> None:
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


def test_images_are_those_of_pillow_and_grey_ones_get_three_channels(place) -> None:
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


IMAGE, ANNOTATIONS = "train/n00001037/images/n00001037_2.JPEG", "val/val_annotations.txt"
VAL_4 = b"val_4.JPEG\tn00001000\t0\t0\t62\t62\n"


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("wnids.txt", None, r"incomplete, without wnids\.txt\. Run `ien data get .* after moving it away"),
        ("train", None, r"incomplete, without train\. Run `ien data get"),
        ("val/images", None, r"incomplete, without val/images\. Run `ien data get"),
        (ANNOTATIONS, None, r"incomplete, without val/val_annotations\.txt\. Run `ien data get"),
        ("val/images/val_4.JPEG", None, r"names val_4\.JPEG, but there is no .*val/images/val_4\.JPEG"),
        (IMAGE, None, "class n00001037 has 5 train images, others have 6"),
        (ANNOTATIONS, lambda text: text.replace(VAL_4, b""), r"name 1 of the 12 files .* as val_4\.JPEG"),
        (ANNOTATIONS, lambda text: text + b"val_9", "damaged: line 13 is not a file, a tab and a class"),
        (ANNOTATIONS, lambda text: text + VAL_4, r"line 13 names val_4\.JPEG twice"),
        (ANNOTATIONS, lambda text: text.replace(b"\tn0", b"\tn5"), "class n00001000 has 0 val images"),
        ("wnids.txt", lambda text: b"n5\n", r"none of the 1 classes in wnids\.txt has images"),
        ("wnids.txt", lambda text: b"\xff\xfe", r"wnids\.txt is damaged .*: replace it"),
    ],
)
def test_a_damaged_folder_is_told(name, change, match, place) -> None:
    if change is None:
        (place / name).rename(place.parent / "elsewhere")
    else:
        (place / name).write_bytes(change((place / name).read_bytes()))
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        find(place)
    assert str(place) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:700]), "cannot be read as an image .*truncated"),
        (lambda path: path.write_bytes(b""), "cannot be read as an image"),
        (lambda path: Image.new("RGB", (32, 48)).save(path), "has 32×48 pixels, but images .* have 64×64"),
    ],
    ids=["truncated", "empty", "size"],
)
def test_a_damaged_image_is_named(damage, match, place) -> None:
    path = place / IMAGE
    damage(path)
    with pytest.raises(ValueError, match=f"{path} {match}"):
        load("rot-tim", place, classes=CLASSES)
    assert cache_files() == []


def test_an_image_that_unpacks_to_gigabytes_is_refused(place, monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"is refused \(.*4096 pixels.*\): scale it down or remove it"):
        load("rot-tim", place, classes=CLASSES)


def test_without_pillow_the_extra_is_named(place, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pillow: pip install"):
        load("rot-tim", place, classes=CLASSES)
