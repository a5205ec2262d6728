"""Tiny ImageNet upright, Rot-TIM and R2-TIM: the same images, rotated, and rotated and flipped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._files import generator
from .._text import progress_bar
from .augment import rotate
from .cache import cached, layout_of
from .dataset import Dataset, check_image_size
from .tiny_imagenet import SIZE, Files, TinyImageNet, find, need_pillow, read_images

__all__ = ["digest", "draw_classes", "r2_tim", "rot_tim", "upright_tim"]

RECIPE = 1
"""Part of the name of a cached file: raise it when the same sources give other tensors."""
UPRIGHT_NAME = "tiny-imagenet"
CHUNK = 50
"""Images that are made at once: many more no longer fit the processor's caches."""
UPRIGHT, LEFT_TO_RIGHT, UPSIDE_DOWN = 0, 1, 2
"""How an image is flipped after it is rotated."""


def rot_tim(
    folder: str | os.PathLike[str],
    seed: int = 0,
    classes: int = 100,
    image_size: int = SIZE,
    reflect: bool = False,
) -> Dataset:
    """Make Rot-TIM: training images rotated by one angle each, validation images by two.

    Images are rotated about their centre, bilinearly, and black outside the disc through the middle
    pixel of each side, whose pixels all come from inside the image. Labels follow the ids of the
    drawn classes. Of N test images, i and i + N/2 show the same. Made once and kept in the cache
    folder, memory-mapped; the ids of the drawn classes and the settings are in the metadata of the
    file.

    Args:
        folder: Where ``tiny-imagenet-200`` is.
        seed: Draws the classes, the angles, uniform over the circle, and the order, which mixes the
            classes.
        classes: How many classes are drawn.
        image_size: Below 64, the upright image is scaled down first, bilinear and antialiased.
        reflect: Flip images too; see :func:`r2_tim`.
    """
    source, chosen = _found(folder, seed, classes, image_size)
    name = "r2-tim" if reflect else "rot-tim"

    def make() -> Mapping[str, Tensor]:
        need_pillow()
        train = _plan(source.train, chosen, seed, "train", 1, reflect)
        test = _plan(source.val, chosen, seed, "test", 2, reflect)
        return _build(name, train, test, image_size)

    settings = f"seed{seed}-{classes}classes-{image_size}px"
    about = {
        "seed": seed,
        "image_size": image_size,
        "reflect": reflect,
        "classes": chosen,
    }
    train = classes * len(source.train[chosen[0]])
    test = 2 * classes * len(source.val[chosen[0]])
    layout = layout_of(train, test, (3, image_size, image_size))
    tensors = cached(f"{name}-{settings}-{digest(source)}", layout, make, about)
    return Dataset(name, "generated", **tensors, classes=classes)


def r2_tim(
    folder: str | os.PathLike[str],
    seed: int = 0,
    classes: int = 100,
    image_size: int = SIZE,
) -> Dataset:
    """Make R2-TIM: the images of :func:`rot_tim`, some of them flipped.

    Classes, angles and order are the same. The paper flips "some images at random along the
    horizontal or vertical axis" and names no shares: here a third stays as it is, a third is
    mirrored left to right and a third upside down, after being rotated. The arguments are those of
    :func:`rot_tim`.
    """
    return rot_tim(folder, seed, classes, image_size, reflect=True)


def upright_tim(
    folder: str | os.PathLike[str],
    seed: int = 0,
    classes: int = 100,
    image_size: int = SIZE,
) -> Dataset:
    """Load Tiny ImageNet as it is: the images of :func:`rot_tim` upright, with their corners.

    Classes, order and scaling are the same; each validation image is there once. The arguments are
    those of :func:`rot_tim`.
    """
    source, chosen = _found(folder, seed, classes, image_size)

    def make() -> Mapping[str, Tensor]:
        need_pillow()
        train = _plan(source.train, chosen, seed, "train", 1, reflect=False)
        test = _plan(source.val, chosen, seed, "test", 1, reflect=False)
        return _build(UPRIGHT_NAME, train._replace(degrees=None), test._replace(degrees=None), image_size)

    settings = f"seed{seed}-{classes}classes-{image_size}px"
    about = {"seed": seed, "image_size": image_size, "classes": chosen}
    train = classes * len(source.train[chosen[0]])
    test = classes * len(source.val[chosen[0]])
    layout = layout_of(train, test, (3, image_size, image_size))
    tensors = cached(f"{UPRIGHT_NAME}-{settings}-{digest(source)}", layout, make, about)
    whole = source.whole and classes == len(source.train)
    return Dataset(UPRIGHT_NAME, "original" if whole else "subset", **tensors, classes=classes)


def draw_classes(known: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    """Draw ``count`` of the known class ids, and return them in their order.

    >>> draw_classes(["n1", "n2", "n3"], 3, seed=0)
    ('n1', 'n2', 'n3')
    """
    order = torch.randperm(len(known), generator=_stream("classes", seed))
    drawn = sorted(order[:count].tolist())
    return tuple(known[k] for k in drawn)


def digest(source: TinyImageNet) -> str:
    """Return the end of the name of a cached file, by the files and the recipe."""
    return hashlib.md5(f"{RECIPE} {source.fingerprint}".encode(), usedforsecurity=False).hexdigest()


def _found(
    folder: str | os.PathLike[str], seed: int, classes: int, image_size: int
) -> tuple[TinyImageNet, tuple[str, ...]]:
    """Find the files, check the settings against them, and draw the classes."""
    source = find(folder)
    _check_classes(source, classes)
    check_image_size(image_size, SIZE, "Tiny ImageNet")
    return source, draw_classes(sorted(source.train), classes, seed)


class _Plan(NamedTuple):
    """Which images are made, and what is done to each."""

    paths: list[Path]
    labels: Tensor
    degrees: Tensor | None
    """None leaves images upright, and their corners in place."""
    flips: Tensor
    """UPRIGHT, LEFT_TO_RIGHT or UPSIDE_DOWN."""

    def chunks(self) -> Iterator[_Plan]:
        for start in range(0, len(self.paths), CHUNK):
            some = slice(start, start + CHUNK)
            degrees = self.degrees
            if degrees is not None:
                degrees = degrees[some]
            yield _Plan(self.paths[some], self.labels[some], degrees, self.flips[some])


def _plan(files: Files, chosen: Sequence[str], seed: int, part: str, rotations: int, reflect: bool) -> _Plan:
    """Draw the order, the angles and the flips of one part, each from a stream of its own.

    Rot-TIM and R2-TIM share the streams, so they differ in the flips alone.
    """
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(chosen):  # labels follow the order of the class ids
        paths.extend(files[name])
        labels.extend([label] * len(files[name]))
    order = torch.randperm(len(paths), generator=_stream(f"{part} order", seed))
    order = order.repeat(rotations)
    count = len(order)
    angles = _stream(f"{part} angles", seed)
    degrees = 360 * torch.rand(count, generator=angles, dtype=torch.float64)
    flips = torch.full((count,), UPRIGHT)
    if reflect:
        flips = torch.randint(3, (count,), generator=_stream(f"{part} flips", seed))
    ordered_paths = [paths[k] for k in order.tolist()]
    ordered_labels = torch.tensor(labels)[order]
    return _Plan(ordered_paths, ordered_labels, degrees, flips)


def _build(title: str, train: _Plan, test: _Plan, image_size: int) -> dict[str, Tensor]:
    """Make the images of both parts, with a progress bar on a terminal."""
    images = []
    with progress_bar(f"making {title}", len(train.paths) + len(test.paths)) as advance:
        for plan in (train, test):
            made = torch.empty(len(plan.paths), 3, image_size, image_size, dtype=torch.uint8)
            # in one process: reading and rotating all of Tiny ImageNet takes less than a minute
            for chunk, pixels in zip(plan.chunks(), made.split(CHUNK), strict=True):
                pixels.copy_(_make(chunk, image_size))
                advance(len(pixels))
            images.append(made)
    return {
        "train_x": images[0],
        "train_y": train.labels,
        "test_x": images[1],
        "test_y": test.labels,
    }


def _make(plan: _Plan, image_size: int) -> Tensor:
    """Read, scale, rotate, mask and flip the images of a plan."""
    # float64: a rounding that differs between machines is then next to impossible
    x = read_images(plan.paths).double()
    if image_size != SIZE:  # before the rotation, which then resamples fewer pixels
        x = F.interpolate(x, (image_size, image_size), mode="bilinear", antialias=True)
    if plan.degrees is None:
        return x.round_().clamp_(0, 255).to(torch.uint8)
    x = rotate(x, plan.degrees).round_().clamp_(0, 255)
    x = x.to(torch.uint8)
    x *= _disc(image_size)
    for flip, axis in ((LEFT_TO_RIGHT, 3), (UPSIDE_DOWN, 2)):
        some = plan.flips == flip
        x[some] = x[some].flip(axis)
    return x


def _disc(size: int) -> Tensor:
    """1 where the centre of a pixel lies in the disc that touches the border pixels, else 0.

    Counted in half pixels from the centre, so in whole numbers:

        (2i - n + 1)² + (2j - n + 1)² ≤ (n - 1)²
    """
    square = (2 * torch.arange(size) - size + 1) ** 2
    return (square + square[:, None] <= (size - 1) ** 2).to(torch.uint8)


def _check_classes(source: TinyImageNet, classes: int) -> None:
    there = len(source.train)
    if 2 <= classes <= there:
        return
    remedy = f"use --set classes={there}"
    if classes > there >= 2:
        remedy += ", or add the missing ones"
    raise ValueError(f"{classes} classes were asked for, but {source.folder} holds {there}: {remedy}")


def _stream(purpose: str, seed: int) -> torch.Generator:
    return generator("tim", purpose, seed, bits=64)
