"""Rot-TIM and R2-TIM, made from a small Tiny ImageNet, against Pillow and a loop over pixels."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ien.data import load, rot_tim
from ien.data.tiny_imagenet import find, read_images

from ..helpers import real
from ..helpers.tiny import cache_files, make_tiny_imagenet

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")

CLASSES = 4  # of 6 images to train on and 3 to validate with


@pytest.fixture
def folder(tmp_path):
    make_tiny_imagenet(tmp_path / "data", CLASSES, 6, 3)
    return tmp_path / "data"


def disc(size):
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    return np.hypot(x, y) <= (size - 1) / 2 + 1e-9


@pytest.mark.parametrize("size", [64, 33])
def test_images_are_those_that_pillow_rotates_each_with_its_label(size, folder, spied, monkeypatch) -> None:
    monkeypatch.setattr(rot_tim, "CHUNK", 5)  # not a divisor of 24
    plans = spied(rot_tim, "_make")
    data = load("rot-tim", folder, 5, classes=CLASSES, image_size=size)
    images, shape = "24 train and 24 test images", f"3×{size}×{size}"
    assert str(data) == f"Dataset(rot-tim, generated: {images} {shape} uint8, 4 classes)"
    paths = [path for call in plans for path in call.args[0].paths]
    degrees = [angle for call in plans for angle in call.args[0].degrees.tolist()]

    made = torch.cat([data.train_x, data.test_x]).permute(0, 2, 3, 1).numpy().astype(int)
    bilinear = Image.Resampling.BILINEAR
    for image, path, angle in zip(made, paths, degrees, strict=True):
        with Image.open(path) as file:
            upright = file.convert("RGB").resize((size, size), bilinear)
        difference = np.abs(image - np.asarray(upright.rotate(angle, bilinear)))[disc(size)]
        assert difference.max() <= 3 and difference.mean() < 0.5
        assert (image[~disc(size)] == 0).all()

    source = find(folder)
    labels = {}
    for k, name in enumerate(sorted(source.train)):
        labels |= dict.fromkeys(source.train[name] + source.val[name], k)
    assert torch.cat([data.train_y, data.test_y]).tolist() == [labels[path] for path in paths]
    assert data.test_y.dtype == torch.int64 and len(data.train_y[-6:].unique()) > 1  # classes are mixed
    upright = load("tiny-imagenet", folder, 5, classes=CLASSES, image_size=size)
    assert upright.source == "subset" and upright.name == "tiny-imagenet"
    assert torch.equal(upright.train_y, data.train_y) and torch.equal(upright.test_y, data.test_y[:12])
    for image, path in zip(torch.cat([upright.train_x, upright.test_x]), paths[:36], strict=True):
        with Image.open(path) as file:
            expected = np.asarray(file.convert("RGB").resize((size, size), bilinear)).astype(int)
        difference = np.abs(image.permute(1, 2, 0).numpy() - expected)  # corners and all
        assert difference.max() <= 1

    train, once, again = paths[:24], paths[24:36], paths[36:]
    assert sorted(train + once) == sorted(labels) and once == again
    assert all(a != b for a, b in zip(degrees[24:36], degrees[36:], strict=True))


@pytest.mark.parametrize("size", [64, 33, 32])
def test_nothing_inside_the_mask_comes_from_outside_the_image(size, folder) -> None:
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


def test_r2_tim_is_rot_tim_with_flips(folder) -> None:
    plain, flipped = (load(name, folder, 2, classes=CLASSES) for name in ("rot-tim", "r2-tim"))
    assert torch.equal(plain.train_y, flipped.train_y) and torch.equal(plain.test_y, flipped.test_y)
    kinds = set()
    for part in ("train_x", "test_x"):
        for a, b in zip(getattr(plain, part), getattr(flipped, part), strict=True):
            (kind,) = [k for k, c in enumerate((a, a.flip(2), a.flip(1))) if torch.equal(b, c)]
            kinds.add(kind)
    assert kinds == {0, 1, 2}


def test_classes_are_drawn_by_the_seed() -> None:
    known = [f"n{k}" for k in range(100, 300)]
    drawn = {seed: rot_tim.draw_classes(known, 100, seed) for seed in range(40)}
    assert all(len(set(some)) == 100 and list(some) == sorted(some) for some in drawn.values())
    assert len(set(drawn.values())) == 40 and rot_tim.draw_classes(known, 100, 3) == drawn[3]
    often = [sum(name in some for some in drawn.values()) for name in known]
    assert min(often) > 5 and max(often) < 35  # of 40, each with probability a half
    assert rot_tim.draw_classes(known, 200, 1) == tuple(known)


def test_the_cached_file_tells_the_classes_and_settings(folder, spied) -> None:
    from safetensors import safe_open

    plans = spied(rot_tim, "_make")
    data = load("rot-tim", folder, 7, classes=3, image_size=17)
    (path,) = cache_files()
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
    chosen = list(rot_tim.draw_classes(sorted(find(folder).train), 3, 7))
    assert about == {"seed": 7, "image_size": 17, "reflect": False, "classes": chosen}
    assert [chosen[y] for y in data.train_y] == [path.parts[-3] for path in plans[0].args[0].paths]


def test_every_setting_and_other_files_have_a_cache_of_their_own(folder) -> None:
    place = folder / "tiny-imagenet-200"

    def caches(name="r2-tim", where=folder, **settings) -> int:
        load(name, where, **({"classes": CLASSES} | settings))
        return len(cache_files())

    settings = [{}, {"image_size": 32}, {"classes": 3}, {"seed": 1}, {"name": "rot-tim"}, {"where": place}]
    assert [caches(**some) for some in settings] == [1, 2, 3, 4, 5, 5]  # the last are the same files
    images = place / "train/n00001000/images"
    (images / "n00001000_5.JPEG").rename(images / "n00001000_6.JPEG")
    assert caches() == 6
    text = (place / "val/val_annotations.txt").read_text()
    swapped = text.replace("n00001000", "x").replace("n00001037", "n00001000").replace("x", "n00001037")
    (place / "val/val_annotations.txt").write_text(swapped)
    assert caches() == 7


def test_a_replaced_image_or_folder_is_not_served_from_the_cache(folder, tmp_path) -> None:
    before = load("rot-tim", folder, classes=CLASSES).train_x
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy2)
    for where in (folder, tmp_path / "copy"):
        Image.new("RGB", (64, 64), (9, 200, 9)).save(tmp_path / "new.JPEG")
        path = where / "tiny-imagenet-200/train/n00001000/images/n00001000_5.JPEG"
        os.replace(tmp_path / "new.JPEG", path)
        after = load("rot-tim", where, classes=CLASSES).train_x
        assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) == 1
    assert len(cache_files()) == 3


def test_progress_is_shown_on_a_terminal_only(folder, capfd, monkeypatch) -> None:
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
