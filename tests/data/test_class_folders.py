"""Folders of pictures by class: what is read, split and scaled, and what is said of bad ones."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data import class_folders, load
from ien.data.class_folders import NAMED, find

from ..helpers import real
from ..helpers.tiny import cache_files, differing, make_class_folders

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")


def loaded(folder: Path, size: int = 12, seed: int = 0):
    return class_folders.class_folders(folder, seed, size)


def test_pictures_and_labels_are_those_of_the_files_in_mixed_order(tmp_path) -> None:
    made = make_class_folders(tmp_path / "mine")
    (tmp_path / "mine/train/class 0/notes.txt").write_text("no picture")
    (tmp_path / "mine/train/README.md").write_text("no class")
    (tmp_path / "mine/train/.thumbnails").mkdir()
    data = loaded(tmp_path / "mine")
    assert str(data) == "Dataset(mine, folder: 20 train and 12 test images 3×12×12 uint8, 4 classes)"
    for part, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        expected = {}
        for path, pixels in made.items():
            if path.parent.parent.name == part:
                expected[pixels.transpose(2, 0, 1).tobytes()] = int(path.parent.name[-1])
        found = [image.contiguous().numpy().tobytes() for image in x]
        assert sorted(found) == sorted(expected)
        assert y.tolist() == [expected[image] for image in found]
        assert y.tolist() != sorted(y.tolist())


def test_other_shapes_are_cropped_to_the_middle_and_scaled_by_area(tmp_path) -> None:
    made = make_class_folders(tmp_path / "mine", shape=(12, 17, 3))
    data = loaded(tmp_path / "mine", 8)
    expected = set()
    for pixels in made.values():
        square = pixels[:, 2:14].astype(float)  # (17 - 12) // 2 columns from the left
        fine = square.repeat(2, 0).repeat(2, 1).reshape(8, 3, 8, 3, 3)  # 12 pixels to 8: 24 is both
        expected.add(fine.mean((1, 3)).round().astype(np.uint8).transpose(2, 0, 1).tobytes())
    assert {
        image.contiguous().numpy().tobytes() for image in torch.cat([data.train_x, data.test_x])
    } == expected


def test_grey_pictures_have_one_channel_unless_one_has_colour(tmp_path) -> None:
    make_class_folders(tmp_path / "mine", shape=(9, 9))
    assert loaded(tmp_path / "mine", 9).train_x.shape == (20, 1, 9, 9)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "mine/test/class 1/new.png")
    data = loaded(tmp_path / "mine", 9)
    assert data.train_x.shape == (20, 3, 9, 9) and torch.equal(data.train_x[:, 0], data.train_x[:, 2])


@pytest.mark.parametrize("part", ["train", ""])
def test_without_a_test_folder_a_fifth_of_each_class_is_held_out(part, tmp_path) -> None:
    make_class_folders(tmp_path / "mine", counts={part: 10})
    splits = [find(tmp_path / "mine", seed) for seed in (1, 1, 2)]
    for split in splits:
        assert len(split.train) == 32 and len(split.test) == 8
        assert not set(split.train) & set(split.test)
        assert sorted(label for _, label in split.test) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert splits[0] == splits[1] and set(splits[0].test) != set(splits[2].test)
    first, again, other = (loaded(tmp_path / "mine", 12, seed) for seed in (1, 1, 2))
    assert differing(first, again) == [] and len(differing(first, other)) == 4


def test_a_replaced_picture_is_read_again(tmp_path) -> None:
    made = make_class_folders(tmp_path / "mine")
    before = loaded(tmp_path / "mine")
    assert differing(before, loaded(tmp_path / "mine")) == [] and len(cache_files()) == 1
    path = next(iter(made))
    Image.fromarray(255 - made[path]).save(path)
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))
    assert differing(before, loaded(tmp_path / "mine")) == ["train_x"]


def truncated(place: Path) -> None:
    path = place / "train/class 1/photo.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-2000])


def emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            truncated,
            r"photo\.jpg cannot be read as an image \(.*truncated.*\): convert, replace or remove it",
        ),
        (
            lambda place: (place / "test/class 0/x.png").write_bytes(b"no"),
            r"x\.png cannot be read as an image",
        ),
        (
            lambda place: emptied(place / "train/class 2"),
            r"train/class 2 holds no images: their names must end",
        ),
        (
            lambda place: (place / "test/class 3").rename(place / "test/cat"),
            "test/cat is a class that train has",
        ),
        (lambda place: (place / "train").rename(place / "Train"), "has a folder test and no folder train"),
        (
            lambda place: place.rename(place.with_name("yours")),
            "there is no folder .*mine with a subfolder for",
        ),
    ],
    ids=["truncated", "no picture", "empty class", "unknown class", "no train", "no folder"],
)
def test_what_cannot_be_loaded_is_named_in_one_line(spoil, match, tmp_path) -> None:
    make_class_folders(tmp_path / "mine")
    spoil(tmp_path / "mine")
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        loaded(tmp_path / "mine")
    assert "\n" not in str(caught.value) and cache_files() == []


@pytest.mark.parametrize(
    ("classes", "count", "match"),
    [
        (1, 5, r"train has one class, class 0, but two are needed at least: put .*train/<class>/"),
        (0, 5, r"train has no class folders with pictures \(\.png, "),
        (3, 1, r"class class 0 has only .*0\.png, and there is no folder test: add pictures"),
    ],
)
def test_too_few_classes_or_pictures_are_told(classes, count, match, tmp_path) -> None:
    (tmp_path / "mine/train").mkdir(parents=True)
    make_class_folders(tmp_path / "mine", classes, {"train": count})
    with pytest.raises(ValueError, match=match):
        loaded(tmp_path / "mine")


def test_too_small_an_image_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="image_size must be at least 8; got 7"):
        loaded(tmp_path, 7)


@pytest.mark.parametrize("name", NAMED)
def test_named_data_sets_are_in_the_data_folder_or_are_it(name, tmp_path, monkeypatch) -> None:
    make_class_folders(tmp_path / name)
    data = load(name, tmp_path, image_size=12)
    assert (data.name, data.source) == (name, "subset")
    assert differing(data, load(name, tmp_path / name, image_size=12)) == [] and len(cache_files()) == 1
    monkeypatch.setitem(NAMED, name, 32)
    assert load(name, tmp_path, image_size=12).source == "original"


@pytest.mark.parametrize(("name", "channels", "classes"), [("eurosat", 3, 10), ("neu-steel", 1, 6)])
def test_real_pictures_are_read(name, channels, classes) -> None:
    if not (real.DATA / name).exists():
        pytest.skip(f"needs {name} in $IEN_DATA, or in shared/data beside the checkout")
    data = load(name, real.DATA, image_size=17)
    assert data.train_x.shape[1:] == (channels, 17, 17) and data.classes == classes
    assert len(data.train_y[:200].unique()) == classes  # mixed
    brightness = data.train_x.double().mean()
    assert 40 < brightness < 200
