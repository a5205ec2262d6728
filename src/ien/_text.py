"""How things are written for people: near names, commands, numbers, tables and progress bars."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import math
import reprlib
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "MODEL_ITSELF",
    "SECONDS_BETWEEN_LINES",
    "Table",
    "columns",
    "html_table",
    "markdown_table",
    "nearest",
    "no_attribute",
    "number",
    "printable",
    "progress_bar",
    "short_count",
    "short_repr",
    "to_install",
    "type_name",
    "without_nan",
]

MODEL_ITSELF = "the model itself"
"""What the module that torch calls ``""`` is called in tables and messages."""
MAX_LISTED_NAMES = 12
"""How many known names an error lists if none of them is close to what was given."""
SECONDS_BETWEEN_LINES = 60
"""Between two lines that say how far something is, where there is no terminal to draw a bar on."""
Table = Sequence[Sequence[str]]
"""Cells as text; the first row is the header."""


def nearest(name: str, known: Collection[str], limit: int = MAX_LISTED_NAMES) -> str:
    """End an error message about an unknown name: with the known names close to it, or with all.

    Args:
        name: What was given.
        known: What could have been meant.
        limit: List no more names than this if none is close, and say how many there are.

    >>> nearest("cnn", ["cnn6", "resnet18"]), nearest("x", ["cnn6"])
    ('did you mean cnn6?', 'choose from cnn6')
    >>> nearest("x", ["conv1", "conv2", "conv3"], limit=2)
    'choose from conv1, conv2, … (3 in all)'
    >>> nearest("x", ["", "0.conv"])
    "choose from '', 0.conv"
    """
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if close:
        return f"did you mean {', '.join(close)}?"
    listed = []
    for each in list(known)[:limit]:
        listed.append(each or "''")  # what torch calls the model itself
    if len(listed) < len(known):
        listed.append(f"… ({len(known)} in all)")
    return f"choose from {', '.join(listed)}"


def no_attribute(module: str, name: str, known: Collection[str]) -> AttributeError:
    """Return what a module's ``__getattr__`` raises, with the public names that are close.

    >>> no_attribute("ien", "mesure", ["measure", "doctor"])
    AttributeError("module 'ien' has no attribute 'mesure'; did you mean measure?")
    """
    hint = ""
    if not name.startswith("_"):  # which tools ask for, and people do not
        hint = f"; {nearest(name, known)}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def type_name(value: object) -> str:
    """Name the type of a value, with its article.

    >>> type_name([1]), type_name(OSError()), type_name(None)
    ('a list', 'an OSError', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    if name == "ndarray":
        return "a numpy array (torch.from_numpy converts it)"
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name}"


def short_repr(value: object) -> str:
    """Return ``repr``, cut where it is long or deep: a file may hold anything.

    >>> short_repr("rot4"), short_repr([[[[[1]]]]]), len(short_repr(10**4000)) < 100
    ("'rot4'", '[[[[...]]]]', True)
    """
    shortener = reprlib.Repr()
    shortener.maxlevel = 4
    shortener.maxstring = shortener.maxother = shortener.maxlong = 80
    return shortener.repr(value)


def printable(text: str) -> str:
    r"""Return text with control characters written out, which could move or retitle a terminal.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\n'
    """
    if text.isprintable():
        return text
    shown = []
    for character in text:
        # categories C*: controls, and marks that reverse the direction of the text after them
        if unicodedata.category(character).startswith("C") and character not in "\n\t":
            character = character.encode("unicode_escape").decode("ascii")
        shown.append(character)
    return "".join(shown)


def to_install(extra: str, *packages: str) -> str:
    """Return the command that installs what is missing, for the way in which ``ien`` was installed.

    ``ien`` is on no index, so ``pip install "ien[plots]"`` works nowhere: a checkout that was
    installed with ``pip install -e`` is named by its folder, and for any other installation the
    packages themselves are.

    Args:
        extra: The extra of ``pyproject.toml`` that has the packages.
        packages: What is missing, as pip calls it.
    """
    checkout = _checkout()
    if checkout is None:
        return f"pip install {' '.join(packages)}"
    if checkout == Path.cwd():
        return f'pip install -e ".[{extra}]"'
    return f'pip install -e "{checkout}[{extra}]"'


def _checkout() -> Path | None:
    """Return the folder that ``pip install -e`` was given, if this very code is in it."""
    try:
        origin = importlib.metadata.distribution("ien").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    if origin is None:  # installed from a wheel, or by something other than pip
        return None
    content = json.loads(origin)
    if not content.get("dir_info", {}).get("editable"):
        return None
    folder = Path(url2pathname(urlsplit(content["url"]).path))
    if not Path(__file__).is_relative_to(folder):
        return None
    return folder


def number(value: float | None) -> str:
    """Write a number with two digits, with an exponent if far from 1, and a dash if missing.

    >>> number(0.123), number(1.5e-9), number(None)
    ('0.12', '1.5e-09', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.2g}"
    return f"{value:.1e}"


def readable(value: float | None) -> str:
    """Write a relative error for people: two digits, without an exponent.

    >>> readable(0.00048), readable(1.53), readable(3e-14), readable(0.0), readable(None)
    ('0.00048', '1.5', '≈ 0', '0', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-8:  # rounding in float32
        return "≈ 0"
    if abs(value) < 1e-5:
        return "< 0.00001"
    return f"{float(f'{value:.2g}'):.6f}".rstrip("0").rstrip(".")


def short_count(count: float) -> str:
    """Write a count with three digits and a unit.

    >>> short_count(173_954), short_count(12_300_000), short_count(42)
    ('174 k', '12.3 M', '42')
    """
    if not math.isfinite(count):
        return "–"
    for unit in ("", " k", " M", " G"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def without_nan(value: Any) -> Any:
    """Return nested dicts and lists as JSON can hold them: None in place of NaN and infinity.

    >>> without_nan({"error": math.nan, "interval": (0.1, math.inf)})
    {'error': None, 'interval': [0.1, None]}
    """
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def columns(rows: Table) -> list[str]:
    """Lay out a table as plain lines: the first column flush left, the others flush right.

    Control characters, as the name of a folder may have them, are written out.

    >>> columns([["layer", "error"], ["conv1", "0.5"]])
    ['layer  error', 'conv1    0.5']
    """
    cleaned = []
    for row in rows:
        cleaned.append([printable(" ".join(cell.split())) for cell in row])
    widths = [max(map(len, column)) for column in zip(*cleaned, strict=True)]

    lines = []
    for first, *others in cleaned:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells))
    return lines


def markdown_table(rows: Table, left: int = 1) -> str:
    """Write a table as Markdown, with markup, bars and line breaks in cells made harmless.

    Args:
        rows: The table.
        left: How many columns are flush left; the others are flush right.

    >>> print(markdown_table([["layer", "error"], ["a|b", "0.5"]]))
    | layer | error |
    | --- | ---: |
    | a\\|b | 0.5 |
    """
    header, *body = rows
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    lines = []
    for row in [header, rule, *body]:
        cells = [" ".join(escape(cell, quote=False).replace("|", r"\|").split()) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def html_table(title: str, rows: Table, notes: Sequence[str] = ()) -> str:
    """Write a table as HTML for a notebook, which styles it itself; all text is escaped.

    Args:
        title: What the table is about, a line above it.
        rows: The table; left out if it has a header alone.
        notes: Lines below it.

    >>> print(html_table("Errors", [["layer", "error"], ["a<b", "0.5"]], ["one image"]))
    <div><p>Errors</p>
    <table>
    <thead><tr><th>layer</th><th>error</th></tr></thead>
    <tbody>
    <tr><td>a&lt;b</td><td>0.5</td></tr>
    </tbody>
    </table>
    <p>one image</p></div>
    """
    header, *body = rows
    lines = [f"<p>{escape(title)}</p>"]
    if body:
        lines += ["<table>", f"<thead>{_html_row(header, 'th')}</thead>", "<tbody>"]
        for row in body:
            lines.append(_html_row(row, "td"))
        lines += ["</tbody>", "</table>"]
    if notes:
        lines.append(f"<p>{'<br>'.join(map(escape, notes))}</p>")
    return "<div>" + "\n".join(lines) + "</div>"


def _html_row(cells: Sequence[str], tag: str) -> str:
    inside = []
    for cell in cells:
        inside.append(f"<{tag}>{escape(cell)}</{tag}>")
    return f"<tr>{''.join(inside)}</tr>"


@contextmanager
def progress_bar(
    title: str,
    total: float | None,
    unit: Literal["items", "bytes"] = "items",
    console: Console | None = None,
    shown: bool = True,
    lines: bool = False,
) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal while the block runs, and nothing elsewhere or a line a minute.

    Args:
        title: What is going on, written before the bar.
        total: How much there is to do; None if that is not known.
        unit: Whether items or bytes are counted.
        console: Where to draw it; standard error by default.
        shown: Whether to draw it at all.
        lines: Whether to write a line a minute where there is no terminal, such as in a log file.

    Yields:
        ``advance(count=1, state="")``: ``count`` more are done, and ``state`` is shown behind the
        bar.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = console or Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        # None: what the texts leave of a narrow terminal
        BarColumn(40 if console.width >= 110 else None),
        DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
    with bar:
        task = bar.add_task(title, total=total, state="")

        written = time.monotonic()
        done = 0.0

        def advance(count: float = 1, state: str = "") -> None:
            nonlocal written, done
            bar.update(task, advance=count, state=state)
            done += count
            if not (lines and shown) or console.is_terminal:
                return
            if time.monotonic() - written > SECONDS_BETWEEN_LINES:
                written = time.monotonic()
                of_all = "" if total is None else f"/{total:.0f}"
                line = f"{title} {done:.0f}{of_all} {state}".rstrip()
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield advance
