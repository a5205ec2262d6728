"""Ctrl-C between two steps of training, not within one, so that what is saved is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_requests"]


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C or a polite kill makes non-empty.

    The loop then ends after the step that it is in. A second Ctrl-C interrupts at once.
    """
    requests: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield requests
        return
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
