"""A drain: a generation takes nobody new, and ends when nothing of it runs any more.

Owns: what the drain is for, until when admitted requests may go on, how long jobs on the device are waited for, and
what the admitted are told. Must not know: the lifecycle; its session starts it, advances it after every event and acts
on how it ended.

Life: while `may_run`, admitted requests end in their own time, until `until_ns`. Then they are told, and only jobs on
the device are waited for, at most a grace; past it they count as lost. Nothing is released or reset before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.core.faults import FAULT_RULES, Aftermath, needs_reset
from calserve.core.outcomes import Failure, FinishReason
from calserve.core.roster import Roster
from calserve.core.worker import Worker


class Aim(Enum):
    """What a drain ends in."""

    UNLOAD = "unload"
    RECOVER = "recover"
    FAIL = "fail"


class DrainEnd(Enum):
    EMPTY = "every job retired"
    LOST = "a job never came back"


@dataclass(slots=True)
class Drain:
    """may_run: admitted requests may still get jobs, until `until_ns`. grace_ns: set once only jobs on the device
    are waited for; past it they count as lost."""

    aim: Aim
    may_run: bool
    until_ns: int
    cause: Failure | None
    grace_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        return self.until_ns if self.may_run else self.grace_ns

    def worsen(self, failure: Failure, then: Aftermath, now_ns: int) -> bool:
        """Worse news may harden a drain, never soften it. True when nothing more may run because of it.

        An unload stays one: its release is near. What decides between a rebuild and a reset is the worst cause.
        """
        if not self.may_run or then is Aftermath.DRAIN_AND_REBUILD:
            if self.cause is not None and needs_reset(failure.fault) and not needs_reset(self.cause.fault):
                self.cause = failure
            return False
        self.cause = failure
        if then in (Aftermath.REFUSE, Aftermath.STOP) and self.aim is Aim.RECOVER:
            self.aim = Aim.FAIL
        self.until_ns = now_ns
        return True

    def stop_if_due(self, roster: Roster, now_ns: int) -> bool:
        """Whether nothing runs any more: nobody is left to run, or the time is up."""
        if self.may_run and (not roster.has_admitted or now_ns >= self.until_ns):
            self.may_run = False
        return not self.may_run

    def tell_admitted(self, roster: Roster) -> None:
        if not roster.has_admitted:
            return
        cause = self.cause
        if cause is None:
            roster.end_admitted(FinishReason.SHUTDOWN)
        elif self.aim is Aim.RECOVER:
            roster.lose_admitted(FinishReason.DEVICE_FAULT, cause)
        else:
            roster.end_admitted(FAULT_RULES[cause.fault].end, cause)

    def wait_for_jobs(self, worker: Worker, now_ns: int, grace_ns: int) -> DrainEnd | None:
        """How it ended, or None while the device still has a job within its grace."""
        if worker.in_flight == 0:
            return DrainEnd.EMPTY
        if self.grace_ns is None:
            self.grace_ns = now_ns + grace_ns
        return DrainEnd.LOST if now_ns >= self.grace_ns else None
