"""User errors end in one line; errors of the program keep their traceback."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ien.cli.errors import Failed, fail, one_line_errors, refuse_exits


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


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TypeError("a bug")])
def test_other_errors_pass_through(error) -> None:
    with pytest.raises(type(error)) as caught, one_line_errors():
        raise error
    assert caught.value is error


def test_a_block_may_exit_as_it_likes() -> None:
    with pytest.raises(Failed) as caught, one_line_errors(RuntimeError):
        fail("stopped", 130)
    assert (caught.value.exit_code, caught.value.message) == (130, "stopped")


def test_a_model_that_calls_sys_exit_does_not_end_the_command_with_success() -> None:
    for code in (0, None, 5):
        with pytest.raises(Failed) as caught, refuse_exits():
            sys.exit(code)
        assert caught.value.exit_code == 2
        assert caught.value.message == f"error: the code of the model called sys.exit({code}) while it ran"


def test_control_characters_of_a_message_are_written_out_and_long_ones_cut() -> None:
    with pytest.raises(Failed) as caught:
        fail("error: \x1b]0;title\x07", 2)
    assert caught.value.message == r"error: \x1b]0;title\x07"
    with pytest.raises(Failed) as caught:
        fail(f"error: {'9' * 100_000}: use cpu", 2)
    assert len(caught.value.message) < 2100
    assert caught.value.message.startswith("error: 999") and caught.value.message.endswith("9: use cpu")


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_a_command_quietly() -> None:
    command = [sys.executable, "-m", "ien", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as head does
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (141, b"")


@pytest.mark.slow
def test_a_terminal_without_dashes_shows_a_table_all_the_same() -> None:
    records = Path(__file__).parents[2] / "results"
    done = subprocess.run(
        [sys.executable, "-m", "ien", "table", "rot-mnist", "--results", str(records)],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout and done.stdout.isascii()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]], ids=" ".join)
def test_a_full_disk_behind_the_output_is_one_line(words, unbuffered) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ien", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr == "error: [Errno 28] No space left on device\n"


def test_a_warning_is_one_line_without_the_code_that_it_came_from() -> None:
    where = (UserWarning, "file.py", 1)
    with one_line_errors():
        assert warnings.formatwarning("few\nchannels", *where) == "warning: few channels\n"
    assert "file.py" in warnings.formatwarning("few channels", *where)  # as it was
