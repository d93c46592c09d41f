"""Lifecycle steps as a simulation sees them: they ask for a job's end and never wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fault_rig import Make, ended, ids_of, pass_time, right_tokens, settle, view_of

from calserve.core.commands import Configure, Reset, Validate, Warm
from calserve.core.events import BoardAnomaly, Configured, ResetDone, Unload, Validated, Warmed
from calserve.core.outcomes import BoardNote, FaultClass
from calserve.core.states import BufferState, GenerationState
from calserve.executor.audit import AUDIT_EVERY_NS
from calserve.executor.completion import Completed, completion_step
from calserve.executor.lifecycle import AwaitJob, LifecycleDone, LifecycleOrder, LifecycleSteps, drive
from calserve.runtime.contract import BoardPackage, Health, JobStatus, LoadOptions, StatusKind
from calserve.runtime.sim import Fault, FaultPoint, SimBoard, VirtualClock, sim_package

PACKAGE = sim_package()


@pytest.fixture
def board() -> Iterator[SimBoard]:
    made = SimBoard(clock=VirtualClock())
    yield made
    made.close()


def steps_of(board: SimBoard, package: BoardPackage = PACKAGE) -> LifecycleSteps:
    return LifecycleSteps(board, lambda _hash: package, {"s0": LoadOptions((0, 1))}, board.device.clock.now_ns)


def order(command: Validate | Configure | Warm) -> LifecycleOrder:
    return LifecycleOrder(command)


def loaded(board: SimBoard) -> LifecycleSteps:
    steps = steps_of(board)
    drive(steps.take(order(Validate("s0", 1, "m", PACKAGE.hash))))
    done = drive(steps.take(order(Configure("s0", 1, PACKAGE.hash))))
    assert isinstance(done.event, Configured)
    assert done.event.failure is None
    return steps


def test_order_that_is_taken_but_not_driven_has_done_nothing(board: SimBoard) -> None:
    steps = steps_of(board)
    steps.take(order(Validate("s0", 1, "m", PACKAGE.hash)))
    assert steps.packages == {}


def test_warm_up_asks_for_each_job_while_it_is_in_flight_and_time_stands_still(board: SimBoard) -> None:
    """The step returns to its driver with the job still on the device: whoever drives lets time pass, not the step."""
    steps, clock = loaded(board), board.device.clock
    warm = steps.take(order(Warm("s0", 1)))
    asked, answer = 0, None
    while True:
        now = clock.now_ns()
        try:
            wanted = next(warm) if answer is None else warm.send(answer)
        except StopIteration as end:
            done: LifecycleDone = end.value
            break
        assert isinstance(wanted, AwaitJob)
        assert clock.now_ns() == now
        assert board.counters().left == 1
        answer = wanted.session.wait(wanted.ticket, wanted.timeout_ns)
        asked += 1
    assert isinstance(done.event, Warmed)
    assert done.event.failure is None
    assert done.session is not None
    goldens = sum(len(golden.output_ids) for golden in PACKAGE.goldens)
    assert asked > goldens


@pytest.mark.parametrize(
    ("code", "kind", "stage"),
    [
        (13, None, "lost"),
        (13, StatusKind.DONE, "lost"),
        (18, None, "lost"),
        (28, StatusKind.DONE, "warm"),
        (0, StatusKind.DONE_CCU_EXCEPTION, "warm"),
        (18, StatusKind.DONE_CCU_EXCEPTION, "warm"),
        (0, StatusKind.RUNNING, "lost"),
        (28, StatusKind.RUNNING, "lost"),
        (0, None, "lost"),
    ],
)
def test_warm_up_that_is_told_anything_but_done_fails(
    board: SimBoard, code: int, kind: StatusKind | None, stage: str
) -> None:
    """Lost: nothing says that the job is over, so the device may write on."""
    steps = loaded(board)
    warm = steps.take(order(Warm("s0", 1)))
    wanted = next(warm)
    status = None if kind is None else JobStatus(wanted.ticket, 1, kind)
    with pytest.raises(StopIteration) as end:
        warm.send((code, status))
    event = end.value.value.event
    assert isinstance(event, Warmed)
    assert event.failure is not None
    assert event.failure.stage == stage


@pytest.mark.parametrize(("number", "generation"), [(1, 1), (0, 2)])
def test_warm_up_does_not_believe_a_completion_of_another_job(board: SimBoard, number: int, generation: int) -> None:
    steps = loaded(board)
    warm = steps.take(order(Warm("s0", 1)))
    ticket = next(warm).ticket
    named = replace(ticket, number=ticket.number + number)
    with pytest.raises(StopIteration) as end:
        warm.send((0, JobStatus(named, generation, StatusKind.DONE)))
    failure = end.value.value.event.failure
    assert (failure.stage, failure.fault) == ("lost", FaultClass.UNKNOWN)


def test_warm_up_waits_past_a_completion_of_an_older_generation_and_tells_of_it(board: SimBoard) -> None:
    steps = loaded(board)
    warm = steps.take(order(Warm("s0", 1)))
    wanted = next(warm)
    again = warm.send((0, JobStatus(replace(wanted.ticket, job=77, generation=0), 0, StatusKind.DONE)))
    assert again == wanted
    answer = again.wait()
    while True:
        try:
            answer = warm.send(answer).wait()
        except StopIteration as end:
            done: LifecycleDone = end.value
            break
    assert isinstance(done.event, Warmed)
    assert done.event.failure is None
    assert [(stray.job, stray.generation) for stray in done.aside] == [(77, 0)]


# --- exact names (seed 003, section 10.2) ---


def with_graph(index: int, **fields: object) -> BoardPackage:
    graphs = list(PACKAGE.graphs)
    graphs[index] = replace(graphs[index], **fields)  # type: ignore[arg-type]
    return replace(PACKAGE, graphs=tuple(graphs))


def test_package_with_two_graphs_of_one_name_is_not_valid(board: SimBoard) -> None:
    profile = replace(PACKAGE.graphs[2].profile, name=PACKAGE.graphs[1].name)
    steps = steps_of(board, with_graph(2, profile=profile))
    event = drive(steps.take(order(Validate("s0", 1, "m", PACKAGE.hash)))).event
    assert isinstance(event, Validated)
    assert event.failure is not None
    assert (event.failure.code, event.failure.fault) == (19, FaultClass.ARTIFACT)
    assert event.failure.detail == f"two graphs are named {PACKAGE.graphs[1].name}"


def test_session_whose_graphs_are_not_usable_is_closed_again(board: SimBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The board's own contract is wrong, not the package's: the chip is free for another package afterwards."""
    steps = steps_of(board)
    drive(steps.take(order(Validate("s0", 1, "m", PACKAGE.hash))))
    configure = board.configure

    def odd(*given: object) -> object:
        code, session = configure(*given)  # type: ignore[arg-type]
        assert session is not None
        session.graphs = {graph.name: graph for graph in with_graph(1, csr_names=("only_one",)).graphs}
        return code, session

    monkeypatch.setattr(board, "configure", odd)
    event = drive(steps.take(order(Configure("s0", 1, PACKAGE.hash)))).event
    assert isinstance(event, Configured)
    assert event.failure is not None
    assert event.failure.stage == "configure"
    monkeypatch.undo()
    event = drive(steps.take(order(Configure("s0", 2, PACKAGE.hash)))).event
    assert isinstance(event, Configured)
    assert event.failure is None


# --- around a reset ---


def test_reset_says_how_the_board_stood_before_and_after(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION))
    stands = iter((Health(False, "a job died"), Health(True)))
    monkeypatch.setattr(rig.board, "health", lambda: next(stands))
    rig.submit("a", ids_of(rig), 4)
    settle(rig)
    (done,) = [event for event in rig.events if isinstance(event, ResetDone)]
    versions = tuple(sorted(rig.board.describe().versions.items()))
    assert done.before == BoardNote(versions, False, "a job died")
    assert done.after == BoardNote(versions, True)


def test_memory_of_a_generation_is_kept_until_the_board_is_done_with_it(make: Make) -> None:
    """From the order to reset until its answer the device may still write what was quarantined."""
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION))
    rig.submit("a", ids_of(rig), 4)
    rig.retire_one()
    assert not rig.steps.ports
    assert rig.steps.buffer_counts().quarantined == 1
    kept = rig.specs[-1].lease
    assert [kept] == [lease for port in rig.steps.endings.ports.values() for lease in port.pool.quarantined]
    settle(rig)
    assert view_of(rig).generation == 2
    assert rig.steps.endings.ports == rig.steps.endings.fenced == {}
    counts = rig.steps.buffer_counts()
    assert (counts.leased, counts.quarantined) == (0, 0)
    assert counts.allocated > 0
    assert all(key.generation == 2 for key in rig.steps.ports["s0"].pool.allocated)


def test_reset_that_failed_and_is_tried_again_still_closes_the_session(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION), Fault(FaultPoint.RESET_FAILS))
    old = rig.steps.ports["s0"].session
    closed: list[str] = []
    close = old.close
    monkeypatch.setattr(old, "close", lambda: (closed.append("closed"), close())[1])
    rig.submit("a", ids_of(rig), 4)
    settle(rig)
    resets = [event.failure for event in rig.events if isinstance(event, ResetDone)]
    assert [failure is None for failure in resets] == [False, True]
    assert closed == ["closed"]
    assert view_of(rig).generation == 2


def test_memory_of_a_lost_job_is_kept_until_its_reset_is_done(make: Make) -> None:
    rig = make(Fault(FaultPoint.JOB_NEVER_COMPLETES))
    rig.submit("a", ids_of(rig), 4)
    while not rig.orders:
        if rig.jobs:
            rig.retire_one()
        else:
            assert pass_time(rig)
    assert isinstance(rig.orders[0].command, Reset)
    assert not rig.steps.ports
    assert rig.steps.buffer_counts().leased == 1
    (lost,) = rig.overdue
    assert lost.lease.state is BufferState.SUBMITTED
    settle(rig)
    assert rig.steps.endings.ports == rig.steps.endings.fenced == {}
    assert rig.steps.buffer_counts().leased == 0
    assert view_of(rig).generation == 2


def test_memory_of_a_lost_job_that_comes_home_during_its_reset_is_put_away(make: Make) -> None:
    rig = make(Fault(FaultPoint.JOB_NEVER_COMPLETES))
    rig.submit("a", ids_of(rig), 4)
    while not rig.orders:
        if rig.jobs:
            rig.retire_one()
        else:
            assert pass_time(rig)
    (lost,) = rig.overdue
    late = completion_step(lost, 18, None, rig.clock())
    assert isinstance(late, Completed)
    rig.steps.take(late)
    counts = rig.steps.buffer_counts()
    assert (counts.leased, counts.quarantined) == (0, 1)
    settle(rig)
    rig.assert_nothing_held()


# --- the board's own account ---


def anomalies(events: list[object]) -> list[BoardAnomaly]:
    return [event for event in events if isinstance(event, BoardAnomaly)]


def test_counters_that_close_after_a_drain_are_no_anomaly(make: Make) -> None:
    rig = make()
    rig.run([ids_of(rig, i) for i in range(8)], 6)
    assert anomalies(rig.events) == []  # type: ignore[arg-type]
    assert rig.steps.audit.last_ns is not None


def test_counters_that_do_not_close_are_told_once_in_a_while(make: Make) -> None:
    rig = make(Fault(FaultPoint.COUNTERS_WRONG, times=10**6))
    visits = rig.board.device.plan.visits  # type: ignore[attr-defined]
    rig.steps.audit.last_ns = None
    for i in range(3):
        rig.submit(f"r{i}", ids_of(rig, i), 6)
        settle(rig)
    assert visits[FaultPoint.COUNTERS_WRONG] == 1
    (told,) = anomalies(rig.events)  # type: ignore[arg-type]
    assert (told.session, told.generation) == ("s0", 1)
    assert told.detail == "nothing is in flight, and the board counts 0 pending and 1 left"
    assert ended(rig, "r2")[0].tokens == right_tokens(rig, 6, 2)
    rig.board.device.clock.advance(AUDIT_EVERY_NS)  # type: ignore[attr-defined]
    rig.submit("r3", ids_of(rig, 3), 6)
    settle(rig)
    assert visits[FaultPoint.COUNTERS_WRONG] == 2


def test_counters_are_not_read_while_a_job_is_in_flight(make: Make) -> None:
    rig = make(jobs=2)
    for i in range(6):
        rig.submit(f"r{i}", ids_of(rig, i), 8)
    while len(rig.jobs) == 2:
        rig.steps.audit.last_ns = None
        rig.retire_one()
    settle(rig)
    assert anomalies(rig.events) == []  # type: ignore[arg-type]


def test_lane_that_the_board_will_not_release_is_an_anomaly(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A code nobody looked at would leave the device's view of KV and ours apart without a word."""
    rig = make()
    monkeypatch.setattr(type(rig.steps.ports["s0"].session.kv), "release", lambda _self, _lane: 4)
    rig.submit("a", ids_of(rig), 2)
    settle(rig)
    ended(rig, "a")
    (told,) = anomalies(rig.events)  # type: ignore[arg-type]
    assert told.detail == "the board refused to release lane 0 (code 4)"


def test_counters_are_read_before_a_session_is_released(make: Make) -> None:
    rig = make(Fault(FaultPoint.COUNTERS_WRONG, times=10**6))
    rig.steps.audit.last_ns = rig.clock()
    rig.post(Unload("s0", rig.clock() + 10**9))
    settle(rig)
    assert len(anomalies(rig.events)) == 1  # type: ignore[arg-type]
    assert view_of(rig).state is GenerationState.UNLOADED


def test_warm_up_whose_lane_stays_held_is_no_warm_up(board: SimBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device would hold every lane from the start, and the model be Ready and serve nobody."""
    steps = loaded(board)
    monkeypatch.setattr("calserve.runtime.sim.session.SimKvMirror.release", lambda _mirror, _lane: 4)
    event = drive(steps.take(order(Warm("s0", 1)))).event
    assert isinstance(event, Warmed)
    assert event.failure is not None
    assert (event.failure.stage, event.failure.code, event.failure.fault) == ("warm", 4, FaultClass.LIFECYCLE)


def test_counters_that_stay_wrong_are_told_once_of_a_generation(make: Make) -> None:
    """Seen when a job came home and again before the release: it is the same job that is left."""
    rig = make(Fault(FaultPoint.COUNTERS_WRONG, times=10**6))
    rig.steps.audit.last_ns = None
    rig.submit("a", ids_of(rig), 6)
    settle(rig)
    rig.post(Unload("s0", rig.clock() + 10**9))
    settle(rig)
    assert rig.board.device.plan.visits[FaultPoint.COUNTERS_WRONG] == 2  # type: ignore[attr-defined]
    assert [(told.session, told.generation) for told in anomalies(rig.events)] == [("s0", 1)]  # type: ignore[arg-type]
    audit = rig.steps.audit
    assert audit.news("s0", 1, 0) == ""
    assert audit.news("s0", 2, 0) != ""
    assert audit.news("s1", 1, 0) != ""


def test_packages_of_the_past_are_not_kept(board: SimBoard) -> None:
    """However many builds an operator tries, one of each session stays: the last one that was valid."""
    opened = {f"{number:064x}": replace(PACKAGE, hash=f"{number:064x}") for number in range(50)}
    steps = LifecycleSteps(board, lambda wanted: opened[wanted], {"s0": LoadOptions((0, 1))}, board.device.clock.now_ns)
    for number, wanted in enumerate(opened, 1):
        drive(steps.take(order(Validate("s0", number, "m", wanted))))
    assert [package.hash for package in steps.packages.values()] == [list(opened)[-1]]
    done = drive(steps.take(order(Configure("s0", 50, list(opened)[-1]))))
    assert isinstance(done.event, Configured)
    assert done.event.failure is None
