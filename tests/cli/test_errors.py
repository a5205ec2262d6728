"""User errors end in one line; errors of the program keep their traceback."""

from __future__ import annotations

import pytest
import typer

from ien.cli.errors import fail, one_line_errors


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad\nvalue"), "error: bad value\n"),
        (KeyError("no layer 'x'"), "error: no layer 'x'\n"),  # without the quotes that str() adds
        (FileNotFoundError("no file"), "error: no file\n"),
        (ModuleNotFoundError("needs av"), "error: needs av\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_user_error_is_one_line_and_exit_code_2(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        raise error
    assert caught.value.exit_code == 2 and capsys.readouterr().err == line


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TypeError("a bug"), BrokenPipeError()])
def test_other_errors_pass_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, one_line_errors():
        raise error
    assert caught.value is error


def test_a_block_may_name_more_user_errors_and_still_exit_as_it_likes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as caught, one_line_errors(RuntimeError):
        raise RuntimeError("the model fails")
    assert caught.value.exit_code == 2 and capsys.readouterr().err == "error: the model fails\n"
    with pytest.raises(typer.Exit) as caught, one_line_errors(RuntimeError):
        fail("stopped", 130)
    assert caught.value.exit_code == 130 and capsys.readouterr().err == "stopped\n"


def test_the_traceback_is_there_for_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IEN_TRACEBACK", "1")
    with pytest.raises(ValueError, match="bad"), one_line_errors():
        raise ValueError("bad")
