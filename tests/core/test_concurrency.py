"""Two jobs in flight, and every way back to one (seed 002, section 14)."""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, lane_facts, paged_facts, submits

from calserve.core.concurrency import Concurrency, Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.events import BoardAnomaly, JobDone, JobFailed, JobOverdue, Load, PrepareFailed, ResetDone, RowResult
from calserve.core.job import Bank
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FaultClass, RowEnd
from calserve.core.states import GenerationState

F = FaultClass
PROVEN = EVERYTHING | {"concurrent_jobs", "chip_reset"}


def two(**config: object) -> Rig:
    """a and b in a job each; everybody else would wait for one of them."""
    settings = SchedulerConfig(max_in_flight=2, transient_backoff_ns=MS, **config)  # type: ignore[arg-type]
    rig = Rig(config=settings, facts=paged_facts(max_in_flight=2, proven=PROVEN)).up()
    rig.submit("a", new=30)
    rig.submit("b", new=30)
    assert len(rig.jobs) == 2
    assert (rig.view.max_in_flight, rig.view.downgrade_reason) == (2, "")
    return rig


def lowered(rig: Rig) -> str:
    """The reason, after checking that it is one job at a time from here and is counted once."""
    view = rig.view
    assert view.max_in_flight == 1
    assert rig.counters["downgrades_" + view.downgrade_reason] == 1
    return view.downgrade_reason


def test_anomaly_of_the_counters_lowers_new_jobs_only_and_the_submitted_drain() -> None:
    rig = two()
    assert rig.send(BoardAnomaly("s", 1, "left 1 after a drain")) == []
    assert lowered(rig) == "counters"
    assert len(rig.jobs) == 2
    assert submits(rig.done()) == []  # the other one is still on the board
    while rig.jobs:
        rig.done()
        assert len(rig.jobs) <= 1
    assert {rig.reason(name) for name in ("a", "b")} == {"length"}


def test_anomaly_of_a_generation_that_is_gone_is_counted_and_changes_nothing() -> None:
    rig = two()
    rig.send(BoardAnomaly("s", 7, "left 1"))
    assert (rig.view.max_in_flight, rig.counters["board_anomalies"]) == (2, 1)


def test_board_that_keeps_a_released_lane_gets_a_new_generation_after_the_answers_ended() -> None:
    """Room that the ledger counts is not there: only another generation brings board and ledger together again."""
    rig = two()
    rig.send(BoardAnomaly("s", 1, "the board refused to release lane 3", is_kv=True))
    assert rig.view.state is GenerationState.DRAINING
    while rig.jobs:
        rig.done()
    assert {rig.reason(name) for name in ("a", "b")} == {"length"}
    assert rig.view.state is not GenerationState.READY
    assert rig.counters.get("resets", 0) == 0


@pytest.mark.parametrize(
    ("kind", "reason"), [(F.UNKNOWN, "cross_talk"), (F.DEVICE, "status")], ids=["another's", "bad status"]
)
def test_status_that_is_wrong_beside_another_job_lowers_and_stays_down_after_the_recovery(kind: F, reason: str) -> None:
    rig = two()
    spec = rig.jobs.pop(1)
    rig.send(JobFailed(spec.job, 1, fault(kind, "status")))
    assert lowered(rig) == reason
    commands = rig.done()
    rig.lifecycle(commands)
    assert (rig.view.generation, lowered(rig), len(rig.jobs)) == (2, reason, 1)


def test_status_that_is_wrong_of_a_job_that_was_alone_says_nothing_about_two() -> None:
    rig = Rig(SchedulerConfig(max_in_flight=2), paged_facts(max_in_flight=2, proven=PROVEN)).up()
    rig.submit("a", new=30)
    spec = rig.jobs.pop(1)
    rig.send(JobFailed(spec.job, 1, fault(F.DEVICE, "status")))
    assert rig.view.downgrade_reason == ""


def test_completion_that_comes_twice_while_two_are_in_flight_lowers() -> None:
    rig = two()
    first = rig.jobs[1]
    rig.done(1)
    assert len(rig.jobs) == 2
    rig.send(JobDone(first.job, 1, (RowResult(RowEnd.NONE, 1),)))
    assert (lowered(rig), rig.counters["stale_completions"]) == ("status", 1)


def test_completion_of_an_older_generation_while_two_are_in_flight_lowers() -> None:
    rig = Rig(SchedulerConfig(max_in_flight=2), paged_facts(max_in_flight=2, proven=PROVEN)).up()
    rig.submit("x", new=1)
    old = rig.spec
    rig.lifecycle(rig.failed(F.DEVICE))
    rig.submit("y", new=9)
    assert len(rig.jobs) == 2
    rig.send(JobFailed(old.job, 1, Failure("status", 20, F.UNKNOWN, "a completion of an older generation")))
    assert lowered(rig) == "status"


def test_output_that_is_not_usable_beside_another_job_lowers() -> None:
    rig = two()
    rig.done(1, ends={"a": RowEnd.ERROR})
    assert lowered(rig) == "output"


def test_three_refusals_within_a_minute_lower_and_spread_out_they_do_not() -> None:
    for pause, reason in ((20_000 * MS, "refusals"), (40_000 * MS, "")):
        rig = two()
        for _ in range(3):
            rig.unprepared(F.TRANSIENT)
            rig.tick(rig.now + pause)
            rig.done()
        assert rig.view.downgrade_reason == reason


def test_overdue_jobs_count_as_refusals() -> None:
    rig = two()
    for _ in range(3):
        job = min(rig.jobs)
        rig.send(JobOverdue(job, 1))
        rig.at(rig.now + MS).done(job)
        while rig.jobs:
            rig.done()
            if len(rig.jobs) == 2:
                break
    assert lowered(rig) == "refusals"


def test_recovery_of_uncertain_outcome_lowers_for_the_generations_after_it() -> None:
    rig = two(overdue_grace_ns=50 * MS)
    rig.send(JobOverdue(1, 1))
    commands = rig.tick(50 * MS)
    rig.jobs.clear()
    rig.lifecycle(commands)
    assert (rig.view.generation, lowered(rig), len(rig.jobs)) == (2, "recovery", 1)
    failed = two()
    failed.failed(F.DEVICE, job=1)
    failed.done()
    failed.send(ResetDone("s", 1, fault(F.DEVICE, "reset")))
    assert failed.view.downgrade_reason == "recovery"


def test_recovery_that_went_as_it_should_keeps_two() -> None:
    rig = two()
    rig.failed(F.DEVICE, job=1)
    rig.lifecycle(rig.done())
    assert (rig.view.generation, rig.view.max_in_flight) == (2, 2)
    rig.submit("c")
    assert len(rig.jobs) == 2


def test_load_by_an_operator_allows_two_again() -> None:
    rig = two()
    rig.send(BoardAnomaly("s", 1, "left 1"))
    commands = rig.send(Load("s", "m", "q"))
    while rig.jobs:
        commands = rig.done()
    rig.lifecycle(commands)
    assert (rig.view.package, rig.view.max_in_flight, rig.view.downgrade_reason) == ("q", 2, "")


def test_second_job_the_board_does_not_support_is_switched_off_and_its_rows_go_later() -> None:
    rig = two()
    younger = rig.jobs.pop(2)
    assert submits(rig.send(PrepareFailed(2, 1, fault(F.PROGRAMMING, "submit")))) == []
    assert (lowered(rig), rig.view.features_off, rig.finished) == ("unsupported", ("second_job",), {})
    (again,) = submits(rig.done())
    assert {row.request for row in younger.rows} <= {row.request for row in again.rows}


def test_pinned_bank_the_board_does_not_support_is_left_to_the_board_from_then_on() -> None:
    facts = lane_facts(max_in_flight=2, proven=PROVEN - {"mixed_batch", "incremental_prefill"})
    rig = Rig(SchedulerConfig(max_in_flight=2, fixed_engine=True), facts).up()
    rig.submit("a")
    assert rig.spec.bank is Bank.PING
    rig.unprepared(F.PROGRAMMING)
    assert (rig.spec.bank, rig.view.features_off, rig.finished) == (Bank.AUTO, ("pinned_bank",), {})


# --- latency --------------------------------------------------------------------------------------------


def watch(proven: int = 2) -> tuple[Concurrency, Outbox]:
    out = Outbox()
    room = Concurrency(out, 2)
    room.open(proven)
    return room, out


def test_latency_99th_percentile_beyond_five_percent_of_warm_up_lowers_at_the_verdict() -> None:
    for took, reason in ((105, ""), (106, "latency")):
        room, _ = watch()
        for i in range(256):
            assert room.allowed == 2
            room.note_step(took if i < 3 else 100, 100, had_company=True)  # the three slowest of 256
        assert room.reason == reason


def test_latency_two_outliers_in_a_window_decide_nothing() -> None:
    room, _ = watch()
    for i in range(512):
        room.note_step(9_000 if i % 128 == 0 else 100, 100, had_company=True)
    assert room.allowed == 2


def test_latency_is_held_against_jobs_that_were_alone_where_there_are_enough() -> None:
    for alone, took, reason in ((64, 85, "latency"), (64, 84, ""), (63, 104, "")):
        room, _ = watch()
        for _ in range(alone):
            room.note_step(80, 100, had_company=False)
        for _ in range(256):
            room.note_step(took, 100, had_company=True)
        assert room.reason == reason


def test_latency_of_steps_nobody_measured_is_no_measure() -> None:
    room, _ = watch()
    for _ in range(300):
        room.note_step(10**9, 0, had_company=True)
    assert room.allowed == 2


def test_latency_is_fed_by_the_jobs_the_board_gives_back() -> None:
    rig = two()
    for i in range(600):
        if rig.view.max_in_flight == 1:
            break
        rig.submit(f"r{i}", new=2)
        job = min(rig.jobs)
        spec = rig.jobs.pop(job)
        rows = tuple(RowResult(RowEnd.NONE, int(row.logits.value != "none")) for row in spec.rows)
        rig.send(JobDone(job, 1, rows, device_ns=500 * MS))
    assert lowered(rig) == "latency"


def test_lower_keeps_the_first_reason_and_counts_it_once() -> None:
    room, out = watch()
    room.lower(Doubt.COUNTERS)
    room.lower(Doubt.LATENCY)
    assert (room.reason, out.counters) == ("counters", {"downgrades_counters": 1})
    one, _ = watch(1)
    one.lower(Doubt.COUNTERS)
    assert one.reason == ""  # nothing was given up
