"""Which named things go wrong, and when: a plan as data, consulted by the board at every fault point.

Owns: the list of fault points and the count of visits and firings. Must not know: what a fault does (that
stands where it is visited). Two phases: a point is *activated* for a run, and an active point *fires* on some
of its visits. Life of a plan: written by hand or drawn from a seed, given to one device, healed at the end of
the safety phase.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class FaultPoint(Enum):
    """Where a board can fail, and with what. `value` of a `Fault` replaces the code or duration given here."""

    SUBMIT_BUSY = "submit_busy"  # submit: code 17, nothing started
    SUBMIT_UNAVAILABLE = "submit_unavailable"  # submit: code 18, nothing started
    WAIT_TIMEOUT = "wait_timeout"  # wait: code 13 although the job may be done
    STATUS_CCU_EXCEPTION = "status_ccu_exception"  # code 0, status DONE_CCU_EXCEPTION, the KV block undefined
    LOGITS_NAN = "logits_nan"  # job: every logit is NaN
    OUTPUT_SHORT = "output_short"  # job: half of each row of logits comes back, the view says so
    JOB_NEVER_COMPLETES = "job_never_completes"  # job: computing until a reset ends it
    COMPLETION_LATE = "completion_late"  # job: KV and output are written `value` ns late, resets or not
    COMPLETION_DOUBLE = "completion_double"  # wait: the same completion is given once more
    COMPLETION_SWAPPED = "completion_swapped"  # wait: of two finished jobs, the other one's completion
    DEVICE_LOST = "device_lost"  # job: the device is gone, code 18 everywhere until a board reset
    ALLOCATE_FAILS = "allocate_fails"  # allocate: code 1
    MAP_FAILS = "map_fails"  # map: code 24
    SLICE_FAILS = "slice_fails"  # slice: code 22
    CSR_FAILS = "csr_fails"  # set_csr: code 4
    BUFFER_RESET_FAILS = "buffer_reset_fails"  # reset of host buffers: code 4, nothing scrubbed
    KV_CANNOT_ALLOCATE = "kv_cannot_allocate"  # can_allocate: False although lanes are free
    KV_APPLY_FAILS = "kv_apply_fails"  # apply: code 1
    CONFIGURE_FAILS = "configure_fails"  # configure: code 5, nothing configured
    RESET_FAILS = "reset_fails"  # board reset: code 25, nothing reset
    COUNTERS_WRONG = "counters_wrong"  # counters: one job too many is left


@dataclass(frozen=True, slots=True)
class Fault:
    """Fire on visits `at_visit` .. `at_visit + times - 1` (counted from 1) of `point`. value: see FaultPoint."""

    point: FaultPoint
    at_visit: int = 1
    times: int = 1
    value: int = 0

    def __post_init__(self) -> None:
        if self.at_visit < 1 or self.times < 1 or self.value < 0:
            raise ValueError(f"a fault needs at_visit >= 1, times >= 1 and value >= 0, not {self}")


@dataclass(slots=True)
class _Drawn:
    """An activated point of a random plan: fires at `next_visit`, then after a gap drawn from its own stream."""

    stream: random.Random
    mean_gap: int
    value: int
    next_visit: int = 0

    def draw(self, after_visit: int) -> None:
        self.next_visit = after_visit + self.stream.randint(1, 2 * self.mean_gap - 1)


class FaultPlan:
    """Explicit faults, drawn faults, or none.

    Invariants: the same plan under the same visits fires the same faults; visits of one point never move the
    firings of another.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.visits: dict[FaultPoint, int] = {}
        self.fired: list[tuple[FaultPoint, int]] = []
        self.active: frozenset[FaultPoint] = frozenset()
        self._listed: dict[FaultPoint, list[Fault]] = {}
        self._drawn: dict[FaultPoint, _Drawn] = {}
        for fault in faults:
            self._listed.setdefault(fault.point, []).append(fault)
        self.active = frozenset(self._listed)

    def visit(self, point: FaultPoint) -> Fault | None:
        """Count a visit; the fault to carry out now, or None."""
        if point not in self.active:
            return None
        count = self.visits[point] = self.visits.get(point, 0) + 1
        fault = self._due(point, count)
        if fault is not None:
            self.fired.append((point, count))
        return fault

    def heal(self) -> None:
        """No fault fires from here on: the liveness phase."""
        self.active = frozenset()

    def _due(self, point: FaultPoint, count: int) -> Fault | None:
        for fault in self._listed.get(point, ()):
            if fault.at_visit <= count < fault.at_visit + fault.times:
                return fault
        drawn = self._drawn.get(point)
        if drawn is None or count < drawn.next_visit:
            return None
        drawn.draw(count)
        return Fault(point, count, value=drawn.value)


def random_plan(
    seed: int,
    points: Iterable[FaultPoint] = FaultPoint,
    activate: float = 0.3,
    mean_gap: int = 2000,
    late_ns: int = 0,
) -> FaultPlan:
    """A plan from a seed.

    activate: chance that a point is active in this run. mean_gap: visits of a point between two firings, on
    average. late_ns: delay of a late completion, 0 for the board's own.
    """
    if not 0 <= activate <= 1 or mean_gap < 1:
        raise ValueError(f"activate must be in 0..1 and mean_gap >= 1, not {activate} and {mean_gap}")
    plan = FaultPlan()
    for point in points:
        # A string seed is hashed by `random` itself, so PYTHONHASHSEED cannot move it.
        stream = random.Random(f"{seed}/{point.value}")
        if stream.random() < activate:
            value = late_ns if point is FaultPoint.COMPLETION_LATE else 0
            drawn = plan._drawn[point] = _Drawn(stream, mean_gap, value)
            drawn.draw(0)
    plan.active = frozenset(plan._drawn)
    return plan
