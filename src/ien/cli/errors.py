"""What a user can mend is told in one line: for every command of the shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

__all__ = ["fail", "one_line_errors"]


@contextmanager
def one_line_errors(*also: type[Exception]) -> Iterator[None]:
    """Bad input is one line and exit code 2; IEN_TRACEBACK=1 shows where it came from.

    ``also`` are kinds of errors that are bad input for this command only.
    """
    mendable: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, ModuleNotFoundError, *also)
    try:
        yield
    except BrokenPipeError:  # the reader, such as head, has seen enough
        raise
    except mendable as error:
        if os.environ.get("IEN_TRACEBACK"):
            raise
        fail(f"error: {error.args[0] if isinstance(error, KeyError) else error}", 2)


def fail(message: str, code: int) -> NoReturn:
    typer.echo(" ".join(message.splitlines()), err=True)
    raise typer.Exit(code) from None
