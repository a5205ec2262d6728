"""A process of its own, with limits of time and memory, that may be killed.

Children are forked from a server that has torch loaded, so that one takes milliseconds to start.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ien.cli import app

MAX_SECONDS = 10
"""Of computing; a busy machine may take longer."""
MAX_WAIT = 240
"""Seconds until a child that does nothing, such as one that waits for a pipe, is given up."""
MAX_MEMORY = 1 << 30
"""Bytes more than the child has when it starts."""


PRELOADED = [
    "torch._dynamo",
    "torch.utils.flop_counter",
    "torch.utils.tensorboard",
    "torch.export.pt2_archive",
]
PRELOADED += ["matplotlib.pyplot", "onnx", "onnxruntime", "onnxscript", "pydantic", "PIL.Image"]
PRELOADED += ["rich._emoji_codes", "safetensors.torch", "tensorboard", "typer._adapters"]
PRELOADED += ["tests.torture.commands", "tests.torture.readers"]
"""Modules that would take each child seconds to load."""


class Outcome(NamedTuple):
    """How a child ended."""

    code: int
    """Its exit code; minus the signal that ended it."""
    output: str
    """What it wrote to standard output and standard error."""

    @property
    def refused(self) -> bool:
        """Whether it ended as it should on bad input: exit code 2, and one line."""
        return self.code == 2 and self.said.startswith("error: ")

    @property
    def said(self) -> str:
        """The last line; everything if it is a traceback."""
        lines = self.output.strip().splitlines()
        if not lines or "Traceback" in self.output:
            return self.output
        return lines[-1]

    def __str__(self) -> str:
        return f"exit code {self.code}, {self.output[-1500:].strip()!r}"


def call(
    function: Callable[..., object],
    *arguments: Any,
    folder: Path,
    limited: bool = False,
    seconds: int = MAX_SECONDS,
) -> Outcome:
    """Call a function of a module in a child that works in ``folder``.

    Args:
        function: What to call.
        arguments: With what.
        folder: The child's working folder; its cache is in there, and what it prints stands beside it.
        limited: Whether to limit computing time and memory.
        seconds: The limit of computing time.
    """
    process = start(function, *arguments, folder=folder, limited=limited, seconds=seconds)
    process.join(MAX_WAIT)
    if process.is_alive():
        process.kill()
        process.join()
    return outcome(process, folder)


def start(
    function: Callable[..., object],
    *arguments: Any,
    folder: Path,
    limited: bool = False,
    seconds: int = MAX_SECONDS,
) -> Any:
    """Start the child of :func:`call`, and do not wait for it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_work, args=(function, arguments, folder, limited, seconds))
    process.start()
    return process


def outcome(process: Any, folder: Path) -> Outcome:
    """How a child ended that worked in a folder."""
    return Outcome(process.exitcode, _printed(folder).read_text(errors="replace"))


def ien_command(*words: str) -> None:
    """The command ``ien`` with these words."""
    app(list(words))


def enter(folder: Path) -> None:
    """Work in a folder, and keep the cache in it."""
    os.chdir(folder)
    os.environ["IEN_CACHE"] = str(folder / "cache")
    os.environ.pop("IEN_DATA", None)
    os.environ["MPLCONFIGDIR"] = str(folder.parent / "matplotlib")
    torch.set_num_threads(1)


def limit(seconds: int = MAX_SECONDS) -> None:
    """Limit computing time and memory of this process from now on."""
    memory = used_memory() + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))


def used_memory() -> int:
    """How many bytes this process has asked for, as RLIMIT_AS counts them."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def tree(folder: Path) -> dict[str, bytes | None]:
    """Path → content of everything in a folder; None for what is no regular file."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        content = None
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = content
    return found


def fresh_copy(source: Path, place: Path) -> Path:
    """A copy of a folder, in place of an earlier one."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, symlinks=True)
    return place


def _printed(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.output")


def _work(
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    folder: Path,
    limited: bool,
    seconds: int,
) -> None:
    output = os.open(_printed(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # the server of the children ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    enter(folder)
    if limited:
        limit(seconds)
    function(*arguments)
    sys.stdout.flush()
