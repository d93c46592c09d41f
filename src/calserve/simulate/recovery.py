"""How long a fault costs the service, and whom: one fault of each kind, on a board that is at work.

Owns: the scenarios and what is measured of each. Must not know: how a table is printed. Life: `measure_recoveries`
runs one short run for each kind of fault on each board and gives a row for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.runtime.sim.faults import FaultPoint
from calserve.simulate.plan import (
    MINUTE,
    SECOND,
    BoardPlan,
    Era,
    FaultsPlan,
    ListedFault,
    Pace,
    RunPlan,
    ServerPlan,
    TrafficPlan,
)
from calserve.simulate.run import Run

LATE_NS = 4 * SECOND
BOARDS = (
    ("assumed-lanes, a session on each chip", BoardPlan("assumed-lanes", 256, (1, 4, 8), 2)),
    (
        "assumed-lanes, no reset proven",
        BoardPlan("assumed-lanes", 256, (1, 4, 8), 2, cut=("session_reset", "chip_reset")),
    ),
    ("calculet-2chip", BoardPlan("calculet-2chip", 256, (1,), 1, tile=16, dtype="bfloat16")),
)
# The fault comes when the server has been at work for a while, at a visit of its point that load makes for sure.
FAULT_NS = 30 * SECOND
_VISIT = 20
_RARELY_VISITED = (
    FaultPoint.ALLOCATE_FAILS,
    FaultPoint.CONFIGURE_FAILS,
    FaultPoint.RESET_FAILS,
    FaultPoint.COUNTERS_WRONG,
    FaultPoint.COMPLETION_SWAPPED,
)
# Kinds that only show after another one: a generation must be rebuilt, or a reset wanted, before it can fail.
_WITH = (FaultPoint.RESET_FAILS, FaultPoint.CONFIGURE_FAILS, FaultPoint.ALLOCATE_FAILS)


@dataclass(slots=True)
class Recovery:
    """One row. to_ready_ns: from the fault until every session serves again; None when it never did, 0 when none
    stopped. lost: requests that ended because of it. sibling_tokens: jobs of other sessions while one was away."""

    board: str
    fault: str
    fired: int = 0
    to_ready_ns: int | None = 0
    resets: tuple[str, ...] = ()
    lost: int = 0
    restarts: int = 0
    sibling_jobs: int = 0
    served: int = 0
    violations: list[str] = field(default_factory=list)


class _Stopwatch:
    """A `Watch`: what happens after the first firing, and before the run is shut down."""

    def __init__(self, until_ns: int) -> None:
        self._until_ns = until_ns
        self.fault_ns: int | None = None
        self.fired = 0
        self.states: dict[str, str] = {}
        self.away_ns: int | None = None
        self.ready_ns: int | None = None
        self.resets: list[str] = []
        self.lost = 0
        self.served = 0
        self.sibling_jobs = 0

    def fact(self, fact: DeviceFact) -> None:
        if fact.kind is FactKind.FAULT:
            self.fired += 1
            if self.fault_ns is None:
                self.fault_ns = fact.at_ns
        elif fact.kind is FactKind.RESET:
            self.resets.append(fact.detail)
        elif fact.kind is FactKind.SUBMITTED and self.is_away:
            self.sibling_jobs += self.states.get(fact.session) == "ready"

    @property
    def is_away(self) -> bool:
        return self.away_ns is not None and self.ready_ns is None

    def session_state(self, session: str, state: str, at_ns: int) -> None:
        if at_ns >= self._until_ns:
            return
        self.states[session] = state
        if self.fault_ns is None:
            return
        is_all_ready = all(each == "ready" for each in self.states.values())
        if not is_all_ready and self.away_ns is None:
            self.away_ns = at_ns
        elif not is_all_ready:
            self.ready_ns = None
        elif self.away_ns is not None and self.ready_ns is None:
            self.ready_ns = at_ns

    def ended(self, request: str, end: str, at_ns: int) -> None:
        if at_ns >= self._until_ns:
            return
        if end.startswith(("device_fault", "internal", "process_ended")):
            self.lost += 1
        elif end.startswith(("stop", "length")):
            self.served += 1

    @property
    def to_ready_ns(self) -> int | None:
        if self.away_ns is None or self.fault_ns is None:
            return 0
        return None if self.ready_ns is None else self.ready_ns - self.fault_ns


def scenario(board: BoardPlan, point: FaultPoint, seed: int) -> RunPlan:
    """A steady load for half a minute before the fault and long enough after it."""
    in_flight = 2 if point is FaultPoint.COMPLETION_SWAPPED and board.base != "calculet-2chip" else 1
    value = LATE_NS if point is FaultPoint.COMPLETION_LATE else 0
    listed = [ListedFault(point.value, 1 if point in _RARELY_VISITED else _VISIT, 1, value)]
    if point in _WITH:
        listed.append(ListedFault(FaultPoint.STATUS_CCU_EXCEPTION.value, _VISIT))
    era = Era(
        number=0,
        safety_ns=2 * MINUTE,
        liveness_ns=30 * SECOND,
        board=board,
        server=ServerPlan(max_in_flight=in_flight),
        faults=FaultsPlan(listed=tuple(listed), after_ns=FAULT_NS),
        traffic=TrafficPlan(burst_gap_ns=2 * SECOND, burst_size=8, storm_gap_ns=60 * MINUTE),
        # two jobs are finished at once only where the host was late
        pace=Pace(hiccup_every=50) if point is FaultPoint.COMPLETION_SWAPPED else Pace(),
    )
    return RunPlan(seed, (era,))


def measure_recoveries(
    seed: int, advanced: Callable[[], None] = lambda: None, points: tuple[FaultPoint, ...] = tuple(FaultPoint)
) -> list[Recovery]:
    """A row for each board and kind of fault. advanced: called after each."""
    rows = []
    for name, board, point in _cases(points):
        plan = scenario(board, point, seed)
        watch = _Stopwatch(plan.duration_ns)
        result = Run(plan, watch=watch).run()
        rows.append(
            Recovery(
                board=name,
                fault=point.value,
                fired=watch.fired,
                to_ready_ns=watch.to_ready_ns,
                resets=tuple(watch.resets),
                lost=watch.lost,
                restarts=sum(n for exit_name, n in result.counts.items() if exit_name.startswith("exits_7")),
                sibling_jobs=watch.sibling_jobs,
                served=watch.served,
                violations=result.violations,
            )
        )
        advanced()
    return rows


def _cases(points: tuple[FaultPoint, ...]) -> Iterator[tuple[str, BoardPlan, FaultPoint]]:
    for name, board in BOARDS:
        for point in points:
            if point is FaultPoint.COMPLETION_SWAPPED and board.base == "calculet-2chip":
                continue  # it needs two jobs in flight, which that board does not prove
            yield name, board, point


def count_cases(points: tuple[FaultPoint, ...] = tuple(FaultPoint)) -> int:
    return sum(1 for _ in _cases(points))
