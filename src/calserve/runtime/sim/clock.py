"""The board's clock: virtual (only callers move it) or wall (one device thread follows it).

Owns: the current time and the lock of whatever runs on it. Must not know: jobs, boards, requests. Life of a
clock: made by the composition root, handed to a `SimDevice`, which attaches itself; on virtual time every
device event happens inside `advance_to`, at its own time and in order, so that a host write between two
moments is seen exactly by the DMA that comes after it.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Machine(Protocol):
    """Something with events in time. Both are called with the clock's lock held."""

    def next_event_ns(self) -> int | None: ...

    def run_next(self) -> None:
        """Carry out the earliest event; the clock already stands at its time."""


class Clock(Protocol):
    """What a device needs of its clock. `changed` is the one lock of everything on this clock."""

    changed: threading.Condition
    threaded: bool

    def now_ns(self) -> int: ...

    def attach(self, machine: Machine) -> None: ...

    def wait_until(self, deadline_ns: int) -> bool:
        """With the lock held: let time pass to the next event or the deadline; False if time may not pass here."""

    def spend(self, duration_ns: int) -> None:
        """A slow call of the host takes this long."""


class VirtualClock:
    """Time that moves only when told.

    auto_advance: blocking calls (`wait`, `drain`, `configure`, `reset`) move the clock themselves. Without it
    they return at once, with a timeout if what they wait for has not happened, and the simulator's scheduler
    is the only one that moves time.

    Invariants: never goes back; every event runs with `now_ns` equal to its own time.
    """

    threaded = False

    def __init__(self, start_ns: int = 0, auto_advance: bool = True) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.auto_advance = auto_advance
        self._now_ns = start_ns
        self._machines: list[Machine] = []

    def now_ns(self) -> int:
        return self._now_ns

    def attach(self, machine: Machine) -> None:
        self._machines.append(machine)

    def next_event_ns(self) -> int | None:
        """Time of the earliest event of any attached device, or None when all are idle."""
        times = [at for machine in self._machines if (at := machine.next_event_ns()) is not None]
        return min(times, default=None)

    def advance(self, duration_ns: int) -> None:
        self.advance_to(self._now_ns + duration_ns)

    def advance_to(self, target_ns: int) -> None:
        """Move to `target_ns`, carrying out every event on the way at its time."""
        with self.changed:
            if target_ns < self._now_ns:
                raise ValueError(f"time cannot go back from {self._now_ns} to {target_ns} ns")
            while (at := self.next_event_ns()) is not None and at <= target_ns:
                self._run_at(at)
            self._now_ns = target_ns

    def wait_until(self, deadline_ns: int) -> bool:
        if not self.auto_advance:
            return False
        at = self.next_event_ns()
        if at is None or at > deadline_ns:
            self._now_ns = max(self._now_ns, deadline_ns)
        else:
            self._run_at(at)
        return True

    def spend(self, duration_ns: int) -> None:
        if self.auto_advance:
            self.advance(duration_ns)

    def _run_at(self, at_ns: int) -> None:
        self._now_ns = max(self._now_ns, at_ns)
        for machine in self._machines:
            if machine.next_event_ns() == at_ns:
                machine.run_next()
                return


class WallClock:
    """The monotonic clock. Events are carried out by the device's own thread, not by who waits for them."""

    threaded = True

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def attach(self, machine: Machine) -> None:
        """Nothing to remember: the device brings a thread."""

    def wait_until(self, deadline_ns: int) -> bool:
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            self.changed.wait(left_ns / 1e9)
        return True

    def spend(self, duration_ns: int) -> None:
        time.sleep(duration_ns / 1e9)
