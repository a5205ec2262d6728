"""Ratios of things that take turns, with their interval over rounds, and the memory of a step.

Machines are noisy, so in every round each side runs once, next to the other, and the ratios of the rounds
are compared: their median, and the quartiles on both sides of it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]


@dataclass
class Row:
    """One line of a table of ratios."""

    what: str
    goal: str
    """Such as ``≤ 1.05``; – for none."""
    value: float
    detail: str
    low: float | None = None
    """The lower quartile over the rounds; None for what is not a ratio of times."""
    high: float | None = None

    @property
    def reached(self) -> bool:
        if self.goal == "–":
            return True
        sign, bound = self.goal.split()
        if sign == "≤":
            return self.value <= float(bound)
        return self.value >= float(bound)

    @property
    def interval(self) -> str:
        if self.low is None:
            return ""
        return f"{self.low:.2f}–{self.high:.2f}"


@dataclass
class Compared:
    """The medians of two sides in seconds, and the median and quartiles of their ratios."""

    slow: float
    fast: float
    value: float
    low: float
    high: float

    def row(self, what: str, goal: str, detail: str = "") -> Row:
        """Make a line of a table; its detail are milliseconds unless it is given."""
        detail = detail or f"{milliseconds(self.slow)} / {milliseconds(self.fast)}"
        return Row(what, goal, self.value, detail, self.low, self.high)


def milliseconds(seconds: float) -> str:
    decimals = 0 if seconds > 0.02 else 2
    return f"{seconds * 1e3:.{decimals}f} ms"


def seconds_of(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def take_turns(
    runs: Mapping[str, Run], rounds: int, measured: Callable[[Run], float] = seconds_of
) -> dict[str, list[float]]:
    """Run each once in every round, after one that is not counted; return the seconds of each round.

    Every other round goes backwards, so that nobody always runs after the same neighbour.
    """
    for run in runs.values():
        run()
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            seconds[name].append(measured(runs[name]))
        names.reverse()
    return seconds


def compared(slow: Iterable[float], fast: Iterable[float]) -> Compared:
    """Compare the seconds of two sides, round by round."""
    slow, fast = list(slow), list(fast)
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Compared(statistics.median(slow), statistics.median(fast), middle, low, high)


def ratio(slow: Run, fast: Run, rounds: int) -> Compared:
    """Let both take turns, and compare them."""
    seconds = take_turns({"slow": slow, "fast": fast}, rounds)
    return compared(seconds["slow"], seconds["fast"])


def peak_memory(step: Run) -> float:
    """Megabytes of tensors alive at the worst moment of a step, beyond those alive before it."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(trace))
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    changes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(accumulate(changes), default=0) / 1e6


def in_new_process(*arguments: str, **variables: str) -> str:
    """Run Python with these arguments and environment variables, and return what it prints."""
    environment = os.environ | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
