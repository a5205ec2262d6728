"""Any text, for everything that parses text: understood within a second, or refused in one line."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ien
from ien.cli.errors import USER_ERROR, Failed, one_line_errors
from ien.cli.options import read_size
from ien.cli.run import _read_seeds
from ien.cli.track import _read_box
from ien.experiments import find
from ien.loss.feature_groups import FeatureGroups
from ien.training import Config
from ien.training.overrides import change
from tests.torture.tally import Tally

SHORT = 40
"""Texts for each parser in ``make test``."""
FULL = 20_000
SECONDS = 1.0
"""Of computing, for each text."""

CONFIG = Config.of("rot-mnist/ien-r4", "smoke")
PARSERS: dict[str, Callable[[str], object]] = {
    "group": ien.group,
    "feature groups": FeatureGroups.of,
    "--set": lambda text: change(CONFIG, [text]),
    "--size": read_size,
    "--box": _read_box,
    "--seeds": _read_seeds,
    "pattern": find,
}
WORDS = [
    "rot",
    "flip",
    "scale",
    "hflip",
    "vflip",
    "C",
    "D",
    "x",
    "×",
    "-",
    ",",
    ".",
    "/",
    "=",
    ":",
    " ",
    "\t",
]
WORDS += [
    "0",
    "1",
    "4",
    "8",
    "28",
    "224",
    "0.7",
    "1e9",
    "1e999",
    "nan",
    "inf",
    "-1",
    "9" * 30,
    "9" * 5000,
    "٣",
]
WORDS += [
    "*",
    "?",
    "[",
    "]",
    "[!",
    "rot-mnist",
    "ien-r4",
    "tracking",
    "beta",
    "group",
    "width",
    "seed",
    "epochs",
]
WORDS += ["feature_groups", "network.", "true", "none", "\n", "\0", "\x1b[2J", "é", "𝟜"]

TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=8).map("".join))
"""Anything, and words of the parsers in any order."""


class TooSlow(BaseException):
    """A text took longer than it may."""


def too_slow(*arguments: object) -> None:
    raise TooSlow(f"more than {SECONDS} s")


def problem_with(parse: Callable[[str], object], text: str) -> str | None:
    """Parse a text; what is wrong with how that ended."""
    gc.disable()  # it may come upon a million objects of hypothesis, which are not the parser's
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with one_line_errors():
            parse(text)
    except Failed as error:
        if error.exit_code != USER_ERROR or "\n" in error.message or "\x1b" in error.message:
            return f"exit code {error.exit_code}: {error.message!r}"
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        gc.enable()
    return None


@functools.cache
def drawn(count: int) -> list[str]:
    """``count`` texts from hypothesis, the same for all parsers: drawing takes longer than parsing."""
    texts = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(TEXTS)
    def keep(text: str) -> None:
        texts.append(text)

    keep()
    return texts


def parsed(name: str, count: int) -> Tally:
    """Give ``count`` texts to a parser."""
    tally = Tally(f"texts for {name}")
    parse = PARSERS[name]
    before = signal.signal(signal.SIGVTALRM, too_slow)
    try:
        for text in drawn(count):
            tally.add(repr(text[:100]), problem_with(parse, text))
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return tally


@pytest.mark.parametrize("name", PARSERS)
def test_any_text_is_understood_or_refused_in_one_line(name: str) -> None:
    parsed(name, SHORT).check(at_least=SHORT)
