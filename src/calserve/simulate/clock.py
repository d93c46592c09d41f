"""The virtual clock of a soak: one device, one thread, no lock.

Owns: the current time, and that the device's events happen on the way. Must not know: what is due elsewhere. A soak
spends most of its time here, so nothing is done that a single thread does not need.
"""

from __future__ import annotations

import threading
from typing import cast

from calserve.runtime.sim.clock import Machine


class _NoLock:
    """Stands where a device expects the lock of its clock: with one thread there is nobody to keep out."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def notify_all(self) -> None:
        return None


class SoakClock:
    """`Clock` of `runtime.sim`, moved by the world only: whoever would block is told that time may not pass here.

    Invariants: never goes back; an event of the device runs at its own time, or late by what a running step took.
    """

    threaded = False

    def __init__(self) -> None:
        self.changed = cast(threading.Condition, _NoLock())
        self.events = 0  # of the device, so far
        self._now_ns = 0
        self._machine: Machine | None = None

    def now_ns(self) -> int:
        return self._now_ns

    def attach(self, machine: Machine) -> None:
        """The device of this clock; one attached before is gone, and so is what it had still to do."""
        self._machine = machine

    def next_event_ns(self) -> int | None:
        return self._machine.next_event_ns() if self._machine is not None else None

    def advance_to(self, target_ns: int) -> None:
        machine = self._machine
        if machine is not None:
            while (at_ns := machine.next_event_ns()) is not None and at_ns <= target_ns:
                self._now_ns = max(self._now_ns, at_ns)
                self.events += 1
                machine.run_next()
        self._now_ns = target_ns

    def wait_until(self, deadline_ns: int) -> bool:
        return False

    def spend(self, duration_ns: int) -> None:
        """Slow calls of the host are given their time by the world."""
