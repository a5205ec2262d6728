"""Ctrl-C and a polite kill wait for the end of a step; a second one does not."""

from __future__ import annotations

import signal
import threading

import pytest

from ien._stopping import stop_requests

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_interrupts_nothing(number: signal.Signals) -> None:
    with stop_requests() as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop == [number]


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_interrupts_at_once(second: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), stop_requests():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(second)
        pytest.fail("this line must not be reached")


def test_signals_do_afterwards_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="of the block"), stop_requests():
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ValueError("of the block")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_in_another_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen = []

    def work() -> None:
        with stop_requests() as stop:
            seen.append((list(stop), [signal.getsignal(number) for number in SIGNALS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [([], before)]
