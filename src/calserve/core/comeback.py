"""A session that Failed while it served, and has no other package to go back to: when it is tried again by itself.

Owns: what served last, since when, how often it was tried again, and when it is next. Must not know: how a session is
loaded, or why it failed beyond the class.

The seeds bound recovery (seed 003, section 8; seed 000, section 14: no storm of resets), so the second trouble within
the window is Failed, with every client told. They also want a way out of it (seed 003, section 13.2), and a server has
nobody who would order a load. So what served here comes back once the window has passed: a load like an operator's,
validated and with its goldens, with a budget that is whole again. Not for ever: `max_comebacks` in a row. Not where the
class says that a person must act, not what never served here, and not what was taken down on purpose.

Life: as long as its session. `failed` sets `due_ns`, which says something only while the session is Failed; an order
of an operator's clears it.
"""

from __future__ import annotations

from calserve.core.config import SchedulerConfig
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.outcomes import FaultClass


class Comeback:
    """Called by its session. Invariants: at most one is due; between two lies at least a window."""

    __slots__ = ("_config", "_ready_ns", "_served", "_tries", "due_ns")

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._served = ""  # the package that was Ready last
        self._ready_ns: int | None = None  # of the last load or recovery, until it fails
        self._tries = 0  # since an operator's load, or since it last served for a whole window
        self.due_ns: int | None = None

    def forget(self) -> None:
        """An operator ordered a load or an unload."""
        self._served = ""
        self._tries = 0
        self.due_ns = None

    def ready(self, package: str, now_ns: int) -> None:
        self._served, self._ready_ns = package, now_ns

    def failed(self, package: str, fault: FaultClass, now_ns: int) -> None:
        """`package` is Failed for good unless it is tried again."""
        self.due_ns = None
        if package != self._served or FAULT_RULES[fault].again is Aftermath.STOP:
            return
        window_ns = self._config.reset_window_ns
        if self._ready_ns is not None and now_ns - self._ready_ns >= window_ns:
            self._tries = 0
        self._ready_ns = None
        if self._tries < self._config.max_comebacks:
            self._tries += 1
            self.due_ns = now_ns + window_ns
