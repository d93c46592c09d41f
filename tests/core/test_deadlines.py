"""Three deadlines, three actions (seed 003, section 9.1)."""

from __future__ import annotations

from core_rig import MS, Rig, paged_facts, submits

from calserve.core.config import SchedulerConfig
from calserve.core.events import JobOverdue, PrepareFailed
from calserve.core.outcomes import QUEUE_STAGE, Failure, FaultClass
from calserve.core.states import GenerationState as G

LATE = Failure(QUEUE_STAGE, 13, FaultClass.TRANSIENT, "the queue deadline passed")


def test_admission_deadline_takes_the_request_out_of_the_line_and_touches_no_device() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("runs", new=50)
    rig.submit("waits", deadline=30 * MS)
    assert rig.engine.next_deadline_ns() == 30 * MS
    commands = rig.tick(30 * MS)
    assert [type(c).__name__ for c in commands] == ["Finish"]
    assert (rig.reason("waits"), rig.rows, rig.view.waiting_requests) == ("deadline", ["runs"], 0)


def test_queue_deadline_stands_in_the_job_and_past_it_the_rows_roll_back_and_go_again() -> None:
    rig = Rig(config=SchedulerConfig(queue_deadline_ns=40 * MS, transient_backoff_ns=5 * MS)).at(2 * MS).up()
    rig.submit("r1", new=4)
    assert rig.spec.submit_by_ns == 42 * MS
    old = rig.jobs.pop(rig.spec.job)
    (spec,) = submits(rig.at(50 * MS).send(PrepareFailed(old.job, 1, LATE)))
    assert (spec.rows, spec.submit_by_ns) == (old.rows, 90 * MS)
    assert (rig.view.state, rig.view.lanes_by_state["updating"], rig.view.lanes_by_state["unknown"]) == (G.READY, 1, 0)


def test_queue_deadline_missed_twice_at_one_instant_pauses_instead_of_spinning() -> None:
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=5 * MS)).up()
    rig.submit("r1", new=4)
    rig.send(PrepareFailed(rig.jobs.pop(1).job, 1, LATE))
    assert submits(rig.send(PrepareFailed(rig.jobs.pop(2).job, 1, LATE))) == []
    assert rig.engine.next_deadline_ns() == 5 * MS
    assert len(submits(rig.tick(5 * MS))) == 1


def test_queue_deadline_missed_on_and_on_never_ends_the_generation() -> None:
    rig = Rig().up()
    rig.submit("long", new=40)
    rig.done()
    for i in range(1, 50):
        rig.at(i * MS).send(PrepareFailed(rig.jobs.pop(rig.spec.job).job, 1, LATE))
    while rig.jobs:
        rig.done()
    assert (rig.reason("long"), rig.view.generation, rig.counters["missed_queue_deadlines"]) == ("length", 1, 49)
    assert not {"faults_transient", "retries_exhausted", "transient_retries", "rebuilds"} & set(rig.counters)


def test_queue_deadline_is_the_jobs_and_no_row_nearly_expired_shortens_it() -> None:
    rig = Rig(config=SchedulerConfig(queue_deadline_ns=5_000 * MS)).up()
    rig.submit("short", deadline=30 * MS)
    assert rig.spec.submit_by_ns == 5_000 * MS
    assert Rig(config=SchedulerConfig(queue_deadline_ns=0)).up().submit("r")[0].spec.submit_by_ns == 0  # type: ignore[union-attr]


def test_queue_deadline_missed_is_no_refusal_of_the_board() -> None:
    facts = paged_facts(max_in_flight=2, proven=paged_facts().proven | {"concurrent_jobs"})
    rig = Rig(config=SchedulerConfig(max_in_flight=2, transient_backoff_ns=MS), facts=facts).up()
    rig.submit("r1")
    for i in range(1, 5):
        old = rig.jobs.pop(rig.spec.job)
        rig.send(PrepareFailed(old.job, 1, LATE))
        rig.tick(i * 100 * MS)
    assert (rig.view.max_in_flight, rig.view.downgrade_reason) == (2, "")


def test_execution_deadline_keeps_buffers_and_lanes_waits_a_grace_then_recovers() -> None:
    proven = paged_facts().proven | {"chip_reset"}
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=50 * MS), facts=paged_facts(proven=proven)).up()
    rig.submit("r1", new=9)
    rig.done()
    assert rig.spec.execution_deadline_ns == 10_000 * MS  # the floor: 20 x 10 ms would be 200 ms
    rig.at(10_000 * MS).send(JobOverdue(rig.spec.job, 1))
    rig.submit("waits")
    assert (rig.view.state, rig.view.waiting_reason, rig.view.lanes_by_state["updating"]) == (G.READY, "paused", 1)
    assert "r1" not in rig.finished
    commands = rig.tick(10_050 * MS)
    assert (rig.view.state, rig.reason("r1")) == (G.RECOVERING, "device_fault")
    rig.jobs.clear()
    rig.lifecycle(commands)
    assert rig.rows == ["waits"]
