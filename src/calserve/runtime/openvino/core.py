"""The library's root object, made so that it leaves nothing behind on the thread that makes it.

Must not know sessions. Where the processor has AMX, loading the CPU plug-in gives the calling thread a stack for
signals in memory of its own, and takes that back on whatever thread ends it: made on one thread and ended on another,
the first one's signals are then handled on memory that is gone, and the process dies of the next SIGTERM (seen: SIGSEGV
in the delivery of a signal). So the thread gets back the signal stack that it had.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any


class _Stack(ctypes.Structure):
    """`stack_t` of sigaltstack(2)."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_DISABLED = 2  # SS_DISABLE


def new_core(device: str) -> Any:
    """An `openvino.Core` with the plug-in of `device` loaded; without it where there is none, as compiling will say."""
    import openvino as ov

    before = _signal_stack()
    core = ov.Core()
    try:
        with suppress(RuntimeError):
            core.get_property(device, "FULL_DEVICE_NAME")
        return core
    finally:
        _give_back(before)


def _signal_stack() -> _Stack | None:
    if sys.platform != "linux":
        return None
    stack = _Stack()
    return stack if ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0 else None


def _give_back(stack: _Stack | None) -> None:
    """None at all where the one there was has become too small for the frame of a signal."""
    if stack is not None and ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) != 0:
        ctypes.CDLL(None).sigaltstack(ctypes.byref(_Stack(None, _DISABLED, 0)), None)
