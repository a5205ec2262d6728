"""Ours beside the peers: training steps and inference, all contenders in turn in each round.

Every contender has the layers and channels of the same network; only what makes it equivariant differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import libraries
import torch
from inference import SIZES, WIDTHS, create, exported, forward, images
from loss import authors_step, plain_step, step_with_loss
from timing import Run, compared, milliseconds, peak_memory, take_turns
from torch import nn

import ien

BASE = "CNN"
"""Every ratio is to this contender, in torch without a compiler, on one view of each image."""
THREADS = (1, 2)
TRAINING_BATCH = 64
"""BatchNorm cannot train on one image, so steps have this batch alone."""
INFERENCE_BATCHES = (64, 1)
SIZE_OF = {"cnn6": "28 pixels, 32 first channels", "resnet18": "33 pixels, 16 first channels"}
NOTE = f"""Time relative to the first line of each table, which runs next to the others in every round:
median and, in brackets, quartiles over the rounds. Below 1 is faster. Memory: tensors alive at the worst
moment with 64 images, without the parameters; that of onnxruntime cannot be seen from torch.

All have the layers and channels of the CNN. Training: forward and backward of {TRAINING_BATCH} images (with
one, BatchNorm cannot train); rows with two views see each image twice. The authors' loss is written out by
us from the paper, with its loop over images. e2cnn and escnn are the libraries themselves, the steerable
twin is ours, tied means `ien.make_equivariant`. Networks trained with the loss or with rotated copies run
as the CNN does, and so do tied ones after `ien.make_plain` and steerable ones after their export; the rows
show them as they are before that. `GroupAverage` runs the CNN once for each of four rotations.
"""


@dataclass
class Cell:
    """One contender in one setting."""

    net: str
    mode: str
    batch: int
    threads: int
    contender: str
    seconds: float
    value: float
    low: float
    high: float
    megabytes: float | None = None


def training_steps(name: str) -> dict[str, Run]:
    """Steps of all contenders on the same images."""
    x, y = images(name, TRAINING_BATCH), torch.randint(10, (TRAINING_BATCH,))
    net = create(name)
    runs = {
        BASE: plain_step(net, x, y, views=1),
        "CNN, two views": plain_step(net, x, y, views=2),
        "two views and the loss: ours": step_with_loss(net, x, y),
        "two views and the loss: the authors' loop": authors_step(net, x, y),
        "tied": plain_step(tied(name), x, y, views=1),
    }
    for contender, steerable in steerables(name).items():
        runs[contender] = plain_step(steerable, x, y, views=1)
    runs["CNN, torch.compile"] = plain_step(torch.compile(create(name)), x, y, views=1)
    runs["tied, torch.compile"] = plain_step(torch.compile(tied(name)), x, y, views=1)
    return runs


def inferences(name: str, batch: int) -> dict[str, Run]:
    """Forward passes of all contenders on the same images."""
    x = images(name, batch)
    net = create(name).eval()
    runs = {
        BASE: forward(net, x),
        "made plain": forward(ien.make_plain(tied(name)), x),
        "R4-2-1 (mixed feature groups)": forward(create(name, "4-2-1"), x),
        "GroupAverage": forward(ien.GroupAverage(net, "rot4"), x),
        "tied": forward(tied(name), x),
    }
    for contender, steerable in steerables(name).items():
        runs[contender] = forward(steerable, x)
    runs["CNN, torch.compile"] = forward(torch.compile(create(name).eval()), x)
    runs["CNN, onnxruntime"] = forward(exported(net, images(name, 8)), x)
    runs["R4-2-1, onnxruntime"] = forward(exported(create(name, "4-2-1"), images(name, 8)), x)
    return runs


def tied(name: str) -> nn.Module:
    net = create(name)
    ien.make_equivariant(net, "rot4", images(name, 4), 4)
    return net


def steerables(name: str) -> dict[str, nn.Module]:
    """The steerable twin, and the libraries that are installed."""
    channels, _, _ = SIZES[name]
    options = {"group": "rot4", "width": WIDTHS[name], "num_classes": 10, "in_channels": channels}
    found = {"steerable twin": ien.baselines.create(f"e2cnn-{name}", **options)}
    for library in libraries.LIBRARIES:
        if libraries.is_installed(library):
            found[library] = libraries.create(library, name, WIDTHS[name])
    return found


def measure() -> Iterator[Cell]:
    for library in libraries.LIBRARIES:
        if not libraries.is_installed(library):
            print(f"{library} is not installed: its rows are left out")
    usual = torch.get_num_threads()
    for threads in THREADS:
        torch.set_num_threads(threads)
        for name in SIZES:
            torch.manual_seed(0)
            torch.compiler.reset()
            with_memory = threads == THREADS[-1]
            yield from cells(training_steps(name), name, "training", TRAINING_BATCH, threads, with_memory)
            for batch in INFERENCE_BATCHES:
                with_memory = threads == THREADS[-1] and batch == INFERENCE_BATCHES[0]
                yield from cells(inferences(name, batch), name, "inference", batch, threads, with_memory)
    torch.set_num_threads(usual)


def cells(
    runs: dict[str, Run], net: str, mode: str, batch: int, threads: int, with_memory: bool
) -> Iterator[Cell]:
    """Let all contenders take turns, and compare each with the first."""
    rounds = 100 if batch == 1 else 15
    seconds = take_turns(runs, rounds)
    for contender, values in seconds.items():
        found = compared(values, seconds[BASE])
        megabytes = None
        if with_memory and "onnxruntime" not in contender:
            megabytes = peak_memory(runs[contender])
        yield Cell(
            net,
            mode,
            batch,
            threads,
            contender,
            statistics.median(values),
            found.value,
            found.low,
            found.high,
            megabytes,
        )


def described(cell: Cell) -> str:
    """One line for the terminal."""
    setting = f"{cell.net}, {cell.mode}, batch {cell.batch}, threads {cell.threads}: {cell.contender}"
    return f"{setting:84} {cell.value:6.3f}  ({cell.low:.2f}–{cell.high:.2f}; {milliseconds(cell.seconds)})"


def section(found: list[Cell]) -> str:
    """The tables of the page, one for each network and mode."""
    parts = []
    for net in SIZES:
        for mode in ("training", "inference"):
            parts.append(f"### {net}, {mode}: {SIZE_OF[net]}\n\n{table(found, net, mode)}\n")
    return "\n".join(parts)


def table(found: list[Cell], net: str, mode: str) -> str:
    """A line for each contender, a column for each batch and number of threads."""
    here = [cell for cell in found if cell.net == net and cell.mode == mode]
    settings = sorted({(cell.batch, cell.threads) for cell in here}, key=lambda each: (-each[0], each[1]))
    header = [""]
    for batch, threads in settings:
        header.append(f"{batch} image{'s' * (batch > 1)}, {threads} thread{'s' * (threads > 1)}")
    lines = [[*header, "memory"], ["---", *["---:"] * (len(settings) + 1)]]
    for contender in dict.fromkeys(cell.contender for cell in here):
        own = {(cell.batch, cell.threads): cell for cell in here if cell.contender == contender}
        line = [contender]
        for setting in settings:
            cell = own[setting]
            if contender == BASE:
                line.append(milliseconds(cell.seconds))
            else:
                line.append(f"{cell.value:.2f} ({cell.low:.2f}–{cell.high:.2f})")
        memories = [cell.megabytes for cell in own.values() if cell.megabytes is not None]
        line.append(f"{memories[0]:.0f} MB" if memories else "–")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
