"""Several processes that share each batch: all that training knows of torch.distributed."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["ALONE", "Processes", "joined"]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those that share each batch."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """Return this process's part of ``n`` images: contiguous and as even as possible.

        >>> [Processes(rank, 3).share(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        # floor(rank · n / count) is where a share begins: no gaps, no overlaps, for any n
        return slice(self.rank * n // self.count, (self.rank + 1) * n // self.count)

    def device(self, name: str) -> torch.device:
        """Return where this process computes: on a machine with GPUs each process has its own."""
        device = torch.device(name)
        if self.count > 1 and device.type == "cuda":
            if device.index is not None:
                raise ValueError(f"under torchrun each process has its own GPU: give cuda, not {name}")
            # torchrun counts the processes of each machine from 0, as CUDA does its GPUs
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        return device

    def synchronise_norms(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return a model whose BatchNorms normalise by the whole batch, where torch can do that."""
        if self.count == 1 or device.type != "cuda":
            # on the CPU there is none: each process then normalises by its own share of the batch
            return model
        synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return synchronised

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return a model whose backward pass averages the gradients over all processes."""
        if self.count == 1:
            return model
        if device.type == "cuda":
            return nn.parallel.DistributedDataParallel(model, device_ids=[device])
        return nn.parallel.DistributedDataParallel(model)

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor on the CPU over all processes."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Say whether the flag is set in any process."""
        (found,) = self.any_of(flag)
        return found

    def any_of(self, *flags: bool) -> list[bool]:
        """Say of each flag whether it is set in any process."""
        total = self.sum(torch.tensor(flags, dtype=torch.float32))
        return [count > 0 for count in total.tolist()]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.any(False)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the first process.

        Only that process looks into the run folder, which others may not see or see too early.
        """
        box: list[Any] = [None]
        if self.first:
            box = [make()]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]


ALONE = Processes()
"""No other process shares the batches."""


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that torchrun started; without it, this one is alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"  # sums of losses and flags are on the CPU
    # so long, because the others wait while the first one tests
    dist.init_process_group(backend, timeout=timedelta(days=1))
    try:
        yield Processes(dist.get_rank(), count)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # a wrapped model must not outlive its group
        raise
    finally:
        gc.collect()  # wrapped models in reference cycles
        dist.destroy_process_group()
