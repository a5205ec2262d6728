"""Turns user errors into one-line messages for all commands."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer

from .._text import printable

__all__ = ["Failed", "fail", "no_model", "one_line_errors", "refuse_exits"]

USER_ERROR = 2
"""Exit code for bad input, as for an unknown option."""
PIPE_CLOSED = 141
"""Exit code when nobody reads the output any more: 128 + SIGPIPE, as shells have it."""
MAX_LINE = 2000
"""A longer message is cut in the middle, in characters."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Failed(typer.Exit):
    """Ends a command with a line on standard error, which is shown with ``--quiet`` too."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


@contextmanager
def one_line_errors(*also: type[Exception]) -> Iterator[None]:
    """End a command with one line and exit code 2 on bad input.

    With ``IEN_TRACEBACK=1`` in the environment the traceback is shown instead.

    Args:
        also: More kinds of exceptions that mean bad input inside this block.
    """
    usual_format = warnings.formatwarning
    warnings.formatwarning = _one_line_warning
    user_errors: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, ModuleNotFoundError, *also)
    try:
        yield
    except BrokenPipeError:
        # whoever reads our output, such as head, has seen enough: end without a word, like cat
        _stop_writing()
        raise typer.Exit(PIPE_CLOSED) from None
    except typer.Exit:
        raise  # a RuntimeError, by which typer ends a command
    except user_errors as error:
        if os.environ.get("IEN_TRACEBACK"):
            raise
        _drop_what_cannot_be_written()
        message = str(error)
        if isinstance(error, KeyError):  # str() would put quotes around its message
            message = str(error.args[0])
        fail(f"error: {message}", USER_ERROR)
    finally:
        warnings.formatwarning = usual_format


@contextmanager
def refuse_exits() -> Iterator[None]:
    """End a command with exit code 2 if code inside calls sys.exit, whose 0 would mean success.

    No command of ours does; the code of a model may.
    """
    try:
        yield
    except SystemExit as error:
        fail(f"error: the code of the model called sys.exit({error.code!r}) while it ran", USER_ERROR)


def _one_line_warning(message: Warning | str, *where: Any, **line: Any) -> str:
    """Write a warning without the line of code that it came from, which users cannot mend."""
    return f"warning: {printable(' '.join(str(message).splitlines()))}\n"


def _drop_what_cannot_be_written() -> None:
    """Empty the buffer of standard output, and give up on it if its disk is full."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        _stop_writing()


def _stop_writing() -> None:
    """Send what is left in the buffer nowhere, so that Python does not complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is no file, as in a notebook
        pass
    finally:
        os.close(nowhere)


def fail(message: str, code: int) -> NoReturn:
    """End the command with this line on standard error and this exit code."""
    # messages of torch may have many lines; whoever reads a log should find one
    line = printable(" ".join(message.splitlines()))
    if len(line) > MAX_LINE:  # what was given may be long; what to do about it stands at the end
        line = f"{line[: MAX_LINE // 2]} … {line[-MAX_LINE // 2 :]}"
    raise Failed(line, code) from None


def no_model(target: str) -> ValueError:
    """Return the error about a target that names neither a run folder nor a function.

    >>> no_model("net.py")
    ValueError('name the function of net.py that makes the model, such as net.py:build')
    """
    if target.endswith(".py"):
        return ValueError(f"name the function of {target} that makes the model, such as {target}:build")
    form = "a function in a code file: code.py:build"
    if ":" not in target and not Path(target).exists():
        return ValueError(f"there is no run folder {target}; a model is a run folder, or {form}")
    return ValueError(f"a model is a run folder, or {form}; got {target!r}")
