"""What `wait` returned, judged: every code with every status, and completions that name somebody else."""

from __future__ import annotations

import pytest
from executor_rig import ExecutorRig
from fault_rig import Make, ended, ids_of, right_tokens, settle

from calserve.core.events import JobFailed, JobOverdue
from calserve.core.outcomes import FaultClass, FinishReason
from calserve.core.states import BufferState
from calserve.executor.completion import Completed, Stray, completion_step
from calserve.runtime.contract import JobStatus, StatusKind, Ticket
from calserve.runtime.sim import Fault, FaultPoint

D = FaultClass
# Seed 003, section 8, for the codes a `wait` may give: class of the failure.
CLASSES = {15: D.UNKNOWN, 17: D.TRANSIENT, 18: D.DEVICE, 20: D.UNKNOWN, 24: D.DEVICE, 28: D.DEVICE, 3: D.UNKNOWN}


def in_flight(make: Make) -> tuple[ExecutorRig, Ticket]:
    rig = make()
    rig.submit("a", ids_of(rig), 4)
    return rig, rig.jobs[0].ticket


@pytest.mark.parametrize("kind", [*StatusKind, None], ids=str)
@pytest.mark.parametrize("code", [0, 13, *CLASSES])
def test_completion_only_code_0_with_status_done_is_a_success(make: Make, code: int, kind: StatusKind | None) -> None:
    rig, ticket = in_flight(make)
    job = rig.jobs.popleft()
    # The device really ends the job first, so that there are logits a careless judge could deliver.
    assert job.session.wait(ticket, 10**12)[0] == 0
    status = None if kind is None else JobStatus(ticket, ticket.generation, kind)
    outcome = completion_step(job, code, status, rig.clock())
    if code == 13:
        assert outcome == JobOverdue(job.spec.job, job.spec.generation)
        assert job.lease.state is BufferState.SUBMITTED
        return
    assert isinstance(outcome, Completed)
    if code == 0 and kind is StatusKind.DONE:
        assert not isinstance(outcome.event, JobFailed)
        assert outcome.deliveries[0] is not None
        return
    assert isinstance(outcome.event, JobFailed)
    assert outcome.event.has_ended is (kind in (StatusKind.DONE, StatusKind.DONE_CCU_EXCEPTION))
    failure = outcome.event.failure
    expected = CLASSES.get(code, D.UNKNOWN if kind is None else D.DEVICE)
    assert (failure.code, failure.fault) == (code, expected)
    assert failure.stage == ("wait" if code or kind is None else "status")
    assert outcome.deliveries == []
    assert not job.sequences[0].generated
    rig.steps.take(outcome)
    assert job.lease.state is BufferState.QUARANTINED
    assert rig.steps.buffer_counts().quarantined == 1


@pytest.mark.parametrize("shift", [-1, 1])
def test_completion_of_another_ticket_of_this_generation_fails_the_job_and_leaves_its_buffers_to_the_device(
    make: Make, shift: int
) -> None:
    rig, ticket = in_flight(make)
    other = Ticket(ticket.number + shift, ticket.job + shift, ticket.generation)
    job = rig.jobs.popleft()
    outcome = completion_step(job, 0, JobStatus(other, other.generation, StatusKind.DONE), rig.clock())
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.event, JobFailed)
    assert outcome.event.job == job.spec.job
    assert outcome.event.failure.fault is FaultClass.UNKNOWN
    assert job.lease.state is BufferState.SUBMITTED
    rig.steps.take(outcome)
    assert job.lease.state is BufferState.QUARANTINED
    assert "a" not in rig.endings() or rig.endings()["a"] is FinishReason.DEVICE_FAULT


def test_completion_of_a_later_generation_is_not_believed(make: Make) -> None:
    rig, ticket = in_flight(make)
    job = rig.jobs.popleft()
    outcome = completion_step(job, 0, JobStatus(ticket, ticket.generation + 1, StatusKind.DONE), rig.clock())
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.event, JobFailed)


def test_completion_of_an_older_generation_is_a_stray_whatever_its_code(make: Make) -> None:
    rig, ticket = in_flight(make)
    for code in (0, 13, 18):
        old = JobStatus(Ticket(ticket.number - 1, 0, ticket.generation - 1), ticket.generation - 1, StatusKind.DONE)
        assert isinstance(completion_step(rig.jobs[0], code, old, rig.clock()), Stray)
        assert rig.jobs[0].lease.state is BufferState.SUBMITTED


def test_completions_swapped_between_two_jobs_in_flight_fail_both_and_deliver_neither(make: Make) -> None:
    """Each wait is answered with the other's completion: no token of either job leaves, both sets of buffers are put
    away, and everything is right again in the next generation."""
    rig = make(Fault(FaultPoint.COMPLETION_SWAPPED), jobs=2)
    for i in range(6):
        rig.submit(f"r{i}", ids_of(rig, i), 8)
    jobs = list(rig.jobs)
    assert len(jobs) == 2
    rig.board.device.clock.advance_to(rig.clock() + 10**9)  # type: ignore[attr-defined]
    told = {name: len(got.tokens) for name, got in rig.outlet.told.items()}
    seen = len(rig.events)
    rig.retire_one()
    rig.retire_one()
    failed = [event for event in rig.events[seen:] if isinstance(event, JobFailed)]
    assert {event.job for event in failed} == {job.spec.job for job in jobs}
    assert {event.failure.fault for event in failed} == {FaultClass.UNKNOWN}
    assert {job.lease.state for job in jobs} == {BufferState.QUARANTINED}
    assert {name: len(got.tokens) for name, got in rig.outlet.told.items()} == told
    settle(rig)
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2
    for i in range(6):
        got, ending = ended(rig, f"r{i}")
        assert got.tokens == right_tokens(rig, 8, i)[: len(got.tokens)]
        assert ending.reason in (FinishReason.LENGTH, FinishReason.DEVICE_FAULT)
    rig.submit("after", ids_of(rig), 8)
    settle(rig)
    assert ended(rig, "after")[0].tokens == right_tokens(rig, 8)
    rig.assert_nothing_held()


def test_completion_given_twice_is_not_taken_for_the_next_jobs(make: Make) -> None:
    rig = make(Fault(FaultPoint.COMPLETION_DOUBLE), jobs=2)
    for i in range(4):
        rig.submit(f"r{i}", ids_of(rig, i), 6)
    settle(rig)
    for i in range(4):
        got, _ = ended(rig, f"r{i}")
        assert got.tokens == right_tokens(rig, 6, i)[: len(got.tokens)]
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2
    rig.assert_nothing_held()
