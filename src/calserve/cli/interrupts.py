"""Ctrl-C while a command is not yet at work: it ends at once and says nothing.

Owns: the handler of SIGINT from the first line of the command to the first of its work. Imports next to nothing, so
that it stands before what takes long to import. Where SIGINT is ignored (a background job of a shell) it stays ignored.
"""

import os
import signal
from types import FrameType


def leave_on_interrupt() -> None:
    """Nothing was begun, so there is nothing to put in order."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def listen_to_interrupts() -> None:
    """Work begins: from here on SIGINT raises KeyboardInterrupt, as it does in Python."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
