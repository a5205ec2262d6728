"""Rot-TIM and R2-TIM, made from a small Tiny ImageNet, against Pillow and a loop over pixels."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ien.data import load, rot_tim
from ien.data.tiny_imagenet import find, read_images

from ..helpers import real
from ..helpers.tiny import cache_files, make_tiny_imagenet, same

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")

CLASSES, TRAIN, VAL = 4, 6, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_imagenet(tmp_path / "data", CLASSES, TRAIN, VAL)
    return tmp_path / "data"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def sources(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Colours in the middle (N, 3) and classes (N,) of the upright images."""
    found = getattr(find(folder), part)
    files = [(k, file) for k, name in enumerate(sorted(found)) for file in found[name]]
    colours = np.stack([pixels(file)[32, 32] for _, file in files])
    return torch.tensor(colours).double(), torch.tensor([k for k, _ in files])


def numbers(x: Tensor, colours: Tensor) -> list[int]:
    """Which of the upright images each one is: the middle does not change when it is rotated."""
    centre = x.shape[-1] // 2
    distance = torch.cdist(x[:, :, centre, centre].double(), colours)
    assert (distance.min(1).values < 4).all()
    return distance.argmin(1).tolist()


def plans(folder: Path, seed: int) -> dict[str, rot_tim._Plan]:
    source = find(folder)
    chosen = sorted(source.train)
    return {
        "train": rot_tim._plan(source.train, chosen, seed, "train", 1, False),
        "test": rot_tim._plan(source.val, chosen, seed, "test", 2, False),
    }


def disc(size: int) -> np.ndarray:
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    return np.hypot(x, y) <= (size - 1) / 2 + 1e-9


@pytest.mark.parametrize("name", ["rot-tim", "r2-tim"])
def test_training_images_come_once_and_validation_images_twice(name: str, folder: Path) -> None:
    data = load(name, folder, classes=CLASSES)
    assert str(data) == f"Dataset({name}, generated: 24 train and 24 test images 3×64×64 uint8, 4 classes)"
    colours, labels = sources(folder, "train")
    found = numbers(data.train_x, colours)
    assert sorted(found) == list(range(CLASSES * TRAIN)) and torch.equal(data.train_y, labels[found])
    assert found != sorted(found) and len(data.train_y[-6:].unique()) > 1  # the end has several classes
    colours, labels = sources(folder, "val")
    found, half = numbers(data.test_x, colours), CLASSES * VAL
    assert found[:half] == found[half:] and sorted(found[:half]) == list(range(half))
    assert torch.equal(data.test_y, labels[found]) and data.test_y.dtype == torch.int64
    assert not any(torch.equal(a, b) for a, b in data.test_x.view(2, half, 3, 64, 64).unbind(1))


@pytest.mark.parametrize("size", [64, 33])
def test_images_are_those_that_pillow_rotates(size: int, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(rot_tim, "CHUNK", 5)  # not a divisor of 24
    bilinear = Image.Resampling.BILINEAR
    data = load("rot-tim", folder, 5, classes=CLASSES, image_size=size)
    for name, plan in plans(folder, 5).items():
        images = getattr(data, f"{name}_x").permute(0, 2, 3, 1).numpy().astype(int)
        for image, path, degrees in zip(images, plan.paths, plan.degrees.tolist(), strict=True):
            upright = Image.fromarray(pixels(path)).resize((size, size), bilinear)
            rotated = np.asarray(upright.rotate(degrees, bilinear)).astype(int)
            difference = np.abs(image - rotated)[disc(size)]
            assert difference.max() <= 3 and difference.mean() < 0.5
            assert (image[~disc(size)] == 0).all()


@pytest.mark.parametrize("size", [64, 33, 32])
def test_nothing_inside_the_mask_comes_from_outside_the_image(size: int, folder: Path) -> None:
    for path in folder.rglob("*.JPEG"):
        Image.new("L", (64, 64), 255).save(path)
    data = load("rot-tim", folder, classes=CLASSES, image_size=size)
    assert torch.equal(data.train_x, 255 * torch.from_numpy(disc(size)).byte().expand(24, 3, size, size))


def test_angles_and_flips_are_uniform_and_the_two_rotations_independent() -> None:
    files = {name: tuple(Path(f"{name}{k}") for k in range(3000)) for name in "ab"}
    plan = rot_tim._plan(files, ["a", "b"], 0, "test", 2, True)
    degrees, flips = plan.degrees.numpy(), plan.flips.numpy()
    assert 0 <= degrees.min() and degrees.max() < 360 and len(plan.paths) == 12_000
    counts = np.histogram(degrees, 36, (0, 360))[0]
    assert np.abs(counts - 12_000 / 36).max() < 90  # five standard deviations
    assert np.abs(np.bincount(flips) - 4000).max() < 260
    assert abs(np.corrcoef(degrees[:6000], degrees[6000:])[0, 1]) < 0.07
    assert abs(np.corrcoef(degrees, flips)[0, 1]) < 0.05
    assert [path.name[0] == "b" for path in plan.paths] == (plan.labels == 1).tolist()


def test_r2_tim_is_rot_tim_with_flips(folder: Path) -> None:
    plain, flipped = (load(name, folder, 2, classes=CLASSES) for name in ("rot-tim", "r2-tim"))
    assert torch.equal(plain.train_y, flipped.train_y) and torch.equal(plain.test_y, flipped.test_y)
    kinds = set()
    for part in ("train_x", "test_x"):
        for a, b in zip(getattr(plain, part), getattr(flipped, part), strict=True):
            (kind,) = [k for k, c in enumerate((a, a.flip(2), a.flip(1))) if torch.equal(b, c)]
            kinds.add(kind)
    assert kinds == {0, 1, 2}


def test_the_seed_decides_and_the_global_generator_stays(folder: Path, tmp_path: Path, monkeypatch) -> None:
    state = torch.get_rng_state()
    first = load("rot-tim", folder, 1, classes=CLASSES)
    other = load("rot-tim", folder, 2, classes=CLASSES)
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "another"))
    assert same(first, load("rot-tim", folder, 1, classes=CLASSES))
    assert not torch.equal(first.train_x, other.train_x) and not torch.equal(first.train_y, other.train_y)
    assert torch.equal(torch.get_rng_state(), state)


def test_classes_are_drawn_by_the_seed() -> None:
    known = [f"n{k}" for k in range(100, 300)]
    drawn = {seed: rot_tim.draw_classes(known, 100, seed) for seed in range(40)}
    assert all(len(set(some)) == 100 and list(some) == sorted(some) for some in drawn.values())
    assert len(set(drawn.values())) == 40 and rot_tim.draw_classes(known, 100, 3) == drawn[3]
    often = [sum(name in some for some in drawn.values()) for name in known]
    assert min(often) > 5 and max(often) < 35  # of 40, each with probability a half
    assert rot_tim.draw_classes(known, 200, 1) == tuple(known)


def test_the_cached_file_tells_the_classes_and_settings(folder: Path) -> None:
    from safetensors import safe_open

    data = load("rot-tim", folder, 7, classes=3, image_size=17)
    (path,) = cache_files()
    assert path.name.startswith("rot-tim-seed7-3classes-17px-")
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
    known = sorted(find(folder).train)
    chosen = list(rot_tim.draw_classes(known, 3, 7))
    assert about == {"seed": 7, "image_size": 17, "reflect": False, "classes": chosen}
    colours, labels = sources(folder, "train")
    found = [known[k] for k in labels[numbers(load("rot-tim", folder, 7, classes=3).train_x, colours)]]
    assert [chosen[y] for y in data.train_y] == found


def test_every_setting_and_other_files_have_a_cache_of_their_own(folder: Path) -> None:
    settings = [{}, {"image_size": 32}, {"classes": 3}, {"seed": 1}]
    for k, change in enumerate(settings, 1):
        load("rot-tim", folder, **{"classes": CLASSES, **change})
        assert len(cache_files()) == k
    place = folder / "tiny-imagenet-200"
    for where in (folder, place):  # the same files
        load("r2-tim", where, classes=CLASSES)
        assert len(cache_files()) == 5
    images = place / "train/n00001000/images"
    (images / "n00001000_5.JPEG").rename(images / "n00001000_6.JPEG")
    load("r2-tim", folder, classes=CLASSES)
    assert len(cache_files()) == 6
    text = (place / "val/val_annotations.txt").read_text()
    swapped = text.replace("n00001000", "x").replace("n00001037", "n00001000").replace("x", "n00001037")
    (place / "val/val_annotations.txt").write_text(swapped)
    load("r2-tim", folder, classes=CLASSES)
    assert len(cache_files()) == 7


def test_a_replaced_image_or_folder_is_not_served_from_the_cache(folder: Path, tmp_path: Path) -> None:
    before = load("rot-tim", folder, classes=CLASSES).train_x
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy2)
    for where in (folder, tmp_path / "copy"):
        Image.new("RGB", (64, 64), (9, 200, 9)).save(tmp_path / "new.JPEG")
        path = where / "tiny-imagenet-200/train/n00001000/images/n00001000_5.JPEG"
        os.replace(tmp_path / "new.JPEG", path)
        after = load("rot-tim", where, classes=CLASSES).train_x
        assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) == 1
    assert len(cache_files()) == 3


def test_progress_is_shown_on_a_terminal_only(folder: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    load("rot-tim", folder, classes=CLASSES)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    load("rot-tim", folder, seed=1, classes=CLASSES)
    out, err = capfd.readouterr()
    assert out == "" and "making rot-tim" in err and "48/48" in err


@real.needs("tiny-imagenet-200")
def test_real_images_are_rotated_without_a_preferred_angle() -> None:
    source = find(real.DATA)
    assert {len(files) for files in source.train.values()} == {500}
    few = {name: files[:100] for name, files in list(source.train.items())[:5]}
    plan = rot_tim._plan(few, list(few), 0, "train", 1, False)
    mean = rot_tim._make(plan, 32).double().mean((0, 1))
    upright = read_images([file for files in few.values() for file in files]).double().mean((0, 1))
    assert float((mean - mean.rot90()).abs().max()) < 25 and int((mean == 0).sum()) == int((~disc(32)).sum())
    assert abs(float(mean[disc(32)].mean()) - float(upright[disc(64)].mean())) < 3
