"""Folders of images and masks: what is read, split and scaled, and what is said of bad ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data.mask_folders import IGNORED, find, has_masks, mask_folders

from ..helpers.tiny import cache_files, make_class_folders, make_mask_folders

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")


def write(path: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("values", [(0, 255), (7, 3)])
def test_masks_stay_with_their_images_and_their_values_become_classes(values, tmp_path) -> None:
    made = make_mask_folders(tmp_path / "mine", values=values)
    data = mask_folders(tmp_path / "mine", image_size=16)
    assert str(data) == "Dataset(mine, folder: 8 train and 4 test images 1×16×16 uint8, 2 classes)"
    expected = {}
    for path, (pixels, mask) in made.items():
        expected[pixels.tobytes()] = path.parts[-3], (mask == max(values)).astype(np.uint8).tobytes()
    for part, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        for image, mask in zip(x, y, strict=True):
            assert expected[image.numpy().tobytes()] == (part, mask.numpy().tobytes())


def test_other_shapes_are_cropped_and_masks_take_the_nearest_pixel(tmp_path) -> None:
    make_mask_folders(tmp_path / "mine")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 30), dtype=np.uint8)
    mask = (rng.random((24, 30)) < 0.5).astype(np.uint8) * 255
    write(tmp_path / "mine/test/images/0.png", pixels)
    write(tmp_path / "mine/test/masks/0.png", mask)
    data = mask_folders(tmp_path / "mine", image_size=8)
    middle = (mask[:, 3:27] > 0).astype(np.uint8)
    expected = middle[1::3, 1::3]  # 24 pixels to 8: the middle one of each three
    assert any(np.array_equal(found.numpy(), expected) for found in data.test_y)


def test_a_value_that_is_ignored_is_no_class(tmp_path) -> None:
    make_mask_folders(tmp_path / "mine")
    mask = np.full((16, 16), 100, np.uint8)
    mask[:4], mask[4:8] = 0, 255
    write(tmp_path / "mine/train/masks/3.png", mask)
    assert mask_folders(tmp_path / "mine", image_size=16).classes == 3
    data = mask_folders(tmp_path / "mine", image_size=16, ignore=100)
    assert data.classes == 2 and set(data.train_y.unique().tolist()) == {0, 1, IGNORED}
    assert int((data.train_y == IGNORED).sum()) == 8 * 16


@pytest.mark.parametrize("part", ["train", ""])
def test_without_a_test_folder_a_fifth_is_held_out_by_the_seed(part, tmp_path) -> None:
    make_mask_folders(tmp_path / "mine", {part: 10})
    first, again, other = (find(tmp_path / "mine", seed) for seed in (1, 1, 2))
    assert len(first.train) == 8 and len(first.test) == 2 and not set(first.train) & set(first.test)
    assert first == again and first != other


def test_class_folders_have_no_masks(tmp_path) -> None:
    make_class_folders(tmp_path / "classes")
    make_mask_folders(tmp_path / "masks")
    assert not has_masks(tmp_path / "classes") and has_masks(tmp_path / "masks")


def test_masks_of_a_palette_keep_their_numbers(tmp_path) -> None:
    made = make_mask_folders(tmp_path / "mine", values=(0, 1))
    for path, (_, mask) in made.items():
        picture = Image.fromarray(mask, mode=None).convert("P")
        picture.putdata(mask.flatten().tolist())
        picture.save(path.parents[1] / "masks" / path.name)
    data = mask_folders(tmp_path / "mine", image_size=16)
    assert data.classes == 2 and set(torch.unique(data.train_y).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            lambda place: write(place / "test/masks/0.png", np.zeros((8, 16), np.uint8)),
            r"test/masks/0\.png is 8×16 and its image .*0\.png 16×16: a mask has the size of its image",
        ),
        (
            lambda place: write(place / "test/masks/1.png", np.full((16, 16), 9, np.uint8)),
            r"1\.png has the value 9, which no training mask has \(they have 0, 255\): repair it, or say",
        ),
        (
            lambda place: (place / "train/masks/2.png").unlink(),
            r"images/2\.png has no mask: add .*masks/2\.png",
        ),
        (lambda place: (place / "train/images/2.png").unlink(), r"masks/2\.png has no image: add"),
        (
            lambda place: write(place / "train/masks/2.png", np.zeros((16, 16, 3), np.uint8)),
            r"2\.png cannot be read as an image \(a mask has one value for each pixel, and .* mode RGB\)",
        ),
        (
            lambda place: (place / "train/masks/2.png").write_bytes(b"no"),
            r"2\.png cannot be read as an image",
        ),
        (
            lambda place: write(place / "train/masks/2.png", np.arange(256, dtype=np.uint8).reshape(16, 16)),
            r"more than 64 classes: save masks as PNG",
        ),
        (
            lambda place: [
                write(path, np.zeros((16, 16), np.uint8)) for path in (place / "train/masks").iterdir()
            ],
            r"train/masks have one value, 0, and two classes are the fewest",
        ),
        (
            lambda place: write(place / "train/images/2.jpg", np.zeros((16, 16), np.uint8)),
            r"2\.jpg and .*2\.png have the same name",
        ),
    ],
    ids=["size", "value", "no mask", "no image", "colours", "damaged", "jpeg", "one class", "twice"],
)
def test_what_cannot_be_loaded_is_named_in_one_line(spoil, match, tmp_path) -> None:
    make_mask_folders(tmp_path / "mine")
    spoil(tmp_path / "mine")
    before = cache_files()
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        mask_folders(tmp_path / "mine", image_size=16)
    assert "\n" not in str(caught.value) and cache_files() == before
