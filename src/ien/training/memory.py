"""Out of memory: whatever torch or Python raise for it becomes one error that says what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["OutOfMemory", "is_out_of_memory", "memory_errors"]

CPU_WORDS = ("not enough memory", "can't allocate memory", "Cannot allocate memory")
"""How torch's allocator of the CPU says it, in a RuntimeError like any other."""
ONEDNN_WORDS = (
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory object",
)
"""All that oneDNN, torch's library of convolutions, says when it cannot get its working space."""


class OutOfMemory(Exception):
    """There is not enough memory for a run; whatever it saved is still there."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    return message in ONEDNN_WORDS or any(words in message for words in CPU_WORDS)


@contextmanager
def memory_errors(advise: Callable[[], str]) -> Iterator[None]:
    """Turn errors for want of memory into an :class:`OutOfMemory` of one line, with advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error) or "MemoryError").splitlines()[0]
        raise OutOfMemory(f"out of memory ({reason}): {advise()}") from error
