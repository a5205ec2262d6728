"""Turns user errors into one-line messages for all commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

__all__ = ["OneLineErrors", "fail", "one_line_errors"]

USER_ERROR = 2
"""Exit code for bad input, as for an unknown option."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class OneLineErrors(TyperGroup):
    """A group of commands whose user errors end in one line, whatever the command."""

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


@contextmanager
def one_line_errors(*also: type[Exception]) -> Iterator[None]:
    """Print bad input as one line and exit with code 2.

    With ``IEN_TRACEBACK=1`` in the environment the traceback is shown instead.

    Args:
        also: More kinds of exceptions that mean bad input inside this block.
    """
    user_errors: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, ModuleNotFoundError, *also)
    try:
        yield
    except (BrokenPipeError, typer.Exit):
        # the first: whoever reads our output, such as head, has seen enough; the second, a
        # RuntimeError, is how typer ends a command
        raise
    except user_errors as error:
        if os.environ.get("IEN_TRACEBACK"):
            raise
        message = str(error)
        if isinstance(error, KeyError):  # str() would put quotes around its message
            message = str(error.args[0])
        fail(f"error: {message}", USER_ERROR)


def fail(message: str, code: int) -> NoReturn:
    """Print the message on standard error, in one line, and exit with this code."""
    # messages of torch may have many lines; whoever reads a log should find one
    typer.echo(" ".join(message.splitlines()), err=True)
    raise typer.Exit(code) from None
