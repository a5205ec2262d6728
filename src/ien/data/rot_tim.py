"""Rot-TIM and R2-TIM: from Tiny ImageNet to images that are rotated, and rotated and flipped."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._files import generator
from .augment import rotate
from .cache import cached
from .dataset import Dataset
from .tiny_imagenet import SIZE, TinyImageNet, find, need_pillow, read_images

__all__ = ["digest", "draw_classes", "r2_tim", "rot_tim"]

RECIPE = 1
"""Part of the name of a cached file: to be raised when the same sources give other tensors."""
CHUNK = 50
"""Images that a worker makes at once: many more no longer fit the processor's caches."""

Array = np.ndarray[Any, Any]


def rot_tim(
    folder: str | os.PathLike[str],
    seed: int = 0,
    classes: int = 100,
    image_size: int = SIZE,
    mask: bool = True,
    reflect: bool = False,
) -> Dataset:
    """Tiny ImageNet rotated: each training image by one angle, each validation image by two, to test on.

    ``seed`` draws the classes, the angles, uniform over the circle, and the order, which mixes the classes.
    Labels follow the ids of the drawn classes. Of N test images, i and i + N/2 show the same.
    Images are turned about their centre, bilinear, with zeros from outside. ``mask`` sets what is outside the
    disc to 0: the disc through the middle pixel of each side, whose pixels are all read from inside an image.
    ``image_size`` below 64 scales the upright image down first, bilinear and antialiased.

    Made once, by as many processes as there are processors, and kept in the cache folder, memory-mapped. The
    ids of the drawn classes and the settings are in the metadata of the file.
    """
    source = find(folder)
    _check(source, classes, image_size)
    chosen = draw_classes(sorted(source.train), classes, seed)
    train, test = (classes * len(part[chosen[0]]) for part in (source.train, source.val))
    layout = {
        "train_x": (torch.uint8, (train, 3, image_size, image_size)),
        "train_y": (torch.int64, (train,)),
        "test_x": (torch.uint8, (2 * test, 3, image_size, image_size)),
        "test_y": (torch.int64, (2 * test,)),
    }
    name = "r2-tim" if reflect else "rot-tim"
    settings = f"seed{seed}-{classes}classes-{image_size}px-{'masked' if mask else 'unmasked'}"
    about = {"seed": seed, "image_size": image_size, "mask": mask, "reflect": reflect, "classes": chosen}

    def make() -> Mapping[str, Tensor]:
        need_pillow()
        parts = {
            "train": _part(source.train, chosen, seed, "train", 1, reflect),
            "test": _part(source.val, chosen, seed, "test", 2, reflect),
        }
        return _build(name, parts, image_size, mask, os.cpu_count() or 1)

    tensors = cached(f"{name}-{settings}-{digest(source)}", layout, make, about)
    return Dataset(name, "generated", **tensors, classes=classes)


def r2_tim(
    folder: str | os.PathLike[str],
    seed: int = 0,
    classes: int = 100,
    image_size: int = SIZE,
    mask: bool = True,
) -> Dataset:
    """The images of :func:`rot_tim`, the same classes, angles and order, with flips drawn beside them.

    The paper flips "some images at random along the horizontal or vertical axis" and names no shares: here a
    third stays as it is, a third is mirrored left to right and a third upside down, after being turned.
    """
    return rot_tim(folder, seed, classes, image_size, mask, reflect=True)


def draw_classes(known: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    """``count`` of the known class ids, drawn by ``seed``, in their order.

    >>> draw_classes(["n1", "n2", "n3"], 3, seed=0)
    ('n1', 'n2', 'n3')
    """
    drawn = torch.randperm(len(known), generator=_generator(seed, "classes"))[:count]
    return tuple(known[k] for k in sorted(drawn.tolist()))


def digest(source: TinyImageNet) -> str:
    """The end of the name of a cached file: other files, or another recipe, never meet an old cache."""
    return hashlib.md5(f"{RECIPE} {source.fingerprint}".encode(), usedforsecurity=False).hexdigest()


class _Part(NamedTuple):
    """Which images, and what is done to each; arrays, as tensors would go to workers in shared memory."""

    paths: list[Path]
    labels: Array
    degrees: Array
    flips: Array
    """0 none, 1 left to right, 2 upside down."""

    def chunks(self) -> Iterator[_Part]:
        for start in range(0, len(self.paths), CHUNK):
            some = slice(start, start + CHUNK)
            yield _Part(self.paths[some], self.labels[some], self.degrees[some], self.flips[some])


def _part(
    files: Mapping[str, Sequence[Path]],
    chosen: Sequence[str],
    seed: int,
    purpose: str,
    variants: int,
    reflect: bool,
) -> _Part:
    paths = [path for name in chosen for path in files[name]]
    labels = np.repeat(np.arange(len(chosen)), [len(files[name]) for name in chosen])
    once = torch.randperm(len(paths), generator=_generator(seed, f"{purpose} order")).numpy()
    order, count = np.tile(once, variants), variants * len(paths)
    degrees = 360 * torch.rand(count, generator=_generator(seed, f"{purpose} angles"), dtype=torch.float64)
    flips = torch.randint(3 if reflect else 1, (count,), generator=_generator(seed, f"{purpose} flips"))
    return _Part([paths[k] for k in order], labels[order], degrees.numpy(), flips.numpy())


def _build(
    title: str, parts: Mapping[str, _Part], image_size: int, mask: bool, workers: int
) -> dict[str, Tensor]:
    """``{name}_x`` and ``{name}_y`` of every part, the same with any number of workers."""
    chunks = [chunk for part in parts.values() for chunk in part.chunks()]
    made = torch.empty(sum(len(c.paths) for c in chunks), 3, image_size, image_size, dtype=torch.uint8)
    done = 0
    with _mapping(min(workers, len(chunks))) as mapped:
        results = mapped(partial(_make, image_size=image_size, mask=mask), chunks)
        with _progress(title, len(made)) as advance:  # its thread begins when the processes are there
            for pixels in results:
                made[done : done + len(pixels)] = torch.from_numpy(pixels)
                done += len(pixels)
                advance(len(pixels))
    images = made.split([len(part.paths) for part in parts.values()])
    return {
        **{f"{name}_x": x for name, x in zip(parts, images, strict=True)},
        **{f"{name}_y": torch.from_numpy(part.labels) for name, part in parts.items()},
    }


def _make(part: _Part, image_size: int, mask: bool) -> Array:
    # float64: a rounding that differs between machines is then next to impossible
    x = read_images(part.paths).double()
    if image_size != SIZE:
        x = F.interpolate(x, (image_size, image_size), mode="bilinear", antialias=True)
    x = rotate(x, torch.from_numpy(part.degrees)).round_().clamp_(0, 255).to(torch.uint8)
    if mask:
        x *= _disc(image_size)
    for flip, axis in ((1, 3), (2, 2)):
        some = torch.from_numpy(part.flips == flip)
        x[some] = x[some].flip(axis)
    return x.numpy()


def _disc(size: int) -> Tensor:
    """1 where the centre of a pixel lies in the disc through the middle of the border pixels, else 0."""
    square = (2 * torch.arange(size) - size + 1) ** 2  # whole numbers: nothing is rounded
    return (square + square[:, None] <= (size - 1) ** 2).to(torch.uint8)


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]]:
    """``map`` over worker processes, in the order of the input."""
    if workers == 1 or multiprocessing.current_process().daemon:  # which may have no children
        yield map
        return
    # a fork does not run the user's script again; elsewhere than on Linux libraries do not survive it
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker)

    def mapped(function: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        with warnings.catch_warnings():  # of threads and forks: the workers use no lock of another thread
            warnings.simplefilter("ignore", DeprecationWarning)
            return pool.map(function, items)

    try:
        yield mapped
    except BrokenProcessPool:
        raise OSError(
            "a worker process was ended from outside, for want of memory perhaps: try again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"making {title}", total=total)
        yield lambda count: bar.advance(task, count)


def _check(source: TinyImageNet, classes: int, image_size: int) -> None:
    there = len(source.train)
    if not 2 <= classes <= there:
        raise ValueError(
            f"{classes} classes are asked for, and {source.folder} holds {there}: take --set classes={there}"
            f"{'' if there < 2 or classes < 2 else ', or put the missing ones there'}"
        )
    if not 8 <= image_size <= SIZE:
        raise ValueError(
            f"image_size must be 8 to {SIZE}, the size of Tiny ImageNet; got {image_size}: "
            f"take --set image_size={min(max(image_size, 8), SIZE)}"
        )


def _generator(seed: int, purpose: str) -> torch.Generator:
    # each purpose its own stream; Rot-TIM and R2-TIM share them, so that they differ in the flips alone
    return generator("tim", purpose, seed, bits=64)
