"""Two processes that have joined, as under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ien.training import Processes
from tests.helpers import toy


def together(function: Callable[..., None], path: Path, *arguments: Any) -> None:
    """Run ``function(processes, path, …)`` in two processes that have joined."""
    processes = [toy.start(_member, rank, function, path, arguments) for rank in range(2)]
    assert [toy.finish(process) for process in processes] == [0, 0]


def _member(rank: int, function: Callable[..., None], path: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}/rendezvous", rank=rank, world_size=2)
    function(Processes(rank, 2), path, *arguments)
    dist.barrier()
    dist.destroy_process_group()
