"""Several processes: the one seam between the training loop and torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["ALONE", "Processes", "joined"]


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
        total = values.cuda() if dist.get_backend() == "nccl" else values.clone()
        dist.all_reduce(total)
        return total.cpu()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.count == 1 else bool(self.sum(torch.tensor(float(flag))))

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()
