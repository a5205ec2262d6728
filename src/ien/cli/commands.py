"""How all commands behave: errors in one line, ``-h``, and help that fits 80 columns."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .errors import Failed, one_line_errors, refuse_exits

__all__ = ["Commands"]

Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETION = ("install_completion", "show_completion")
"""Typer's two options for shells, which the end of ``ien --help`` names."""


class Commands(typer.Typer):
    """A group of commands, such as ``ien plot``.

    Args:
        help: What they are for.
        settings: Whatever else :class:`typer.Typer` takes.
    """

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(
            help=help,
            cls=_Group,
            no_args_is_help=True,
            context_settings={"help_option_names": ["-h", "--help"]},
            # locals of a traceback would print whole tensors
            pretty_exceptions_show_locals=False,
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Register a function as a command; its docstring is the help."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    """A command whose help is laid out our way."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = _joined_lines(self.help)

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))


class _Group(TyperGroup):
    """A group whose commands end in one line after a user error, whatever the command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        _allow_any_character()
        with _printed_errors():  # --help is printed here, and the output may be full
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _printed_errors(), refuse_exits():
            return super().invoke(ctx)


def _allow_any_character() -> None:
    """Let a terminal or file that does not know a character show a question mark in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


@contextmanager
def _printed_errors() -> Iterator[None]:
    """Print the line of a user error after the command has ended: ``--quiet`` does not hide it."""
    try:
        with one_line_errors():
            yield
    except Failed as failed:
        typer.echo(failed.message, err=True)
        raise typer.Exit(failed.exit_code) from None


def _joined_lines(text: str | None) -> str:
    """Join the lines of each paragraph: typer would break them once more where the terminal ends.

    >>> _joined_lines("One\\ntwo.\\n\\nThree.")
    'One two.\\n\\nThree.'
    """
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def _plain_flags(params: list[Any]) -> list[Any]:
    """Show flags such as ``--help`` without ``<bool>``, and leave those of shells out."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if param.name in COMPLETION:
            param.hidden = True
    return params
