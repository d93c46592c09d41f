"""While something is waited for nothing turns: no event reaches `core`, and the process uses no processor time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence as Many

import pytest
from harness import prompt
from threaded_rig import PATIENCE_S, fast_profile, threaded_rig

from calserve.core.commands import Command, Reset
from calserve.core.config import SchedulerConfig
from calserve.core.events import Event
from calserve.core.outcomes import FinishReason
from calserve.runtime.sim import Fault, FaultPlan, FaultPoint, SimBoard, SimDevice, WallClock, sim_package

BLOCKED_NS = 700_000_000
# A loop that polls uses all of a core; 5 % would be a poll of some microseconds every tenth of a millisecond.
SHARE_MAX = 0.2


class Watch:
    """Events that reached `core`, and a bell for the first one of a kind or for a reset."""

    def __init__(self, until: str) -> None:
        self.events: list[str] = []
        self.until = until
        self.bell = threading.Event()

    def __call__(self, now_ns: int, event: Event, commands: Many[Command]) -> None:
        self.events.append(type(event).__name__)
        if self.events[-1] == self.until or any(isinstance(command, Reset) for command in commands):
            self.bell.set()


class Meter:
    """Processor time of the whole process against the wall, from its making."""

    def __init__(self) -> None:
        self._busy, self._wall = time.process_time(), time.perf_counter()

    def share(self) -> float:
        """Of one core. The test itself only waits for a bell meanwhile."""
        wall = time.perf_counter() - self._wall
        assert wall > 0.5
        return (time.process_time() - self._busy) / wall


def faulty_board() -> tuple[SimBoard, FaultPlan]:
    """On wall time, without a fault yet: the test puts them into the plan when the board is Ready."""
    plan = FaultPlan()
    return SimBoard(device=SimDevice(fast_profile(), WallClock(), plan)), plan


@pytest.mark.slow
def test_threads_blocked_on_kv_use_no_processor_and_turn_only_at_the_deadline() -> None:
    """Engine on its inbox, completion on its queue, lifecycle on its orders."""
    board, plan = faulty_board()
    watch = Watch("Tick")
    with threaded_rig(board, sim_package(fast_profile()), recorders=(watch,)) as threads:
        plan.__init__((Fault(FaultPoint.KV_CANNOT_ALLOCATE, times=10**6),))  # type: ignore[misc]
        seen, meter = len(watch.events), Meter()
        threads.submit("a", prompt(threads.package, 7), 4, time.monotonic_ns() + BLOCKED_NS)
        threads.wait_endings(1)
        assert meter.share() < SHARE_MAX
        ending = threads.outlet.told["a"].ending
        assert ending is not None
        assert ending.reason is FinishReason.DEADLINE
        assert watch.events[seen:] == ["Submit", "PrepareFailed", "Tick"]
        assert plan.visits[FaultPoint.KV_CANNOT_ALLOCATE] == 1


@pytest.mark.slow
def test_threads_blocked_on_a_job_that_never_ends_use_no_processor() -> None:
    """To its execution deadline, and on through the grace in which it is waited on again."""
    board, plan = faulty_board()
    watch = Watch("JobOverdue")
    config = SchedulerConfig(execution_deadline_floor_ns=BLOCKED_NS, overdue_grace_ns=BLOCKED_NS)
    with threaded_rig(board, sim_package(fast_profile()), config=config, recorders=(watch,)) as threads:
        plan.__init__((Fault(FaultPoint.JOB_NEVER_COMPLETES),))  # type: ignore[misc]
        seen, meter = len(watch.events), Meter()
        threads.submit("a", prompt(threads.package, 7), 4)
        assert watch.bell.wait(PATIENCE_S)
        assert meter.share() < SHARE_MAX
        assert watch.events[seen:] == ["Submit", "JobSubmitted", "JobOverdue"]
        watch.bell.clear()
        meter = Meter()
        assert watch.bell.wait(PATIENCE_S)  # the reset: the grace is over
        assert meter.share() < SHARE_MAX
        assert watch.events[seen:] == ["Submit", "JobSubmitted", "JobOverdue", "Tick"]
