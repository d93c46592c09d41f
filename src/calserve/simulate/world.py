"""Virtual time: what is due, what the device does meanwhile, who waits for it.

Owns: the heap of what is due and the order in which it runs. Must not know: servers, clients, the oracle. Life: made
for a run; `run_until` lets time pass; whoever was given the world puts actions into it.

Everything that happens runs here, one thing at a time, so the order depends on the seed alone. While a step runs,
`spend` lets the device go on: a step takes time, and what the device does in that time it does then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from calserve.runtime.contract import Ticket
from calserve.simulate.clock import SoakClock

Action = Callable[[], None]


class Awaited(Protocol):
    """A session whose `wait` may be asked whether it would return now."""

    def is_ready(self, ticket: Ticket) -> bool: ...


@dataclass(slots=True, eq=False)
class Wait:
    """Somebody blocked in `wait`: woken once, when the board has an answer or at the deadline."""

    session: Awaited
    ticket: Ticket
    deadline_ns: int
    wake: Action


class World:
    """Invariants: time never goes back; actions due at one instant run in the order in which they were put in."""

    def __init__(self, clock: SoakClock) -> None:
        self.clock = clock
        self._due: list[tuple[int, int, Action]] = []
        self._order = 0
        self._waits: list[Wait] = []
        self._looked_at = 0  # events of the device when the waits were last looked at

    def now_ns(self) -> int:
        return self.clock.now_ns()

    def at(self, when_ns: int, action: Action) -> None:
        """Run `action` at `when_ns`, or as soon as what runs now is done."""
        self._order += 1
        heapq.heappush(self._due, (when_ns, self._order, action))

    def after(self, delay_ns: int, action: Action) -> None:
        self.at(self.clock.now_ns() + delay_ns, action)

    def spend(self, duration_ns: int) -> None:
        """What runs now takes this long; the device does not stand still."""
        self.clock.advance_to(self.clock.now_ns() + duration_ns)

    def wait(self, wait: Wait) -> None:
        """Block somebody until the board answers or the deadline passes."""
        self._waits.append(wait)
        self._looked_at = -1
        self.at(wait.deadline_ns, lambda: self._wake(wait))

    def drop_waits(self) -> None:
        """The process whose threads were blocked is gone."""
        self._waits.clear()

    def run_until(self, end_ns: int) -> None:
        clock, due = self.clock, self._due
        while True:
            if clock.events != self._looked_at:
                self._looked_at = clock.events
                self._wake_answered()
            device_ns = clock.next_event_ns()
            if due and due[0][0] <= end_ns and (device_ns is None or due[0][0] < device_ns):
                when_ns, _, action = heapq.heappop(due)
                if when_ns > clock.now_ns():
                    clock.advance_to(when_ns)
                action()
            elif device_ns is not None and device_ns <= end_ns:
                clock.advance_to(max(device_ns, clock.now_ns()))
            else:
                clock.advance_to(max(end_ns, clock.now_ns()))
                return

    def _wake_answered(self) -> None:
        for wait in [wait for wait in self._waits if wait.session.is_ready(wait.ticket)]:
            self._wake(wait)

    def _wake(self, wait: Wait) -> None:
        if wait in self._waits:
            self._waits.remove(wait)
            wait.wake()
