"""Picture files are found, read and scaled as they are; files that cannot be read are named."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.measuring.image_folder import evenly, find_images, image_batches

Image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")


def picture(path: Path, *shape: int) -> np.ndarray:
    """Save random pixels (H, W) or (H, W, 3) and return them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_pictures_in_subfolders_are_found_and_other_files_skipped(tmp_path) -> None:
    for name in ("b.png", "a.JPG", "inner/c.bmp", ".hidden.png"):
        picture(tmp_path / name, 4, 4)
    (tmp_path / "notes.txt").write_text("no image")
    found = find_images(str(tmp_path))
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.JPG", "b.png", "inner/c.bmp"]


@pytest.mark.parametrize(("shape", "channels"), [((4, 6), 1), ((4, 6, 3), 3)])
def test_pixels_are_read_as_they_are_in_the_file(tmp_path, shape, channels) -> None:
    expected = [picture(tmp_path / name, *shape).reshape(4, 6, channels) for name in ("a.png", "bb.png")]
    for batch, pixels in zip(image_batches(find_images(tmp_path), batch_size=1), expected, strict=True):
        assert batch.shape == (1, channels, 4, 6) and batch.dtype == torch.float32
        np.testing.assert_array_equal((batch[0] * 255).round().byte().permute(1, 2, 0), pixels)
    picture(tmp_path / "c.png", 4, 6, 3)  # three channels, unless all are grey
    (batch,) = image_batches(find_images(tmp_path))
    assert batch.shape == (3, 3, 4, 6) and torch.equal(batch[0, 0], batch[0, 2]) == (channels == 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_size_converts_and_scales_every_picture(tmp_path, channels) -> None:
    for k, shape in enumerate([(12, 12, 3), (9, 12), (6, 8, 3)]):
        picture(tmp_path / f"{k}.png", *shape)
    first, rest = image_batches(find_images(tmp_path), (channels, 6, 8), batch_size=2)
    assert first.shape == (2, channels, 6, 8) and rest.shape == (1, channels, 6, 8)
    assert 0 <= float(first.min()) < float(first.max()) <= 1


@pytest.mark.parametrize("shape", [(8, 20, 3), (20, 8, 3)])
def test_a_square_size_takes_the_middle_square_and_any_other_all_of_the_picture(tmp_path, shape) -> None:
    height, width, _ = shape
    pixels = picture(tmp_path / "a.png", *shape)
    top, left = (height - 8) // 2, (width - 8) // 2
    (square,) = image_batches(find_images(tmp_path), (3, 8, 8))
    middle = pixels[top : top + 8, left : left + 8]
    np.testing.assert_array_equal((square[0] * 255).round().byte().permute(1, 2, 0), middle)
    (whole,) = image_batches(find_images(tmp_path), (3, height, width))
    np.testing.assert_array_equal((whole[0] * 255).round().byte().permute(1, 2, 0), pixels)


def test_some_of_the_images_come_from_all_over_the_folder() -> None:
    items = list(range(1000))
    for count in (1, 3, 7, 400, 999, 1000, 2000):
        chosen = evenly(items, count)
        assert len(chosen) == min(count, 1000) and chosen == sorted(set(chosen))
        steps = {later - earlier for earlier, later in pairwise(chosen)}
        assert not steps or max(steps) - min(steps) <= 1
    assert evenly([], 3) == []


def test_a_picture_is_turned_upright_as_its_camera_noted(tmp_path) -> None:
    pixels = np.zeros((2, 4), dtype=np.uint8)
    pixels[0, 0] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # the top of the scene is on the right of the file
    image.save(tmp_path / "a.png", exif=exif)
    (batch,) = image_batches(find_images(tmp_path))
    assert batch.shape == (1, 1, 4, 2) and batch[0, 0].argmax() == 1  # top right


@pytest.mark.parametrize(
    ("content", "size", "match"),
    [
        (b"", None, r"a\.png cannot be read as an image .*convert, replace or remove it"),
        (b"no image", None, r"a\.png cannot be read as an image"),
        (np.uint16, None, r"a\.png cannot be read as an image \(its pixels have mode I;16, but 8 bits"),
        (np.uint8, None, r"one size: .*b\.png is 4×4, .*a\.png is 5×4; give a size .*such as 1x4x4"),
        (np.uint8, (2, 4, 4), "images have 1 or 3 channels; the size asks for 2"),
    ],
)
def test_bad_pictures_are_named_with_the_remedy(tmp_path, content, size, match) -> None:
    if isinstance(content, bytes):
        (tmp_path / "a.png").write_bytes(content)
    else:
        Image.fromarray(np.full((5, 4), 255, dtype=content)).save(tmp_path / "a.png")
    picture(tmp_path / "b.png", 4, 4)
    with pytest.raises(ValueError, match=match):
        list(image_batches(find_images(tmp_path), size))


def test_a_picture_that_unpacks_to_more_than_memory_holds_is_refused(tmp_path, monkeypatch) -> None:
    picture(tmp_path / "a.png", 30, 30)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"a\.png is refused \(.*900 pixels.*\): scale it down or remove it"):
        list(image_batches(find_images(tmp_path)))


def test_missing_folders_and_files_are_named(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere with images"):
        find_images(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no images: their names must end in \.png"):
        find_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the image gone\.png is missing"):
        list(image_batches([Path("gone.png")]))


def test_files_that_cannot_be_read_are_left_out_if_asked_and_named(tmp_path) -> None:
    picture(tmp_path / "b.png", 4, 4, 3)
    picture(tmp_path / "d.png", 4, 4, 3)
    for name in ("a.png", "c.jpg"):
        (tmp_path / name).write_bytes(b"not an image")
    paths = find_images(tmp_path)
    with pytest.raises(ValueError, match=r"a.png cannot be read as an image"):
        list(image_batches(paths))
    unreadable: list[Path] = []
    (batch,) = image_batches(paths, unreadable=unreadable)
    assert batch.shape == (2, 3, 4, 4) and [path.name for path in unreadable] == ["a.png", "c.jpg"]
    with pytest.raises(ValueError, match="none of the 2 files can be read as an image"):
        list(image_batches(unreadable, (3, 4, 4), unreadable=[]))
