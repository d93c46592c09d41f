"""The stack that a thread handles signals on, kept as it was while a library is loaded.

A word every ring may use. Must not know which library. A plug-in for processors with AMX gives the thread that
loads it a stack for signals in memory of its own, and takes it back on whatever thread ends it: loaded on one thread
and ended on another, the first one's signals are then handled on memory that is gone, and the process dies of the next
SIGTERM (seen: SIGSEGV in the delivery of a signal). So the thread gets back the signal stack that it had.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """`stack_t` of sigaltstack(2)."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_DISABLED = 2  # SS_DISABLE


@contextmanager
def keeping_signal_stack() -> Iterator[None]:
    """Whatever is loaded inside, this thread's signal stack is afterwards what it was before."""
    before = _signal_stack()
    try:
        yield
    finally:
        if before is not None and ctypes.CDLL(None).sigaltstack(ctypes.byref(before), None) != 0:
            drop_signal_stack()  # the one there was has become too small for the frame of a signal


def drop_signal_stack() -> None:
    """From now on signals of this thread are handled on its own stack."""
    if sys.platform == "linux":
        ctypes.CDLL(None).sigaltstack(ctypes.byref(_Stack(None, _DISABLED, 0)), None)


def _signal_stack() -> _Stack | None:
    if sys.platform != "linux":
        return None
    stack = _Stack()
    return stack if ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0 else None
