"""FI07-FI10 and FI12-FI15 of seed 003, section 12: what goes wrong once the board has the job."""

from __future__ import annotations

import numpy as np
import pytest
from fault_rig import Make, MakeAny, ended, ids_of, pass_time, right_tokens, settle, view_of
from harness import prompt

from calserve.core.events import JobFailed, JobOverdue, Shutdown, Warmed
from calserve.core.outcomes import FaultClass, FinishReason
from calserve.core.states import BufferState, GenerationState
from calserve.executor.completion import completion_step
from calserve.runtime.encoding import logits_index
from calserve.runtime.sim import Fault, FaultPoint

READY_AGAIN = (GenerationState.READY, 2)


def served_again(rig: object) -> None:
    """A new request on the generation after the fault, with the right tokens; nothing of the old one is held."""
    rig.submit("after", ids_of(rig, 50), 5)  # type: ignore[attr-defined, arg-type]
    settle(rig)  # type: ignore[arg-type]
    assert ended(rig, "after")[0].tokens == right_tokens(rig, 5, 50)  # type: ignore[arg-type]
    rig.assert_nothing_held()  # type: ignore[attr-defined]


def test_fi07_wait_that_times_out_delivers_nothing_and_quarantines_buffers_and_kv(make: Make) -> None:
    """The job is in fact done and its logits lie there: without a completion they are not looked at."""
    rig = make(Fault(FaultPoint.WAIT_TIMEOUT, at_visit=2, times=10**6))
    rig.submit("a", ids_of(rig), 6)
    rig.retire_one()
    job = rig.jobs[0]
    rig.retire_one()
    assert isinstance(rig.events[-1], JobOverdue)
    assert rig.outlet.told["a"].tokens == right_tokens(rig, 1)
    assert job.lease.state is BufferState.SUBMITTED
    assert rig.steps.buffer_counts().leased == 1
    while not rig.orders:
        assert pass_time(rig)
    # The reset is ordered and not yet done: nobody may have the lane or the buffers.
    assert job.lease.state is BufferState.SUBMITTED
    assert rig.steps.buffer_counts().leased == 1
    assert view_of(rig).state is GenerationState.RECOVERING
    rig.board.device.plan.heal()  # type: ignore[attr-defined]
    settle(rig)
    assert (view_of(rig).state, view_of(rig).generation) == READY_AGAIN
    told, ending = ended(rig, "a")
    assert ending.reason is FinishReason.DEVICE_FAULT
    assert told.tokens == right_tokens(rig, 1)
    served_again(rig)


def test_fi08_ccu_exception_is_a_failure_although_wait_says_success(make: Make) -> None:
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=3))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    (failed,) = [event for event in rig.events if isinstance(event, JobFailed)]
    assert (failed.failure.stage, failed.failure.code, failed.failure.fault) == ("status", 0, FaultClass.DEVICE)
    told, ending = ended(rig, "a")
    assert ending.reason is FinishReason.DEVICE_FAULT
    assert told.tokens == right_tokens(rig, 2)
    assert (view_of(rig).state, view_of(rig).generation) == READY_AGAIN
    served_again(rig)


@pytest.mark.parametrize("profile", ["assumed-lanes", "calculet-2chip"])
def test_fi09_output_smaller_than_the_vocabulary_is_seen_and_not_read(make: Make, profile: str) -> None:
    rig = make(Fault(FaultPoint.OUTPUT_SHORT, at_visit=2), profile=profile)
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    (failed,) = [event for event in rig.events if isinstance(event, JobFailed)]
    assert (failed.failure.stage, failed.failure.code) == ("output", 22)
    told, ending = ended(rig, "a")
    assert ending.reason is not FinishReason.LENGTH
    assert told.tokens == right_tokens(rig, 1)
    assert rig.specs[-1].lease.state is BufferState.QUARANTINED or view_of(rig).generation > 1


def test_fi10_nan_isolates_the_generation_and_its_goldens_run_again(make: Make) -> None:
    rig = make(Fault(FaultPoint.LOGITS_NAN, at_visit=2))
    warmed = sum(isinstance(event, Warmed) for event in rig.events)
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason in (FinishReason.INTERNAL, FinishReason.DEVICE_FAULT)
    assert told.tokens == right_tokens(rig, 1)
    again = [event for event in rig.events if isinstance(event, Warmed)][warmed:]
    assert [(event.generation, event.failure) for event in again] == [(2, None)]
    assert (view_of(rig).state, view_of(rig).generation) == READY_AGAIN
    served_again(rig)


def test_fi10_goldens_that_fail_again_keep_the_generation_from_ready(make: Make) -> None:
    rig = make(Fault(FaultPoint.LOGITS_NAN, at_visit=2, times=10**6))
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    ended(rig, "a")
    assert view_of(rig).state is GenerationState.FAILED
    rig.submit("b", ids_of(rig), 6)
    settle(rig)
    assert ended(rig, "b")[1].reason is FinishReason.REFUSED


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "all-minus-inf"])
def test_fi10_logits_that_are_not_finite_in_one_row_isolate_the_generation_on_every_board(
    make_any: MakeAny, value: float
) -> None:
    """The values stand in the host's memory when `wait` returns, as a device would have left them."""
    rig = make_any()
    names = [f"r{i}" for i in range(2)]
    for i, name in enumerate(names):
        rig.submit(name, prompt(rig.package, 5, salt=i), 8)
    while not (rig.jobs and len(rig.jobs[0].spec.rows) == 2):
        rig.retire_one()
    rig.retire_one()
    before = [list(rig.outlet.told[name].tokens) for name in names]
    job = rig.jobs.popleft()
    code, status = job.session.wait(job.ticket, 60 * 10**9)
    at = logits_index(job.contract, job.spec)[0]
    assert at is not None
    job.lease.buffers.host("logits")[at] = value
    outcome = completion_step(job, code, status, rig.clock())
    rig.steps.take(outcome)  # type: ignore[arg-type]
    rig.settle()
    assert rig.outlet.told[job.spec.rows[0].request].tokens == before[names.index(job.spec.rows[0].request)]
    assert (view_of(rig).state, view_of(rig).generation) == READY_AGAIN
    assert [event.failure for event in rig.events if isinstance(event, Warmed)] == [None, None]
    rig.assert_nothing_held()


def test_fi12_cancel_after_submit_is_waited_for_its_result_dropped_and_all_of_it_comes_back(make_any: MakeAny) -> None:
    rig = make_any()
    ids = prompt(rig.package, 7)
    alone = rig.run([ids], 5)[0]
    rig.submit("gone", ids, 5)
    job = rig.jobs[0]
    rig.cancel("gone")
    assert ended(rig, "gone")[1].reason is FinishReason.CANCELLED
    assert job.lease.state is BufferState.SUBMITTED
    assert rig.steps.buffer_counts().leased == 1
    rig.submit("next", ids, 5)
    rig.retire_one()
    assert job.lease.state in (BufferState.FREE, BufferState.SUBMITTED)  # back, or in the next job already
    rig.settle()
    assert rig.outlet.told["gone"].tokens == []
    assert ended(rig, "next")[0].tokens == alone
    rig.assert_nothing_held()


def test_fi13_shutdown_ends_the_queued_and_drains_the_submitted(make_any: MakeAny) -> None:
    rig = make_any()
    lanes = rig.package.max_lanes
    for i in range(lanes):
        rig.submit(f"r{i}", prompt(rig.package, 3, salt=i), 5)
    rig.submit("queued", prompt(rig.package, 9, salt=77), 5)
    assert len(rig.jobs) == 1
    rig.post(Shutdown(rig.clock() + 3600 * 10**9))
    told, ending = ended(rig, "queued")
    assert ending.reason in (FinishReason.REFUSED, FinishReason.SHUTDOWN)
    rig.settle()
    assert told.tokens == []
    for i in range(lanes):
        got, ending = ended(rig, f"r{i}")
        assert (ending.reason, len(got.tokens)) == (FinishReason.LENGTH, 5)
    assert [code for code, _ in rig.outlet.exits] == [0]
    counts = rig.steps.buffer_counts()
    assert (counts.leased, counts.quarantined) == (0, 0)
    assert rig.board.counters().left == 0


def test_fi14_completion_from_before_a_reset_writes_nothing_of_the_new_generation(make: Make) -> None:
    """The job computes on through the reset; its completion comes while its restarted request runs again."""
    late_ns = 80 * 10**9  # after wait (60 s), grace (5 s), reset, configure and warm-up; before 1500 tokens are out
    rig = make(Fault(FaultPoint.COMPLETION_LATE, value=late_ns))
    rig.submit("a", ids_of(rig), 1500)
    rig.retire_one()
    (lost,) = rig.overdue
    while view_of(rig).generation == 1 or not rig.jobs:
        if rig.orders:
            rig.run_order()
        else:
            assert pass_time(rig)
    assert lost.spec.generation == 1
    assert rig.clock() < late_ns
    settle(rig)
    told, ending = ended(rig, "a")
    assert (told.tokens, ending.reason) == (right_tokens(rig, 1500), FinishReason.LENGTH)
    assert rig.engine.snapshot(rig.clock()).counters["stale_completions"] == 1
    assert view_of(rig).generation == 2
    served_again(rig)


def test_fi15_slice_that_was_not_undone_is_found_on_return_and_quarantines_the_set(
    make_any: MakeAny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_any()
    pool = rig.steps.ports["s0"].pool
    rig.submit("a", prompt(rig.package, 7), 5)
    ill = rig.jobs[0].lease
    true = type(ill.buffers).undo_slices
    monkeypatch.setattr(type(ill.buffers), "undo_slices", lambda self: 0 if self is ill.buffers else true(self))
    rig.settle()
    assert pool.quarantined == [ill]
    assert ill.state is BufferState.QUARANTINED
    assert all(ill is not lease for leases in pool.free.values() for lease in leases)
    assert [job.lease for job in rig.specs].count(ill) == 1
    assert ended(rig, "a")[1].reason is FinishReason.LENGTH
    assert rig.steps.buffer_counts().leased == 0
