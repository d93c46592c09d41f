"""What is kept of a session on its way out: its memory, its thread, and the sequences of jobs that come home late."""

from __future__ import annotations

import pytest
from fault_rig import Make, ended, ids_of, right_tokens, settle

from calserve.core.commands import Reset, ResetScope
from calserve.core.events import JobFailed, JobSubmitted
from calserve.core.job import Bank, Task
from calserve.core.outcomes import Failure, FaultClass, FinishReason
from calserve.core.states import BufferEvent, BufferState, GenerationState
from calserve.executor.completion import Completed, GivenUp, completion_step
from calserve.executor.ending import Endings
from calserve.executor.pool import Lease, PoolKey
from calserve.executor.port import SessionPort
from calserve.runtime.contract import JobStatus, StatusKind
from calserve.runtime.sim import Fault, FaultPoint

CHIP, SESSION, CONFIGURATION = ResetScope.CHIP, ResetScope.SESSION, ResetScope.CONFIGURATION


def one_out(make: Make, session: str = "s0", two: bool = False) -> tuple[Endings, SessionPort, Lease]:
    """A port whose end was ordered while one set of its buffers is with the device."""
    rig = make(two=two)
    port = rig.steps.ports.pop(session)
    graph = next(iter(port.session.graphs))
    lease = port.pool.take(PoolKey(1, graph, Task.PREFILL, Bank.AUTO, 1))
    assert isinstance(lease, Lease)
    lease.step(BufferEvent.SUBMIT)
    endings = Endings()
    endings.add(port)
    return endings, port, lease


@pytest.mark.parametrize(
    ("scope", "is_kept"),
    [(None, True), (SESSION, True), (CONFIGURATION, True), (CHIP, False), (ResetScope.BOARD, False)],
)
def test_memory_of_a_job_that_never_ended_is_kept_until_a_reset_that_stops_writes(
    make: Make, scope: ResetScope | None, is_kept: bool
) -> None:
    """None: a release. Whether the job came home without an end, or is still waited on."""
    endings, port, lease = one_out(make)
    port.pool.quarantine(lease)
    endings.over("s0", scope)
    assert endings.ports == {}
    assert [kept.pool.quarantined for kept in endings.fenced.values()] == ([[lease]] if is_kept else [])
    endings.over("s0", CHIP)
    assert endings.fenced == {}


def test_memory_of_a_job_that_is_still_waited_on_is_kept_and_let_go_when_it_ends(make: Make) -> None:
    endings, port, lease = one_out(make)
    endings.over("s0", SESSION)
    assert [counts.leased for counts in endings.counts()] == [1]
    lease.step(BufferEvent.RETIRE)
    endings.take_home("s0", port.generation, lease)
    assert lease.state is BufferState.QUARANTINED
    assert endings.fenced == {}


def test_chip_reset_of_a_sibling_frees_nothing_here(make: Make) -> None:
    endings, port, lease = one_out(make, two=True)
    port.pool.quarantine(lease)
    endings.over("s0", SESSION)
    endings.over("s1", CHIP)
    assert len(endings.fenced) == 1


def test_completion_given_twice_before_a_late_job_costs_a_chip_reset_and_no_wrong_token(make: Make) -> None:
    rig = make(Fault(FaultPoint.COMPLETION_DOUBLE), Fault(FaultPoint.COMPLETION_LATE, 2))
    orders = rig.orders
    rig.submit("a", ids_of(rig), 6)
    rig.retire_one()
    rig.retire_one()
    failed = [event for event in rig.events if isinstance(event, JobFailed)]
    assert [event.has_ended for event in failed] == [False]
    assert rig.steps.buffer_counts().quarantined == 1
    settle(rig)
    assert not orders
    rig.submit("b", ids_of(rig, 5), 40)
    rig.retire_one()
    rig.board.device.clock.advance(31 * 10**9)  # type: ignore[attr-defined]
    settle(rig)
    assert ended(rig, "b")[0].tokens == right_tokens(rig, 40, 5)
    assert rig.steps.endings.fenced == {}
    rig.assert_nothing_held()


def test_completion_given_twice_before_a_late_job_ends_the_process_where_no_reset_stops_writes(make: Make) -> None:
    rig = make(Fault(FaultPoint.COMPLETION_DOUBLE), Fault(FaultPoint.COMPLETION_LATE, 2), cut=("chip_reset",))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    assert [code for code, _ in rig.outlet.exits] == [75]


@pytest.mark.parametrize("has_ticket", [True, False])
def test_submit_whose_code_and_ticket_disagree_counts_as_a_job_that_may_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, has_ticket: bool
) -> None:
    rig = make()
    session = rig.steps.ports["s0"].session
    submit = session.submit
    monkeypatch.setattr(session, "submit", lambda *given: (18, submit(*given)[1]) if has_ticket else (0, None))
    rig.submit("a", ids_of(rig), 4)
    submitted, failed = [event for event in rig.events if isinstance(event, JobSubmitted | JobFailed)]
    assert isinstance(failed, JobFailed)
    assert isinstance(submitted, JobSubmitted)
    assert (failed.job, failed.has_ended, failed.failure.fault) == (submitted.job, False, FaultClass.UNKNOWN)
    assert rig.steps.buffer_counts().quarantined == 1
    assert all(port.pool.has_unended for port in rig.steps.endings.ports.values())
    assert not rig.jobs


def test_job_that_is_given_up_leaves_its_memory_with_its_pool(make: Make) -> None:
    rig = make()
    rig.submit("a", ids_of(rig), 4)
    job = rig.jobs.popleft()
    rig.steps.endings.add(rig.steps.ports.pop("s0"))
    rig.steps.take(GivenUp(job))
    assert job.lease.state is BufferState.QUARANTINED
    assert [port.pool.quarantined for port in rig.steps.endings.ports.values()] == [[job.lease]]
    assert not job.lease.has_ended


# --- two sessions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
def test_reset_of_the_configuration_ends_every_port_and_leaves_no_thread_behind(make: Make, rounds: int) -> None:
    """No narrower reset is proven: the sibling goes along, and the board's counters are looked at again after it."""
    rig = make(cut=("session_reset", "chip_reset"), two=True)
    seen: list[str | None] = []
    reset = rig.board.reset
    rig.board.reset = lambda scope, session: (seen.append(session), reset(scope, session))[1]  # type: ignore[method-assign]
    plan = rig.board.device.plan  # type: ignore[attr-defined]
    for n in range(rounds):
        plan.visits.clear()
        plan.__init__([Fault(FaultPoint.STATUS_CCU_EXCEPTION)])
        rig.board.device.clock.advance(700 * 10**9)  # type: ignore[attr-defined]
        for i in range(2):
            rig.submit(f"r{n}-{i}", ids_of(rig, i), 6)
        settle(rig)
        views = rig.engine.snapshot(rig.clock()).sessions
        assert {view.state for view in views} == {GenerationState.READY}
        rig.steps.check_ports(rig.generations)
        assert rig.generations == {(view.session, view.generation) for view in views}
    assert seen == [None] * rounds
    rig.steps.audit.last_ns = None
    rig.submit("after", ids_of(rig), 6)
    settle(rig)
    assert rig.steps.audit.last_ns is not None
    assert ended(rig, "after")[0].tokens == right_tokens(rig, 6)
    rig.assert_nothing_held()


def test_job_of_a_request_that_started_over_elsewhere_does_not_bring_its_old_sequence_back(make: Make) -> None:
    """Its session drains for a fault of the job beside it; the request goes on with the sibling meanwhile."""
    rig = make(two=True, jobs=2)

    def bring(request: str) -> None:
        at = next(i for i, job in enumerate(rig.jobs) if request in [row.request for row in job.spec.rows])
        rig.jobs.rotate(-at)
        rig.retire_one()

    rig.submit("R", ids_of(rig), 30)
    rig.submit("P", ids_of(rig, 9), 30)
    bring("R")
    bring("P")
    rig.submit("Q", ids_of(rig, 11), 30)
    rig.submit("X", ids_of(rig, 5), 12)
    away = next(job for job in rig.jobs if "X" in [row.request for row in job.spec.rows])
    beside = next(job for job in rig.jobs if job.spec.session == away.spec.session and job is not away)
    rig.jobs.remove(beside)
    beside.lease.step(BufferEvent.RETIRE)
    failed = JobFailed(beside.spec.job, beside.spec.generation, Failure("wait", 18, FaultClass.DEVICE, "x"))
    rig.steps.take(Completed(failed, beside, rig.clock()))
    for i in range(4):
        rig.submit(f"W{i}", ids_of(rig, 20), 9)
    for _ in range(80):
        resting = rig.steps.sequences.get("X")
        if resting is not None and len(resting.generated) >= 2:
            break
        at = next(i for i, job in enumerate(rig.jobs) if job.spec.session != away.spec.session)
        rig.jobs.rotate(-at)
        rig.retire_one()
    else:
        raise AssertionError("X never rested on the sibling")
    bring_home = rig.jobs.index(away)
    rig.jobs.rotate(-bring_home)
    rig.retire_one()
    assert rig.steps.sequences["X"] is resting
    settle(rig)
    told, ending = ended(rig, "X")
    assert (told.tokens, ending.reason) == (right_tokens(rig, 12, 5), FinishReason.LENGTH)
    rig.assert_nothing_held()


def test_completion_of_our_own_ticket_under_an_older_generation_is_misnamed_and_no_stray(make: Make) -> None:
    rig = make()
    rig.submit("a", ids_of(rig), 4)
    job = rig.jobs[0]
    status = JobStatus(job.ticket, job.ticket.generation - 1, StatusKind.DONE)
    outcome = completion_step(job, 0, status, rig.clock())
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.event, JobFailed)
    assert not outcome.event.has_ended
    assert not any(isinstance(order.command, Reset) for order in rig.orders)
