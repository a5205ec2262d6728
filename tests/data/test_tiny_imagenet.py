"""Tiny ImageNet from its archive and folder, and Rot-TIM and R2-TIM made of it."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import rich.progress
import torch
from torch import Tensor
from typer.testing import CliRunner

from ien.cli import data as commands
from ien.cli import data_sets
from ien.data import DATASETS, SETTINGS, Dataset, load, rot_tim, tiny_imagenet
from ien.data.cache import cache_folder
from ien.data.tiny_imagenet import ARCHIVE, find, read_images, unpack

from ..helpers import toy
from ..helpers.mirror import mirror
from ..helpers.tiny import make_tiny_imagenet

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")

CLASSES, TRAIN, VAL = 4, 6, 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IEN_DATA", raising=False)
    make_tiny_imagenet(tmp_path / "data", CLASSES, TRAIN, VAL)
    return tmp_path / "data"


@pytest.fixture
def place(folder: Path) -> Path:
    return folder / "tiny-imagenet-200"


def cache_files() -> list[Path]:
    return sorted(cache_folder().iterdir()) if cache_folder().exists() else []


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def grey(path: Path) -> bool:
    with Image.open(path) as file:
        return file.mode == "L"


# the folder


def test_classes_are_those_listed_that_have_images(folder: Path, place: Path) -> None:
    (place / "train" / "n00000001" / "images").mkdir(parents=True)  # listed, and empty
    (place / "train" / "n77777777" / "images").mkdir(parents=True)  # not listed
    found = find(folder)
    names = [f"n{1000 + 37 * k:08d}" for k in range(CLASSES)]
    assert list(found.train) == list(found.val) == names and found.folder == place
    for name in names:
        assert [f.name for f in found.train[name]] == [f"{name}_{i}.JPEG" for i in range(TRAIN)]
        assert all(f.parent == place / "train" / name / "images" for f in found.train[name])
    annotated = dict(
        line.split("\t")[:2] for line in (place / "val/val_annotations.txt").read_text().splitlines()
    )
    assert {f.name: name for name, files in found.val.items() for f in files} == annotated
    assert str(found) == "4 of 200 classes, 24 train and 12 val images" and not found.whole
    assert find(place) == found  # the folder itself will do


def test_images_are_read_as_pillow_reads_them_and_grey_ones_get_three_channels(folder: Path) -> None:
    files = [file for some in find(folder).train.values() for file in some]
    assert sum(map(grey, files)) == 1
    x = read_images(files)
    assert x.shape == (len(files), 3, 64, 64) and x.dtype == torch.uint8
    for image, file in zip(x, files, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(file))
        assert grey(file) == bool((image == image[0]).all())


@pytest.mark.parametrize("name", ["wnids.txt", "train", "val/images", "val/val_annotations.txt"])
def test_missing_part_is_named(name: str, folder: Path, place: Path) -> None:
    (place / name).rename(folder / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=f"{place} is incomplete, without {name}.*ien data get"
    ) as caught:
        load("rot-tim", folder, classes=CLASSES)
    assert "\n" not in str(caught.value)


def test_missing_folder_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"`ien data get tiny-imagenet --data {tmp_path}`, or put"):
        load("r2-tim", tmp_path)


def without_a_val_image(place: Path) -> None:
    (place / "val/images/val_4.JPEG").unlink()


def without_a_train_image(place: Path) -> None:
    (place / "train/n00001037/images/n00001037_2.JPEG").unlink()


def with_an_unnamed_image(place: Path) -> None:
    path = place / "val/val_annotations.txt"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.startswith("val_4.")))


def with_half_a_line(place: Path) -> None:
    with (place / "val/val_annotations.txt").open("a") as file:
        file.write("val_9")


def with_a_line_twice(place: Path) -> None:
    with (place / "val/val_annotations.txt").open("a") as file:
        file.write("val_3.JPEG\tn00001000\n")


def without_classes(place: Path) -> None:
    (place / "wnids.txt").write_text("n5\n")


def without_any_val_image(place: Path) -> None:
    for path in (place / "val/images").iterdir():
        path.unlink()
    (place / "val/val_annotations.txt").write_text("")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (without_a_val_image, r"names val_4\.JPEG, and there is no .*val/images/val_4\.JPEG"),
        (without_a_train_image, r"class n00001037 has 5 train images, others have 6"),
        (with_an_unnamed_image, r"of 12 files in val/images it does not name 1, such as val_4\.JPEG"),
        (with_half_a_line, r"val_annotations\.txt is damaged: line 13 is not a file, a tab and a class"),
        (with_a_line_twice, r"line 13 names val_3\.JPEG twice"),
        (without_classes, r"of 1 classes in wnids\.txt none has images"),
        (without_any_val_image, r"class n00001000 has 0 val images"),
    ],
)
def test_damaged_folder_is_told(
    damage: Callable[[Path], None], match: str, folder: Path, place: Path
) -> None:
    damage(place)
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        find(folder)
    assert "\n" not in str(caught.value)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_small(path: Path) -> None:
    Image.new("RGB", (32, 48)).save(path)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (cut_in_half, "cannot be read as an image .*truncated"),
        (lambda path: path.write_bytes(b""), "cannot be read as an image"),
        (make_small, "has 32×48 pixels, and those of Tiny ImageNet 64×64"),
    ],
    ids=["truncated", "empty", "size"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_image_is_named(damage, match, workers: int, folder: Path, place: Path, monkeypatch) -> None:
    monkeypatch.setattr(rot_tim, "CHUNK", 5)
    monkeypatch.setattr(os, "cpu_count", lambda: workers)
    path = place / "train/n00001037/images/n00001037_2.JPEG"
    damage(path)
    with pytest.raises(ValueError, match=f"{path} {match}"):
        load("rot-tim", folder, classes=CLASSES)
    assert cache_files() == []


def test_without_pillow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs pillow: pip install "ien\[plots\]"'):
        load("rot-tim", folder, classes=CLASSES)


# the archive


def pack(place: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in [place, *sorted(place.rglob("*"))]:
            file.write(path, path.relative_to(place.parent))
    return archive


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_unpacked_archive_is_what_was_packed(place: Path, tmp_path: Path) -> None:
    archive, seen = pack(place, tmp_path / "a.zip"), []
    target = tmp_path / "target"
    target.mkdir()
    assert unpack(archive, target, lambda *numbers: seen.append(numbers)) == target / place.name
    assert tree(target / place.name) == tree(place) and os.listdir(target) == [place.name]
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1)) and seen[-1][0] == seen[-1][1]
    with pytest.raises(FileExistsError, match="is there already"):
        unpack(archive, target)


LINK = (stat.S_IFLNK | 0o777) << 16
DEVICE = (stat.S_IFCHR | 0o666) << 16


@pytest.mark.parametrize(
    ("name", "attributes", "match"),
    [
        ("/etc/evil", 0, "does not lead into"),
        ("../evil", 0, "does not lead into"),
        ("tiny-imagenet-200/../../evil", 0, "does not lead into"),
        ("tiny-imagenet-200/..\\..\\evil", 0, "does not lead into"),
        ("C:/evil", 0, "does not lead into"),
        ("tiny-imagenet-2000/evil", 0, "does not lead into"),
        ("tiny-imagenet-200/link", LINK, "is a link or a device"),
        ("tiny-imagenet-200/device", DEVICE, "is a link or a device"),
    ],
)
def test_archive_that_leads_elsewhere_is_refused_before_anything_is_written(
    name: str, attributes: int, match: str, place: Path, tmp_path: Path
) -> None:
    archive = pack(place, tmp_path / "a.zip")
    with zipfile.ZipFile(archive, "a") as file:
        member = zipfile.ZipInfo(name)
        member.external_attr = attributes
        file.writestr(member, "/etc/passwd")
    target = tmp_path / "target"
    target.mkdir()
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"is refused: .*{match}"):
        unpack(archive, target)
    assert tree(tmp_path) == before


def test_damaged_archive_leaves_nothing(place: Path, tmp_path: Path) -> None:
    archive = pack(place, tmp_path / "a.zip")
    good = archive.read_bytes()
    target = tmp_path / "target"
    target.mkdir()
    middle = len(good) // 2
    for content in (good[:middle] + bytes(200) + good[middle + 200 :], good[:middle], b"<html>"):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged .*: delete it and run this again"):
            unpack(archive, target)
        assert os.listdir(target) == []
    with zipfile.ZipFile(archive, "w"):
        pass
    with pytest.raises(ValueError, match="holds no folder tiny-imagenet-200"):
        unpack(archive, target)
    assert os.listdir(target) == []


def test_interrupted_unpacking_leaves_nothing(place: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    archive = pack(place, tmp_path / "a.zip")
    (tmp_path / "target").mkdir()
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "target", interrupt)
    assert os.listdir(tmp_path / "target") == []


def unpack_and_die(archive: Path, target: Path) -> None:
    unpack(
        archive, target, lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done == total else None
    )


def test_killed_unpacking_is_not_taken_for_whole_and_made_up_for(place: Path, tmp_path: Path) -> None:
    archive, target = pack(place, tmp_path / "a.zip"), tmp_path / "target"
    target.mkdir()
    assert toy.finish(toy.start(unpack_and_die, archive, target)) == -signal.SIGKILL
    assert os.listdir(target) == ["tiny-imagenet-200.part"]
    (target / "tiny-imagenet-200.part" / place.name / "of another archive").write_text("")
    with pytest.raises(FileNotFoundError, match="no Tiny ImageNet"):
        find(target)
    unpack(archive, target)
    assert tree(target / place.name) == tree(place) and os.listdir(target) == [place.name]


@pytest.fixture
def asked(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server that has the packed folder as the published archive; what was asked of it."""
    monkeypatch.setenv("no_proxy", "*")
    for name, value in (("CLASSES", CLASSES), ("TRAIN", TRAIN), ("VAL", VAL)):
        monkeypatch.setattr(tiny_imagenet, name, value)
    with mirror(pack(place, tmp_path / ARCHIVE.name)) as (file, asked):
        monkeypatch.setitem(data_sets.DOWNLOADS, "tiny-imagenet", (file,))
        monkeypatch.setattr(tiny_imagenet, "ARCHIVE", file)
        yield asked


def command(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(commands.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_command_downloads_and_unpacks_once(asked: list[str], place: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    code, out, err = command("get", "tiny-imagenet", "--data", str(target))
    assert (code, err) == (0, "") and tree(target / place.name) == tree(place)
    assert out.splitlines()[-1] == (
        f"tiny-imagenet: 4 of 4 classes, 24 train and 12 val images in {target / place.name}"
    )
    assert sorted(os.listdir(target)) == [place.name, ARCHIVE.name]
    again = command("get", "tiny-imagenet", "--data", str(target))
    assert again == (0, out.splitlines()[-1] + "\n", "") and len(asked) == 1
    os.rename(target / place.name, target / "gone")
    assert command("get", "tiny-imagenet", "--data", str(target))[0] == 0 and len(asked) == 1


def test_command_leaves_a_part_of_the_classes_alone(
    asked: list[str], folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 200)
    before = tree(folder)
    code, out, err = command("get", "tiny-imagenet", "--data", str(folder))
    assert (code, out) == (2, "") and f"{place} is only a part of Tiny ImageNet (4 of 200 classes" in err
    assert tree(folder) == before and asked == []


def test_published_archive_has_the_published_name_and_digest() -> None:
    assert ARCHIVE.size == 248_100_043 and ARCHIVE.md5 == "90528d7ca1a48142e341f4ef8d21d0de"
    assert all(url.endswith("//cs231n.stanford.edu/tiny-imagenet-200.zip") for url in ARCHIVE.urls)


def test_list_shows_what_is_there_and_what_is_made_of_it(folder: Path, tmp_path: Path) -> None:
    def listing(where: Path) -> str:
        code, out, _ = command("list", "--data", str(where))
        assert code == 0
        return " ".join(out.split())

    missing = listing(tmp_path / "none")
    assert "ien data get tiny-imagenet" in missing and "tiny-imagenet-200.zip 248.1 MB, missing" in missing
    assert "rot-tim generated needs tiny-imagenet" in missing
    assert "tiny-imagenet 248.1 MB 4 of 200 classes, 24 train and 12 val images in" in listing(folder)
    load("r2-tim", folder, seed=3, classes=3, image_size=9, mask=False)
    text = listing(folder)
    assert "rot-tim generated made from tiny-imagenet r2-tim generated made from tiny-imagenet cached" in text
    assert "cached seed3-3classes-9px-unmasked," in text
    with_half_a_line(folder / "tiny-imagenet-200")
    assert "is damaged: line 13" in listing(folder)


# Rot-TIM


def sources(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Colours in the middle (N, 3) and classes (N,) of the upright images."""
    found = getattr(find(folder), part)
    files = [(k, file) for k, name in enumerate(sorted(found)) for file in found[name]]
    return (
        torch.tensor(np.stack([pixels(file)[32, 32] for _, file in files])).double(),
        torch.tensor([k for k, _ in files]),
    )


def numbers(x: Tensor, colours: Tensor) -> list[int]:
    """Which of the upright images each one is: the middle does not change when it is turned."""
    centre = x.shape[-1] // 2
    distance = torch.cdist(x[:, :, centre, centre].double(), colours)
    assert (distance.min(1).values < 4).all()
    return distance.argmin(1).tolist()


@pytest.mark.parametrize("name", ["rot-tim", "r2-tim"])
def test_training_images_come_once_and_validation_images_twice(name: str, folder: Path) -> None:
    data = load(name, folder, classes=CLASSES)
    assert str(data) == (f"Dataset({name}, generated: 24 train and 24 test images 3×64×64 uint8, 4 classes)")
    colours, labels = sources(folder, "train")
    found = numbers(data.train_x, colours)
    assert sorted(found) == list(range(CLASSES * TRAIN)) and torch.equal(data.train_y, labels[found])
    assert (
        found != sorted(found) and len(data.train_y[-6:].unique()) > 1
    )  # a held-out end has several classes
    colours, labels = sources(folder, "val")
    found, half = numbers(data.test_x, colours), CLASSES * VAL
    assert found[:half] == found[half:] and sorted(found[:half]) == list(range(half))
    assert torch.equal(data.test_y, labels[found]) and data.test_y.dtype == torch.int64
    assert not any(torch.equal(a, b) for a, b in data.test_x.view(2, half, 3, 64, 64).unbind(1))


def plans(folder: Path, seed: int, reflect: bool = False) -> dict[str, rot_tim._Part]:
    source = find(folder)
    return {
        "train": rot_tim._part(source.train, sorted(source.train), seed, "train", 1, reflect),
        "test": rot_tim._part(source.val, sorted(source.val), seed, "test", 2, reflect),
    }


def disc(size: int) -> np.ndarray:
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    return np.hypot(x, y) <= (size - 1) / 2 + 1e-9


@pytest.mark.parametrize("size", [64, 33])
def test_images_are_those_that_pillow_turns(size: int, folder: Path) -> None:
    bilinear = Image.Resampling.BILINEAR
    for mask in (True, False):
        data = load("rot-tim", folder, 5, classes=CLASSES, image_size=size, mask=mask)
        for name, part in plans(folder, 5).items():
            images = getattr(data, f"{name}_x").permute(0, 2, 3, 1).numpy().astype(int)
            for image, path, degrees in zip(images, part.paths, part.degrees, strict=True):
                upright = Image.fromarray(pixels(path)).resize((size, size), bilinear)
                turned = np.asarray(upright.rotate(degrees, bilinear)).astype(int)
                difference = np.abs(image - turned)[disc(size)]
                assert difference.max() <= 3 and difference.mean() < 0.5
                assert (image[~disc(size)] == 0).all() or not mask
        corners = data.train_x[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners == 0).all() or not mask


def test_unmasked_images_are_turned_with_zeros_from_outside(folder: Path) -> None:
    from .test_augment import turned  # pixel by pixel

    data, part = load("rot-tim", folder, 5, classes=CLASSES, mask=False), plans(folder, 5)["test"]
    for k in (0, 13):
        expected = turned(pixels(part.paths[k])[:, :, 1].astype(float), part.degrees[k])
        assert np.abs(data.test_x[k, 1].numpy() - expected).max() <= 0.5 + 1e-6


def test_nothing_inside_the_mask_comes_from_outside_the_image(folder: Path, place: Path) -> None:
    for path in place.rglob("*.JPEG"):
        Image.new("L", (64, 64), 255).save(path)
    for size in (64, 33, 32):
        data = load("rot-tim", folder, classes=CLASSES, image_size=size)
        assert torch.equal(data.train_x, 255 * torch.from_numpy(disc(size)).byte().expand(24, 3, size, size))


def test_angles_and_flips_are_uniform_and_the_variants_independent() -> None:
    files = {"a": [Path(f"{k}") for k in range(3000)], "b": [Path(f"b{k}") for k in range(3000)]}
    part = rot_tim._part(files, ["a", "b"], 0, "test", 2, True)
    degrees, flips = part.degrees, part.flips
    assert 0 <= degrees.min() and degrees.max() < 360 and len(part.paths) == 12_000
    counts = np.histogram(degrees, 36, (0, 360))[0]
    assert np.abs(counts - 12_000 / 36).max() < 90  # five standard deviations
    assert np.abs(np.bincount(flips) - 4000).max() < 260
    assert abs(np.corrcoef(degrees[:6000], degrees[6000:])[0, 1]) < 0.07
    assert abs(np.corrcoef(degrees, flips)[0, 1]) < 0.05
    assert [part.paths[k].name[0] == "b" for k in range(12_000)] == (part.labels == 1).tolist()


def test_r2_tim_is_rot_tim_with_flips(folder: Path) -> None:
    plain, flipped = (load(name, folder, 2, classes=CLASSES) for name in ("rot-tim", "r2-tim"))
    kinds = set()
    for part in ("train", "test"):
        assert torch.equal(getattr(plain, f"{part}_y"), getattr(flipped, f"{part}_y"))
        for a, b in zip(getattr(plain, f"{part}_x"), getattr(flipped, f"{part}_x"), strict=True):
            (kind,) = [k for k, c in enumerate((a, a.flip(2), a.flip(1))) if torch.equal(b, c)]
            kinds.add(kind)
    assert kinds == {0, 1, 2}


def parts_of(data: Dataset) -> list[Tensor]:
    return [data.train_x, data.train_y, data.test_x, data.test_y]


def test_same_seed_gives_the_same_images_and_another_seed_others(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = load("rot-tim", folder, 1, classes=CLASSES)
    other = load("rot-tim", folder, 2, classes=CLASSES)
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "another"))
    again = load("rot-tim", folder, 1, classes=CLASSES)
    assert all(map(torch.equal, parts_of(first), parts_of(again)))
    assert not any(map(torch.equal, parts_of(first), parts_of(other)))
    assert torch.equal(torch.get_rng_state(), state)


def test_classes_are_drawn_by_the_seed() -> None:
    known = [f"n{k}" for k in range(100, 300)]
    drawn = {seed: rot_tim.draw_classes(known, 100, seed) for seed in range(40)}
    assert all(len(set(some)) == 100 and list(some) == sorted(some) for some in drawn.values())
    assert len(set(drawn.values())) == 40 and rot_tim.draw_classes(known, 100, 3) == drawn[3]
    often = [sum(name in some for some in drawn.values()) for name in known]
    assert min(often) > 5 and max(often) < 35  # of 40, each with probability a half
    assert rot_tim.draw_classes(known, 200, 1) == tuple(known)


def test_workers_make_what_one_process_makes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rot_tim, "CHUNK", 5)
    parts = plans(folder, 1, reflect=True)
    alone, together = (rot_tim._build("", parts, 33, True, workers) for workers in (1, 3))
    assert list(alone) == ["train_x", "test_x", "train_y", "test_y"]
    assert all(torch.equal(alone[key], together[key]) for key in alone)
    assert multiprocessing.active_children() == []


# kept in the cache


def never(*_: object) -> None:
    raise AssertionError("made again although it is in the cache")


def about(path: Path) -> dict[str, object]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["about"])


def test_second_start_maps_the_one_cached_file_which_tells_the_classes(folder: Path, monkeypatch) -> None:
    first = load("rot-tim", folder, 7, classes=3, image_size=17)
    (path,) = cache_files()
    assert path.name.startswith("rot-tim-seed7-3classes-17px-masked-")
    told = about(path)
    chosen = told.pop("classes")
    assert told == {"seed": 7, "image_size": 17, "mask": True, "reflect": False}
    assert chosen == list(rot_tim.draw_classes(sorted(find(folder).train), 3, 7))
    colours, labels = sources(folder, "train")
    known = sorted(find(folder).train)
    found = [known[k] for k in labels[numbers(load("rot-tim", folder, 7, classes=3).train_x, colours)]]
    assert [chosen[y] for y in first.train_y] == found
    monkeypatch.setattr(rot_tim, "_build", never)
    assert all(
        map(torch.equal, parts_of(first), parts_of(load("rot-tim", folder, 7, classes=3, image_size=17)))
    )
    if Path("/proc/self/maps").exists():
        assert path.name in Path("/proc/self/maps").read_text()


def test_every_setting_and_other_files_have_a_cache_of_their_own(folder: Path, place: Path) -> None:
    settings = [{}, {"mask": False}, {"image_size": 32}, {"classes": 3}, {"seed": 1}]
    for k, change in enumerate(settings, 1):
        load("rot-tim", folder, **{"classes": CLASSES, **change})
        assert len(cache_files()) == k
    load("r2-tim", folder, classes=CLASSES)
    assert len(cache_files()) == 6
    load("r2-tim", place, classes=CLASSES)  # the same files
    assert len(cache_files()) == 6
    images = place / "train/n00001000/images"
    (images / "n00001000_5.JPEG").rename(images / "n00001000_6.JPEG")
    load("r2-tim", folder, classes=CLASSES)
    assert len(cache_files()) == 7
    text = (place / "val/val_annotations.txt").read_text()
    swapped = text.replace("n00001000", "x").replace("n00001037", "n00001000").replace("x", "n00001037")
    (place / "val/val_annotations.txt").write_text(swapped)
    load("r2-tim", folder, classes=CLASSES)
    assert len(cache_files()) == 8


def test_replaced_image_and_folder_of_the_same_names_are_not_served_from_the_cache(
    folder: Path, place: Path, tmp_path: Path
) -> None:
    before = load("rot-tim", folder, classes=CLASSES).train_x
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy2)
    path = place / "train/n00001000/images/n00001000_5.JPEG"
    for place_of_it in (path, tmp_path / "copy" / path.relative_to(folder)):
        Image.new("RGB", (64, 64), (9, 200, 9)).save(tmp_path / "new.JPEG")
        os.replace(tmp_path / "new.JPEG", place_of_it)
        after = load("rot-tim", place_of_it.parents[4], classes=CLASSES).train_x
        assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) == 1
    assert len(cache_files()) == 3


def build_and_die(folder: Path, cache: Path, chunks: int) -> None:
    """Make Rot-TIM in a child process that kills itself when some chunks are there."""
    os.environ["IEN_CACHE"] = str(cache)
    os.cpu_count = lambda: 2
    rot_tim.CHUNK = 4

    def die(*arguments: object) -> None:
        pids = [process.pid for process in multiprocessing.active_children()]
        (folder / "pids.json").write_text(json.dumps(pids))
        os.kill(os.getpid(), signal.SIGKILL)

    if chunks:
        toy.at_call(chunks, rich.progress.Progress, "advance", die)
    else:
        toy.at_call(1, os, "replace", die)
    load("rot-tim", folder, classes=CLASSES)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("chunks", [2, 0], ids=["in the middle", "before it is renamed"])
def test_killed_build_leaves_no_file_and_no_process(chunks: int, folder: Path, tmp_path: Path) -> None:
    process = toy.start(build_and_die, folder, tmp_path / "cache", chunks)
    assert toy.finish(process) == -signal.SIGKILL
    pids, end = json.loads((folder / "pids.json").read_text()), time.monotonic() + 10
    assert len(pids) == (2 if chunks else 0)
    while any(map(running, pids)):
        assert time.monotonic() < end, "the workers go on without their parent"
        time.sleep(0.02)
    assert not [path for path in cache_files() if path.suffix == ".safetensors"]
    data, parts = load("rot-tim", folder, classes=CLASSES), plans(folder, 0)
    whole = rot_tim._build("", parts, 64, True, 1)
    assert all(torch.equal(getattr(data, key), tensor) for key, tensor in whole.items())


def kill_yourself(*arguments: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs workers that are forks")
def test_killed_worker_is_one_line_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rot_tim, "CHUNK", 5)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(rot_tim, "read_images", kill_yourself)
    with pytest.raises(OSError, match="a worker process was ended from outside") as caught:
        load("rot-tim", folder, classes=CLASSES)
    assert "\n" not in str(caught.value) and cache_files() == []
    assert multiprocessing.active_children() == []


def test_progress_is_shown_on_a_terminal_only(folder: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    load("rot-tim", folder, classes=CLASSES)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    load("rot-tim", folder, seed=1, classes=CLASSES)
    out, err = capfd.readouterr()
    assert out == "" and "making rot-tim" in err and "48/48" in err


# by name


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("rot-tim", {}, r"100 classes are asked for, and .*tiny-imagenet-200 holds 4: take --set classes=4"),
        ("rot-tim", {"classes": 1}, "1 classes are asked for"),
        ("rot-tim", {"classes": 4, "image_size": 65}, "image_size must be 8 to 64.* --set image_size=64"),
        ("r2-tim", {"classes": 4, "image_size": 2}, "image_size must be 8 to 64.* --set image_size=8"),
        ("rot-tim", {"clases": 4}, "rot-tim takes no setting 'clases'; did you mean classes"),
        ("rot-mnist", {"classes": 4}, "rot-mnist takes no setting 'classes'; it takes none"),
    ],
)
def test_what_cannot_be_made_is_told(name: str, settings: dict[str, int], match: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        load(name, folder, **settings)
    assert "\n" not in str(caught.value) and cache_files() == []


@pytest.mark.parametrize("name", ["rot-tim", "r2-tim"])
def test_it_is_not_made_of_the_embedded_digits(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is not made of the embedded digits: .*ien data get"):
        load(name, "embedded", classes=10)


def test_settings_are_those_that_the_functions_take() -> None:
    for name, (function, _) in DATASETS.items():
        first, second, *settings = inspect.signature(function).parameters
        assert (first, second) == ("folder", "seed")
        assert SETTINGS[name] == tuple(setting for setting in settings if setting != "reflect")
    assert SETTINGS["rot-tim"] == ("classes", "image_size", "mask") and DATASETS.keys() == SETTINGS.keys()


# the real files

REAL = Path(os.environ.get("IEN_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.skipif(
    not (REAL / "tiny-imagenet-200").is_dir(), reason="needs tiny-imagenet-200 in $IEN_DATA or ../shared/data"
)
def test_real_images_are_turned_without_a_preferred_angle() -> None:
    source = find(REAL)
    assert {len(files) for files in source.train.values()} == {500}
    few = {name: files[:100] for name, files in list(source.train.items())[:5]}
    made = rot_tim._build("", {"train": rot_tim._part(few, list(few), 0, "train", 1, False)}, 32, True, 1)
    mean = made["train_x"].double().mean((0, 1))
    upright = read_images([f for files in few.values() for f in files]).double().mean((0, 1))
    assert float((mean - mean.rot90()).abs().max()) < 25 and int((mean == 0).sum()) == int((~disc(32)).sum())
    assert abs(float(mean[disc(32)].mean()) - float(upright[disc(64)].mean())) < 3
