"""Good files, and who reads them: what a mutated or hostile file is given to."""

from __future__ import annotations

import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import ien
import ien.data
from ien._files import digest
from ien.data import cache, mnist, stl10, tiny_imagenet
from ien.experiments.describe import describe_run
from ien.experiments.tables import table_rows
from ien.measuring.image_folder import find_images, image_batches
from ien.measuring.weights import read_weights
from ien.tracking.data.clips import got10k, otb
from ien.training import checkpoint, run_folder
from tests.helpers import toy, toy_runs
from tests.helpers.sequences import box_lines, make_got10k, make_otb
from tests.helpers.tiny import idx, make_stl10, make_tiny_imagenet, write_gz
from tests.torture.commands import one_run, small_net

SMALL_RUN: dict[str, Any] = {"epochs": 1, "cycle_epochs": 1, "train_images": 32}
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
LAYOUT = {"x": (torch.uint8, (4, 8, 8))}


class Reader(NamedTuple):
    """A file, who makes a good one, and who reads it."""

    file: str
    """Its path in the folder."""
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    """Returns what it read, or None if that may differ from what was written."""


def fingerprint(weights: dict[str, Any]) -> str:
    """The digest of tensors and numbers, in the order of their names."""
    parts = []
    for name in sorted(weights):
        parts.append(name.encode())
        parts.append(pickle.dumps(torch.as_tensor(weights[name]).tolist()))
    return digest(*parts)


def make_run(folder: Path) -> None:
    toy_runs.train(folder / "run", **SMALL_RUN)
    shutil.rmtree(folder / "run" / "tensorboard", ignore_errors=True)


def make_experiment(folder: Path) -> None:
    """The run folder of an experiment that ``ien show`` knows, in place of a toy's."""
    with suppress(SystemExit):  # by which typer ends every command
        one_run()
    (run,) = (folder / "runs").glob("*/*/*")
    shutil.rmtree(run / "tensorboard", ignore_errors=True)
    run.rename(folder / "run")


def show(folder: Path) -> None:
    describe_run(folder / "run")
    run_folder.read_versions(folder / "run")
    run_folder.begun_on(folder / "run")


def go_on(folder: Path) -> None:
    """What ``ien resume`` does first."""
    run_folder.read_metrics(folder / "run")
    run_folder.cut_metrics(folder / "run", 1)


def restore(folder: Path) -> str:
    task = toy.task(**SMALL_RUN)
    progress = checkpoint.restore(folder / "run", task)
    moments = {}
    for number, kept in enumerate(task.optimizer.state.values()):
        for name, value in kept.items():
            moments[f"{number} {name}"] = value
    place = {"epoch": progress.epoch, "step": progress.step, "seconds": progress.seconds}
    return fingerprint(task.network.state_dict() | moments | place)


def load(folder: Path) -> str:
    return fingerprint(ien.load(folder / "run").state_dict())


def tables(folder: Path) -> None:
    run_folder.read_result(folder / "run")
    table_rows("rot-mnist", folder / "run")


def make_cache(folder: Path) -> None:
    read_cache(folder)


def read_cache(folder: Path) -> str:
    def make() -> dict[str, torch.Tensor]:
        return {"x": torch.arange(256).view(4, 8, 8).to(torch.uint8)}

    return fingerprint(cache.cached("toy", LAYOUT, make))


def make_weights(folder: Path) -> None:
    torch.save({"state_dict": small_net().state_dict()}, folder / "weights.pth")


def weights(folder: Path) -> None:
    read_weights(folder / "weights.pth")


def make_canonical(folder: Path) -> None:
    images = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    ien.Canonicalize(small_net(), "rot4").fit(images, steps=1, seed=1).save(folder / "upright.safetensors")


def canonical(folder: Path) -> None:
    ien.Canonicalize.load(small_net(), folder / "upright.safetensors")


def make_adapting(folder: Path) -> None:
    adapt(folder)


def adapt(folder: Path) -> None:
    images = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    ien.adapt(small_net(), images, "rot4", 1e-6, folder=folder / "state", batch_size=8, progress=False)


def make_picture(suffix: str) -> Callable[[Path], None]:
    return lambda folder: Image.fromarray(PIXELS).save(folder / f"picture.{suffix}")


def pictures(folder: Path) -> None:
    for _ in image_batches(find_images(folder), (3, 8, 8)):
        pass


def make_idx(folder: Path) -> None:
    (folder / "images").write_bytes(idx(PIXELS))


def read_idx(folder: Path) -> None:
    mnist.read_idx(folder / "images", PIXELS.shape)


def make_idx_gz(folder: Path) -> None:
    write_gz(folder / "images.gz", idx(PIXELS))


def read_idx_gz(folder: Path) -> None:
    mnist.read_idx(folder / "images.gz", PIXELS.shape)


def make_otb_clip(folder: Path) -> None:
    make_otb(folder / "A", box_lines(3), [1, 2, 3], empty=False)


def read_otb(folder: Path) -> None:
    for clip in otb(folder):
        len(clip.boxes)


def make_got_clips(folder: Path) -> None:
    make_got10k(folder / "A", box_lines(3), 3, absence=[0, 0, 1], cover=[8, 7, 6])


def read_got(folder: Path) -> None:
    for clip in got10k(folder):
        len(clip.boxes)


def make_zip(folder: Path) -> None:
    place = make_tiny_imagenet(folder, classes=1, train=2, val=1)
    with zipfile.ZipFile(folder / "tiny.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(place.rglob("*")):
            archive.write(path, path.relative_to(folder))
    shutil.rmtree(place)


def unpack_zip(folder: Path) -> None:
    shutil.rmtree(tiny_imagenet.unpack(folder / "tiny.zip", folder))


def make_tar(folder: Path) -> None:
    make_stl10(folder, 1, 1)
    with tarfile.open(folder / "stl10.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder / "stl10_binary", "stl10_binary")
    shutil.rmtree(folder / "stl10_binary")


def unpack_tar(folder: Path) -> None:
    shutil.rmtree(stl10.unpack(folder / "stl10.tar.gz", folder))


READERS = {
    "config.json": Reader("run/config.json", make_experiment, show),
    "metrics.jsonl": Reader("run/metrics.jsonl", make_run, go_on),
    "result.json": Reader("run/result.json", make_run, tables),
    "last.pt": Reader("run/last.pt", make_run, restore),
    "model.safetensors": Reader("run/model.safetensors", make_run, load),
    "a cache": Reader("cache/toy.safetensors", make_cache, read_cache),
    "weights.pth": Reader("weights.pth", make_weights, weights),
    "a canonicalizer": Reader("upright.safetensors", make_canonical, canonical),
    "adapting.pt": Reader("state/adapting.pt", make_adapting, adapt),
    "idx": Reader("images", make_idx, read_idx),
    "idx.gz": Reader("images.gz", make_idx_gz, read_idx_gz),
    "OTB": Reader("A/groundtruth_rect.txt", make_otb_clip, read_otb),
    "GOT-10k boxes": Reader("A/groundtruth.txt", make_got_clips, read_got),
    "GOT-10k labels": Reader("A/cover.label", make_got_clips, read_got),
    "GOT-10k list": Reader("list.txt", make_got_clips, read_got),
    "zip": Reader("tiny.zip", make_zip, unpack_zip),
    "tar.gz": Reader("stl10.tar.gz", make_tar, unpack_tar),
}
for suffix in ("png", "jpg", "gif", "tiff", "bmp", "webp", "ppm"):
    READERS[suffix] = Reader(f"picture.{suffix}", make_picture(suffix), pictures)

JSON = {"config.json", "metrics.jsonl", "result.json"}
"""Readers whose files are mutated field by field, too."""
