"""How a command is told to stop, and how the processes it started end with it.

A word every ring may use. Owns: the exception that a signal becomes, its exit code, and the tie of a child to its
parent. Must not know: what is stopped. Life: a command runs its work inside `stopping_on`; a child process ties itself
with `end_with` first of all.

The tie is the kernel's (Linux, PR_SET_PDEATHSIG): it holds whatever ends the parent, SIGKILL included, and however busy
the child is. It is to the thread that started the child, so children are started on the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

# What a child of `calserve` that is started as a command of its own reads once: the process it must not outlive.
PARENT_VARIABLE = "CALSERVE_PARENT_PID"
TERMINATING = (signal.SIGTERM, signal.SIGHUP)
ASKING = (signal.SIGINT, *TERMINATING)
_PR_SET_PDEATHSIG = 1
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Stopped(KeyboardInterrupt):
    """A signal asked for the end. As with Ctrl-C, nothing that catches `Exception` may swallow it."""

    def __init__(self, number: int, detail: str = "") -> None:
        super().__init__(number)
        self.number = number
        self.detail = detail

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 and the number of the signal."""
        return 128 + self.number

    @property
    def sentence(self) -> str:
        word = _WORDS.get(signal.Signals(self.number), "stopped")
        return f"{word}; {self.detail}" if self.detail else word


def stop_of(interrupt: KeyboardInterrupt, detail: str = "") -> Stopped:
    """What came about, as a `Stopped`: a bare KeyboardInterrupt is SIGINT's. detail: what to say beside the word."""
    number = interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT
    return Stopped(number, detail or (interrupt.detail if isinstance(interrupt, Stopped) else ""))


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)


@contextmanager
def stopping_on(*numbers: signal.Signals) -> Iterator[None]:
    """Inside, each of these signals raises `Stopped` on the main thread. One that is ignored (nohup) stays ignored."""
    before = {}
    for number in numbers or TERMINATING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def holding_back() -> Iterator[None]:
    """Inside, a signal that asks for the end waits; at the exit it does what it would have done. On the main thread."""
    came: list[int] = []
    before = {}
    for number in ASKING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if came:
            signal.raise_signal(came[0])


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environment`, by default this process's own, for a child command that must not outlive this process."""
    return {**(os.environ if environment is None else environment), PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """In a child command: do what `child_environment` asked for. Its own children are not asked."""
    told = os.environ.pop(PARENT_VARIABLE, "")
    if told.isdecimal():
        end_with(int(told))


def end_with(parent: int) -> None:
    """This process is killed when `parent`, which started it, ends in whatever way; at once where it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the tie was made
        os._exit(128 + signal.SIGKILL)
