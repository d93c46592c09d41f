"""One fault at a time on the simulated board: what the steps report, what comes back, and that all of it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from executor_rig import Collected, ExecutorRig, byte_tokenizer
from harness import prompt

from calserve.core.events import Tick
from calserve.core.outcomes import FaultClass, FinishReason
from calserve.core.states import BufferState, GenerationState
from calserve.executor.completion import completion_step
from calserve.executor.messages import Ending
from calserve.runtime.sim import PROFILES, Fault, FaultPlan, FaultPoint, SimBoard, SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

Make = Callable[..., ExecutorRig]


@pytest.fixture
def make() -> Iterator[Make]:
    """A loaded rig; the faults count visits from the moment it is Ready."""
    boards: list[SimBoard] = []

    def made(*faults: Fault, profile: str = "assumed-lanes") -> ExecutorRig:
        clock, package = VirtualClock(), sim_package(PROFILES[profile])
        plan = FaultPlan()
        board = SimBoard(device=SimDevice(PROFILES[profile], clock, plan))
        boards.append(board)
        rig = ExecutorRig(board, package, clock.now_ns, byte_tokenizer(package.vocab_size))
        rig.load()
        plan.visits.clear()
        plan.__init__(faults)  # type: ignore[misc]
        return rig

    yield made
    for board in boards:
        board.close()


def settle(rig: ExecutorRig) -> None:
    """As the threads would: run what there is, and when only time helps, let it pass to the next deadline."""
    for _ in range(1000):
        rig.settle()
        due = rig.engine.next_deadline_ns()
        if due is None:
            return
        rig.board.device.clock.advance_to(max(due, rig.clock()))  # type: ignore[attr-defined]
        rig.post(Tick())
    raise AssertionError("never came to rest")


def ended(rig: ExecutorRig, request: str) -> tuple[Collected, Ending]:
    told = rig.outlet.told[request]
    assert told.terminals == 1
    assert told.ending is not None
    return told, told.ending


def ids_of(rig: ExecutorRig, salt: int = 3) -> list[int]:
    return prompt(rig.package, 7, salt=salt)


def right_tokens(rig: ExecutorRig, n: int, salt: int = 3) -> list[int]:
    return greedy_tokens(ids_of(rig, salt), n, vocab=rig.package.vocab_size)


@pytest.mark.parametrize("profile", ["assumed-lanes", "calculet-2chip"])
def test_submit_busy_is_tried_again_and_the_tokens_are_right(make: Make, profile: str) -> None:
    rig = make(Fault(FaultPoint.SUBMIT_BUSY, times=3), profile=profile)
    rig.submit("a", ids_of(rig), 2)
    settle(rig)
    told, ending = ended(rig, "a")
    assert ending.reason is FinishReason.LENGTH
    assert told.tokens[0] == right_tokens(rig, 1)[0]
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
