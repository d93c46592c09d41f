"""The lifecycle order of one session that is out, and the next try of one that was refused for now.

Owns: which order has not been answered, the back-off between tries, their number. Must not know: what an answer means.
Life of an order: `give` sends it out, `is_answer` takes its answer once; `try_again` arms the same order after a
transient failure, and `run_due` sends it out again. One that is not answered by `due_ns` never will be.
"""

from __future__ import annotations

from calserve.core.commands import Configure, Release, Reset, Validate, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.outbox import Outbox

Order = Validate | Configure | Warm | Release | Reset
_PENDING: dict[type[Order], str] = {
    Validate: "validate",
    Configure: "configure",
    Warm: "warm",
    Release: "release",
    Reset: "reset",
}


class Orders:
    """Invariants: at most one order is out, and none while one waits for its next try."""

    __slots__ = ("_config", "_last", "_out", "_tries", "again_ns", "due_ns", "pending")

    def __init__(self, config: SchedulerConfig, outbox: Outbox) -> None:
        self._config = config
        self._out = outbox
        self._last: Order | None = None
        self._tries = 0
        self.pending = ""  # the kind that has not been answered
        self.again_ns: int | None = None  # when the last order goes out again
        self.due_ns: int | None = None  # by when the one that is out must be answered

    def give(self, command: Order) -> None:
        assert not self.pending, f"{self.pending} is out"
        if self._last is None or type(self._last) is not type(command):
            self._tries = 0
        self._last = command
        self.again_ns = None
        self.pending = _PENDING[type(command)]
        if self._config.lifecycle_deadline_ns:
            self.due_ns = self._out.now_ns + self._config.lifecycle_deadline_ns
        self._out.order(command)

    def is_answer(self, kind: str, *, is_mine: bool) -> bool:
        """Whether this answers the order that is out; anything else is stale and only counted."""
        if is_mine and self.pending == kind:
            self.forget()
            return True
        self._out.count("stale_events")
        return False

    def forget(self) -> None:
        """It was answered, or never will be: an answer that comes after all is stale."""
        self.pending = ""
        self.due_ns = None

    def try_again(self, now_ns: int) -> bool:
        """Arm the last order for another try; False when it had all of them."""
        self._out.count("transient_retries")
        self._tries += 1
        if self._tries > self._config.max_transient_retries:
            self._out.count("retries_exhausted")
            return False
        self.again_ns = now_ns + self._config.backoff_ns(self._tries)
        return True

    def run_due(self, now_ns: int) -> None:
        if self.again_ns is not None and now_ns >= self.again_ns and self._last is not None:
            self.give(self._last)

    def drop_retry(self) -> None:
        self.again_ns = None
