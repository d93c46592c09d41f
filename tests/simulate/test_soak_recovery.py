"""One fault on a board of two sessions, a chip each: who is lost, who waits, who does not even notice.

Times by hand, from the assumed profile: a reset and a configuration take what the profile says, and the warm-up's jobs
come on top, so bounds are given where a sum would only repeat the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_rig import calserve

from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.runtime.sim.faults import FaultPoint
from calserve.simulate.plan import SECOND
from calserve.simulate.recovery import BOARDS, FAULT_NS, Recovery, count_cases, measure_recoveries, scenario
from calserve.simulate.run import Run

TWO_SESSIONS = BOARDS[0][1]
CALCULET = BOARDS[2][1]


class Onlooker:
    """Which requests the job that failed carried, where it ran, and who was lost."""

    def __init__(self) -> None:
        self.specs: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.hit: tuple[str, tuple[str, ...]] | None = None
        self.fault_ns = 0
        self.lost: set[str] = set()
        self.away: set[str] = set()
        self.served_by_sibling = 0

    def fact(self, fact: DeviceFact) -> None:
        if fact.kind is FactKind.SUBMITTED and fact.spec is not None:
            self.specs[fact.ticket] = (fact.session, tuple(row.request for row in fact.spec.rows))
            self.served_by_sibling += bool(self.away) and fact.session not in self.away
        elif fact.kind is FactKind.FAULT and self.fault_ns == 0:
            self.fault_ns = fact.at_ns
        elif fact.kind is FactKind.RETIRED and fact.detail == "done_ccu_exception":
            self.hit = self.specs[fact.ticket]

    def session_state(self, session: str, state: str, at_ns: int) -> None:
        if self.fault_ns == 0:
            return
        if state == "ready":
            self.away.discard(session)
        else:
            self.away.add(session)

    def ended(self, request: str, end: str, at_ns: int) -> None:
        if end.startswith(("device_fault", "internal", "process_ended")):
            self.lost.add(request)


def measured(point: FaultPoint) -> dict[str, Recovery]:
    """By board."""
    return {row.board: row for row in measure_recoveries(1, points=(point,))}


@pytest.mark.slow
def test_ccu_exception_where_a_session_reset_is_proven_costs_that_jobs_rows_and_nobody_else() -> None:
    watch = Onlooker()
    result = Run(scenario(TWO_SESSIONS, FaultPoint.STATUS_CCU_EXCEPTION, 1), watch=watch).run()
    assert result.violations == []
    assert watch.fault_ns >= FAULT_NS
    assert watch.hit is not None
    _, rows = watch.hit
    assert watch.lost
    assert watch.lost <= set(rows)
    assert watch.served_by_sibling > 0
    assert result.sometimes["reset"] == 1
    assert result.counts["exits_0"] == 1
    assert "exits_75" not in result.counts


@pytest.mark.slow
def test_ccu_exception_takes_the_smallest_reset_that_each_board_proves() -> None:
    rows = measured(FaultPoint.STATUS_CCU_EXCEPTION)
    assert [row.fired for row in rows.values()] == [1, 1, 1]
    assert [row.resets for row in rows.values()] == [("session",), ("configuration",), ("configuration",)]
    assert [row.restarts for row in rows.values()] == [0, 0, 0]
    one_session, whole_board, calculet = rows.values()
    assert one_session.sibling_jobs > 0
    assert calculet.sibling_jobs == 0  # one session over both chips has no sibling
    assert one_session.to_ready_ns is not None
    assert whole_board.to_ready_ns is not None
    assert calculet.to_ready_ns is not None
    assert 0 < one_session.to_ready_ns < whole_board.to_ready_ns < calculet.to_ready_ns < 60 * SECOND


@pytest.mark.slow
def test_busy_board_costs_nobody_anything() -> None:
    for row in measured(FaultPoint.SUBMIT_BUSY).values():
        assert (row.fired, row.to_ready_ns, row.resets, row.restarts, row.lost) == (1, 0, (), 0, 0)
        assert row.served > 100


@pytest.mark.slow
def test_lost_device_comes_back_only_by_a_new_process_or_a_person() -> None:
    """Where no reset of the whole board is proven, only a person gives one, after new processes did not help."""
    for row in measured(FaultPoint.DEVICE_LOST).values():
        assert row.fired == 1
        assert row.resets[-1] == "board"
        assert row.restarts >= 1
        assert row.to_ready_ns is not None
        assert row.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("point", [FaultPoint.JOB_NEVER_COMPLETES, FaultPoint.COMPLETION_LATE])
def test_job_that_does_not_come_back_ends_the_process_where_no_reset_ends_its_dma(point: FaultPoint) -> None:
    proven, unproven, calculet = measured(point).values()
    assert (proven.resets, proven.restarts) == (("chip",), 0)
    assert proven.sibling_jobs > 0
    assert unproven.restarts == calculet.restarts == 1


def test_every_kind_of_fault_has_a_row_on_every_board_that_can_have_it() -> None:
    """Two finished jobs cannot be mixed up where there is only ever one."""
    assert count_cases() == 3 * len(FaultPoint) - 1


def test_report_into_a_directory_is_refused(tmp_path: Path) -> None:
    told = calserve("soak", "--report", tmp_path)
    assert told.exit_code == 1
    assert told.output.strip() == f"calserve: {tmp_path} is a directory; --report takes a file."
