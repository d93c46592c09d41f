"""Signals that ask for an end, and the tie of a child to its parent."""

from __future__ import annotations

import os
import signal

import pytest

from calserve import stopping
from calserve.signal_stack import drop_signal_stack
from calserve.stopping import PARENT_VARIABLE, Stopped, child_environment, holding_back, stop_of, stopping_on


@pytest.fixture(autouse=True)
def _own_stack() -> None:
    """Libraries that other tests of this process loaded may have left this thread a signal stack that is gone."""
    drop_signal_stack()


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up"), (signal.SIGINT, 130, "interrupted")],
)
def test_signal_inside_is_an_exception_with_its_code_and_word(number: signal.Signals, code: int, word: str) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as told, stopping_on(number):
        signal.raise_signal(number)
    assert isinstance(told.value, Stopped)
    assert (told.value.exit_code, told.value.sentence) == (code, word)
    assert signal.getsignal(number) is before


def test_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on(signal.SIGHUP):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_bare_interrupt_is_that_of_a_terminal_and_keeps_what_is_said_of_it() -> None:
    stopped = stop_of(KeyboardInterrupt(), "5 of 9 had run")
    assert (stopped.exit_code, stopped.sentence) == (130, "interrupted; 5 of 9 had run")
    assert stop_of(Stopped(signal.SIGTERM, "first")).sentence == "terminated; first"


def test_signal_that_is_held_back_comes_at_the_end() -> None:
    done = []

    def work() -> None:
        with stopping_on(signal.SIGTERM), holding_back():
            signal.raise_signal(signal.SIGTERM)
            done.append("the rest")

    with pytest.raises(Stopped):
        work()
    assert done == ["the rest"]


def test_child_is_told_once_whom_not_to_outlive(monkeypatch: pytest.MonkeyPatch) -> None:
    tied: list[int] = []
    monkeypatch.setattr(stopping, "end_with", tied.append)
    told = child_environment({"A": "b"})
    assert told == {"A": "b", PARENT_VARIABLE: str(os.getpid())}
    monkeypatch.setenv(PARENT_VARIABLE, told[PARENT_VARIABLE])
    stopping.end_with_parent()
    stopping.end_with_parent()
    assert tied == [os.getpid()]
    assert PARENT_VARIABLE not in os.environ
