"""One fault at a time on the simulated board: what the steps report, what comes back, and that all of it does."""

from __future__ import annotations

import pytest
from executor_rig import ExecutorRig
from fault_rig import Make, ended, ids_of, right_tokens, settle

from calserve.core.events import Tick
from calserve.core.outcomes import FaultClass, FinishReason
from calserve.core.states import BufferState, GenerationState
from calserve.executor.completion import Completed, Stray, SubmittedJob, completion_step
from calserve.executor.pool import QUARANTINE_LIMIT
from calserve.runtime.contract import JobStatus, StatusKind
from calserve.runtime.sim import Fault, FaultPoint


@pytest.mark.parametrize("profile", ["assumed-lanes", "calculet-2chip"])
def test_submit_busy_is_tried_again_and_the_tokens_are_right(make: Make, profile: str) -> None:
    rig = make(Fault(FaultPoint.SUBMIT_BUSY, times=3), profile=profile)
    rig.submit("a", ids_of(rig), 2)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason is FinishReason.LENGTH
    assert told.tokens[0] == right_tokens(rig, 1)[0]
    rig.assert_nothing_held()


def test_two_jobs_in_flight_have_buffers_of_their_own_and_right_tokens(make: Make) -> None:
    rig = make(jobs=2)
    for i in range(6):
        rig.submit(f"r{i}", ids_of(rig, i), 8)
    assert len(rig.jobs) == 2
    assert rig.jobs[0].lease.buffers is not rig.jobs[1].lease.buffers
    settle(rig)
    for i in range(6):
        assert ended(rig, f"r{i}")[0].tokens == right_tokens(rig, 8, i)
    assert "transient_retries" not in rig.engine.snapshot(rig.clock()).counters
    rig.assert_nothing_held()


def test_kv_refused_by_the_board_waits_for_a_release_and_does_not_poll(make: Make) -> None:
    rig = make(Fault(FaultPoint.KV_CANNOT_ALLOCATE, at_visit=2, times=1))
    rig.submit("first", ids_of(rig, 1), 4)
    rig.submit("second", ids_of(rig, 2), 4)
    visits = rig.board.device.plan.visits  # type: ignore[attr-defined]
    while visits[FaultPoint.KV_CANNOT_ALLOCATE] < 2:
        rig.retire_one()
    while "first" not in rig.endings():
        assert visits[FaultPoint.KV_CANNOT_ALLOCATE] == 2
        rig.retire_one()
    assert visits[FaultPoint.KV_CANNOT_ALLOCATE] == 3
    settle(rig)
    for name, salt in (("first", 1), ("second", 2)):
        told, ending = ended(rig, name)
        assert ending.reason is FinishReason.LENGTH
        assert told.tokens == right_tokens(rig, 4, salt)
    rig.assert_nothing_held()


def test_kv_refused_with_nothing_to_release_ends_by_the_requests_deadline(make: Make) -> None:
    rig = make(Fault(FaultPoint.KV_CANNOT_ALLOCATE, times=1000))
    rig.submit("alone", ids_of(rig), 4)
    settle(rig)
    assert ended(rig, "alone")[1].reason is FinishReason.DEADLINE
    rig.board.device.plan.heal()  # type: ignore[attr-defined]
    rig.assert_nothing_held()


@pytest.mark.parametrize(
    "point", [FaultPoint.MAP_FAILS, FaultPoint.CSR_FAILS, FaultPoint.KV_APPLY_FAILS, FaultPoint.ALLOCATE_FAILS]
)
def test_failure_before_submit_reaches_no_device_and_leaves_nothing_behind(make: Make, point: FaultPoint) -> None:
    rig = make(Fault(point))
    rig.submit("a", ids_of(rig), 4)
    settle(rig)
    ended(rig, "a")
    rig.submit("b", ids_of(rig), 4)
    settle(rig)
    if rig.engine.snapshot(rig.clock()).sessions[0].state is GenerationState.READY:
        assert ended(rig, "b")[0].tokens == right_tokens(rig, 4)
    else:
        ended(rig, "b")
    rig.assert_nothing_held()


def test_ccu_exception_with_success_code_fails_the_job_and_recovers(make: Make) -> None:
    """Code 0 is not enough (seed 003, FI08): no token of the job is delivered; a new generation serves again."""
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=3))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason is FinishReason.DEVICE_FAULT
    assert told.tokens == right_tokens(rig, 6)[:2]
    view = rig.engine.snapshot(rig.clock()).sessions[0]
    assert (view.state, view.generation) == (GenerationState.READY, 2)
    rig.submit("b", ids_of(rig), 6)
    settle(rig)
    assert ended(rig, "b")[0].tokens == right_tokens(rig, 6)
    rig.assert_nothing_held()


def test_nan_logits_are_never_delivered_and_the_generation_is_checked_again(make: Make) -> None:
    rig = make(Fault(FaultPoint.LOGITS_NAN, at_visit=2))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason in (FinishReason.INTERNAL, FinishReason.DEVICE_FAULT)
    assert told.tokens == right_tokens(rig, 6)[:1]
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2


def test_request_whose_settings_leave_no_token_ends_alone_and_costs_no_generation(make: Make) -> None:
    rig = make()
    everything = tuple(range(rig.package.vocab_size))
    rig.submit("greedy", ids_of(rig, 1), 4)
    rig.submit("absurd", ids_of(rig, 2), 4, stop_token_ids=everything)
    settle(rig)
    _, ending = ended(rig, "absurd")
    assert ending.reason is FinishReason.INTERNAL
    assert ending.failure is not None
    assert ending.failure.fault is FaultClass.REQUEST
    assert ended(rig, "greedy")[0].tokens == right_tokens(rig, 4, 1)
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 1
    rig.assert_nothing_held()


def test_short_output_is_seen_before_it_is_read(make: Make) -> None:
    rig = make(Fault(FaultPoint.OUTPUT_SHORT, at_visit=2))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason not in (FinishReason.STOP, FinishReason.LENGTH)
    assert told.tokens == right_tokens(rig, 6)[:1]


def test_buffers_that_cannot_be_cleaned_are_never_used_again(make: Make) -> None:
    rig = make(Fault(FaultPoint.BUFFER_RESET_FAILS, at_visit=2))
    rig.submit("a", ids_of(rig), 6)
    rig.settle()
    pool = rig.steps.ports["s0"].pool
    assert [lease.state for lease in pool.quarantined] == [BufferState.QUARANTINED]
    ill = pool.quarantined[0].buffers
    assert all(lease.buffers is not ill for leases in pool.free.values() for lease in leases)
    assert ended(rig, "a")[0].tokens == right_tokens(rig, 6)
    assert pool.leased == 0


def test_wait_that_times_out_keeps_the_job_and_says_so_once(make: Make) -> None:
    rig = make(Fault(FaultPoint.WAIT_TIMEOUT, at_visit=2))
    rig.submit("a", ids_of(rig), 6)
    rig.retire_one()
    job = rig.jobs.popleft()
    code, status = job.session.wait(job.ticket, 0)
    overdue = completion_step(job, code, status, rig.clock())
    rig.post(overdue)  # type: ignore[arg-type]
    assert job.lease.state is BufferState.SUBMITTED
    code, status = job.session.wait(job.ticket, 60_000_000_000)
    rig.steps.take(completion_step(job, code, status, rig.clock()))
    settle(rig)
    told, _ = ended(rig, "a")
    assert told.tokens == right_tokens(rig, len(told.tokens))
    rig.assert_nothing_held()


def test_completion_that_names_another_job_is_not_believed(make: Make) -> None:
    rig = make(Fault(FaultPoint.COMPLETION_DOUBLE, at_visit=1))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    told, ending = ended(rig, "a")
    assert told.tokens == right_tokens(rig, 6)[: len(told.tokens)]
    assert ending.reason is FinishReason.DEVICE_FAULT
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2


def test_lease_dropped_while_submitted_complains(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    rig = make()
    rig.submit("a", ids_of(rig), 6)
    job = rig.jobs.popleft()
    rig.specs.clear()
    job.lease = None  # type: ignore[assignment]
    assert "dropped while submitted" in caplog.text


def lost_job(make: Make) -> ExecutorRig:
    """A job that never came back; its generation was reset away and its request runs again in the next one."""
    rig = make(Fault(FaultPoint.JOB_NEVER_COMPLETES))
    rig.submit("a", ids_of(rig), 6)
    rig.retire_one()
    assert rig.overdue
    while not rig.jobs:
        due = rig.engine.next_deadline_ns()
        if rig.orders:
            rig.run_order()
        else:
            assert due is not None
            rig.board.device.clock.advance_to(max(due, rig.clock()))  # type: ignore[attr-defined]
            rig.post(Tick())
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2
    return rig


def bring_home(rig: ExecutorRig, job: SubmittedJob) -> None:
    code, status = job.session.wait(job.ticket, 0)
    outcome = completion_step(job, code, status, rig.clock())
    assert isinstance(outcome, Completed)
    rig.steps.take(outcome)


@pytest.mark.parametrize("retired_before", [0, 2])
def test_late_completion_of_a_lost_job_changes_nothing_and_is_counted(make: Make, retired_before: int) -> None:
    """It comes while the restarted request is in its first job, or in its third."""
    rig = lost_job(make)
    for _ in range(retired_before):
        rig.retire_one()
    bring_home(rig, rig.overdue[0])
    settle(rig)
    told, ending = ended(rig, "a")
    assert (told.tokens, ending.reason) == (right_tokens(rig, 6), FinishReason.LENGTH)
    assert rig.engine.snapshot(rig.clock()).counters["stale_completions"] == 1
    assert rig.generations == {("s0", 2)}
    rig.assert_nothing_held()


def test_old_generation_seen_in_a_new_wait_is_counted_and_waited_past(make: Make) -> None:
    """The board answers a new job's wait with an old job's completion: the new one is not failed for it."""
    rig = lost_job(make)
    job, old = rig.jobs.popleft(), rig.overdue[0].ticket
    stray = completion_step(job, 0, JobStatus(old, old.generation, StatusKind.DONE), rig.clock())
    assert isinstance(stray, Stray)
    rig.post(stray.event)
    assert job.lease.state is BufferState.SUBMITTED
    rig.jobs.appendleft(job)
    settle(rig)
    assert ended(rig, "a")[0].tokens == right_tokens(rig, 6)
    assert rig.engine.snapshot(rig.clock()).counters["stale_completions"] == 1
    assert rig.engine.snapshot(rig.clock()).sessions[0].generation == 2


def test_outlet_learns_of_a_drain_when_it_begins(make: Make) -> None:
    """Readiness follows `core`, also while a recovery still drains and no order has gone out."""
    rig = make(Fault(FaultPoint.LOGITS_NAN, at_visit=4))
    rig.submit("bad", ids_of(rig, 1), 9)
    rig.submit("good", ids_of(rig, 2), 9)
    while rig.engine.snapshot(rig.clock()).sessions[0].state is GenerationState.READY:
        rig.retire_one()
    assert rig.outlet.sessions[0].state is rig.engine.snapshot(rig.clock()).sessions[0].state


def test_board_that_spoils_buffers_again_and_again_costs_a_bounded_number(make: Make) -> None:
    rig = make(Fault(FaultPoint.BUFFER_RESET_FAILS, times=1000))
    pool = rig.steps.ports["s0"].pool
    rig.submit("a", ids_of(rig), 60)
    for _ in range(QUARANTINE_LIMIT + 1):
        rig.retire_one()
    assert len(pool.quarantined) == QUARANTINE_LIMIT + 1
    assert not rig.jobs
    assert rig.engine.snapshot(rig.clock()).sessions[0].state is not GenerationState.READY


def test_lane_that_never_reached_the_board_is_not_released_on_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request cancelled after its admission and before its first job holds nothing there."""
    rig = make()
    kv, released = rig.steps.ports["s0"].session.kv, []
    release = kv.release
    monkeypatch.setattr(kv, "release", lambda lane: (released.append(lane), release(lane))[1])
    rig.submit("first", ids_of(rig, 1), 4)
    rig.submit("second", ids_of(rig, 2), 4)
    rig.cancel("second")
    settle(rig)
    assert released == [rig.specs[0].spec.rows[0].lane]
    rig.assert_nothing_held()
