"""User errors end in one line; errors of the program keep their traceback."""

import pytest

from ien.cli.errors import Failed, fail, one_line_errors


@pytest.mark.parametrize(
    ("error", "more", "line"),
    [
        (ValueError("bad\nvalue"), [], "error: bad value"),
        (KeyError("no layer 'x'"), [], "error: no layer 'x'"),  # without the quotes that str() adds
        (FileNotFoundError("no file"), [], "error: no file"),
        (ModuleNotFoundError("needs av"), [], "error: needs av"),
        (RuntimeError("the model fails"), [RuntimeError], "error: the model fails"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_user_error_is_one_line_and_exit_code_2(error, more, line, monkeypatch) -> None:
    with pytest.raises(Failed) as caught, one_line_errors(*more):
        raise error
    assert (caught.value.exit_code, caught.value.message) == (2, line)
    monkeypatch.setenv("IEN_TRACEBACK", "1")  # the traceback is there for whoever asks
    with pytest.raises(type(error)), one_line_errors(*more):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TypeError("a bug"), BrokenPipeError()])
def test_other_errors_pass_through(error) -> None:
    with pytest.raises(type(error)) as caught, one_line_errors():
        raise error
    assert caught.value is error


def test_a_block_may_exit_as_it_likes() -> None:
    with pytest.raises(Failed) as caught, one_line_errors(RuntimeError):
        fail("stopped", 130)
    assert (caught.value.exit_code, caught.value.message) == (130, "stopped")
