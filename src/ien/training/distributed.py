"""Several processes: the one seam between the training loop and torch.distributed."""

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
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This process's part of ``n`` images: contiguous, as even as possible, none twice, none left out."""
        return slice(self.rank * n // self.count, (self.rank + 1) * n // self.count)

    def device(self, name: str) -> torch.device:
        """Where this process computes: of the GPUs of a machine each process has its own."""
        device = torch.device(name)
        if self.count > 1 and device.type == "cuda":
            if device.index is not None:
                raise ValueError(f"under torchrun each process takes a GPU of its own: give cuda, not {name}")
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        return device

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model whose backward pass averages the gradients over all processes."""
        if self.count == 1:
            return model
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return nn.parallel.DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None
        )

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, of a tensor on the CPU."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.sum(torch.tensor(float(flag))))

    def wait(self) -> None:
        """Go on when all processes are here."""
        self.any(False)

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` returns in the first process, which alone calls it: others may not see its files."""
        box: list[Any] = [make() if self.first else None]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        timeout=timedelta(days=1),  # the others wait while the first one tests
    )
    try:
        yield Processes(dist.get_rank(), count)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # a wrapped model must not outlive its group
        raise
    finally:
        gc.collect()
        dist.destroy_process_group()
