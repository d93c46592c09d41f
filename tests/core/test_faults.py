"""What each class of failure does to the job, to admission and to the generation (seed 003, sections 8 and 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, paged_facts, submits

from calserve.core.commands import Command, Configure, Release, Reset, ResetScope, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.events import JobDone, JobOverdue, Load, Released, ResetDone, RowResult, Shutdown, Unload
from calserve.core.outcomes import Failure, FaultClass, RowEnd
from calserve.core.states import GenerationState as G
from calserve.core.supervisor import EXIT_UNKNOWN_DMA

F = FaultClass
CHIP_RESET = EVERYTHING | {"chip_reset"}


def streaming(rig: Rig | None = None) -> Rig:
    """`seen` has sent two tokens and decodes; `waits` has no lane."""
    rig = rig or Rig(facts=paged_facts(lanes=1))
    rig.up()
    rig.submit("seen", new=20)
    rig.submit("waits", new=2)
    rig.done()
    rig.done()
    return rig


# --- a job that came back bad ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason", "state"),
    [
        (F.REQUEST, "internal", G.READY),  # its lane is fenced, the other three serve on
        (F.PROGRAMMING, "internal", G.READY),
        (F.TRANSIENT, "device_fault", G.READY),
        (F.LIFECYCLE, "device_fault", G.RECOVERING),
        (F.DEVICE, "device_fault", G.RECOVERING),
        (F.UNKNOWN, "device_fault", G.RECOVERING),
        (F.ARTIFACT, "internal", G.FAILED),
        (F.COMPATIBILITY, "internal", G.FAILED),
    ],
)
def test_job_failed_each_class_has_its_end_and_its_aftermath(kind: F, reason: str, state: G) -> None:
    rig = Rig().up()
    rig.submit("r1", new=20)
    rig.done()
    rig.failed(kind)
    assert (rig.reason("r1"), rig.view.state) == (reason, state)
    assert rig.finished["r1"].failure == fault(kind)
    assert any(isinstance(o, Reset) for o in rig.orders) == (kind in (F.DEVICE, F.UNKNOWN))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (F.REQUEST, "internal"),
        (F.PROGRAMMING, "internal"),
        (F.LIFECYCLE, "device_fault"),
    ],
)
def test_job_failed_its_lanes_are_fenced_the_others_end_and_the_generation_is_rebuilt(kind: F, reason: str) -> None:
    rig = Rig(facts=replace(paged_facts(lanes=2), lanes=3)).up()  # two rows a job, three lanes
    for name in ("a", "b", "c"):
        rig.submit(name, new=6)
    while "c" in rig.rows or len(rig.rows) < 2 or min(row.first_position for row in rig.spec.rows) < 8:
        rig.done()
    fenced = {row.lane: row.kv_units for row in rig.spec.rows}
    rig.failed(kind)
    assert (rig.reason("a"), rig.reason("b"), rig.view.state) == (reason, reason, G.DRAINING)
    assert rig.view.lanes_by_state["unknown"] == 2
    rig.submit("late")
    assert rig.refusal("late") == ("model_recovering", 0, 0)
    commands: list[Command] = []
    while rig.jobs:
        (row,) = rig.spec.rows
        assert row.request == "c"
        assert row.lane not in fenced
        assert not set(row.kv_units) & {unit for units in fenced.values() for unit in units}
        commands = rig.done()
    assert rig.reason("c") == "length"
    rig.lifecycle(commands)
    assert (rig.view.state, rig.view.generation, rig.view.lanes_by_state["free"]) == (G.READY, 2, 3)


def test_job_failed_when_fenced_lanes_leave_no_room_the_generation_is_rebuilt_without_a_reset() -> None:
    rig = streaming()
    commands = rig.failed(F.REQUEST)
    assert rig.view.state is G.RECOVERING
    assert commands[-1] == Release("s", 1, fault(F.REQUEST))
    assert "waits" not in rig.finished
    assert rig.send(Released("s", 1)) == [Configure("s", 2, "p")]
    rig.lifecycle(rig.send(rig.answer(Configure("s", 2, "p"))))
    assert (rig.view.state, rig.rows) == (G.READY, ["waits"])
    assert ("resets" in rig.counters, rig.counters["rebuilds"]) == (False, 1)


def fenced_one_of_four(units: int = 64) -> Rig:
    """A job of class request came back bad: its lane holds what nobody knows, three lanes are well."""
    rig = Rig(facts=paged_facts(units=units)).up()
    rig.submit("bad", prompt=40, new=4)
    rig.failed(F.REQUEST)
    assert (rig.view.state, rig.view.lanes_by_state["unknown"]) == (G.READY, 1)
    return rig


def test_fenced_lane_the_others_serve_on_and_never_touch_it() -> None:
    rig = fenced_one_of_four()
    (fenced,) = [lane.index for lane in rig.engine.supervisor.sessions["s"].worker.serving.ledger.lanes if lane.units]  # type: ignore[union-attr]
    for name in ("a", "b", "c"):
        rig.submit(name, new=3)
    while rig.jobs:
        assert fenced not in {row.lane for row in rig.spec.rows}
        rig.done()
    assert {rig.reason(name) for name in ("a", "b", "c")} == {"length"}
    assert (rig.view.generation, rig.view.state) == (1, G.READY)


def test_fenced_half_of_the_lanes_the_generation_is_rebuilt_and_the_running_end_first() -> None:
    rig = fenced_one_of_four()
    rig.submit("worse", new=4)
    rig.failed(F.REQUEST)
    assert (rig.view.state, rig.counters["cramped_generations"]) == (G.RECOVERING, 1)


def test_fenced_units_that_keep_the_head_out_for_good_ask_for_a_rebuild() -> None:
    rig = fenced_one_of_four(units=8)  # 3 of 8 units of 16 are fenced
    rig.submit("runs", new=2)
    rig.submit("fits_what_is_left", prompt=60, new=10)  # 5 units, and one is promised to `runs`
    assert (rig.view.state, rig.view.waiting_reason) == (G.READY, "kv_units")
    rig.done()
    rig.done()
    assert rig.rows == ["fits_what_is_left"]
    rig.submit("large", prompt=60, new=30)  # 6 units: never beside the fence
    assert rig.view.state is G.DRAINING
    assert "large" not in rig.finished
    commands: list[Command] = []
    while rig.jobs:
        commands = rig.done()
    rig.lifecycle(commands)
    assert (rig.reason("fits_what_is_left"), rig.rows, rig.view.generation) == ("length", ["large"], 2)


def test_transient_failure_after_submit_backs_off_and_the_unseen_request_starts_over() -> None:
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=5 * MS)).up()
    rig.submit("r1", new=2)
    assert submits(rig.failed(F.TRANSIENT)) == []
    assert (rig.view.state, rig.view.waiting_reason) == (G.READY, "backing_off")
    (spec,) = submits(rig.tick(5 * MS))
    assert (spec.rows[0].request, spec.rows[0].first_position, spec.rows[0].lane) == ("r1", 0, 1)


@pytest.mark.parametrize("kind", [F.REQUEST, F.PROGRAMMING, F.LIFECYCLE])
def test_rebuild_the_same_trouble_again_of_a_class_without_a_reset_is_failed(kind: F) -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("r1")
    rig.lifecycle(rig.failed(kind))
    assert rig.view.generation == 2
    rig.submit("r2")
    assert rig.failed(kind)[-1] == Release("s", 2, fault(kind))
    assert (rig.view.state, "resets" in rig.counters, rig.counters["rebuilds_in_vain"]) == (G.FAILED, False, 1)


@pytest.mark.parametrize(("kind", "package"), [(F.REQUEST, "good"), (F.PROGRAMMING, None), (F.LIFECYCLE, None)])
def test_rebuild_in_vain_rolls_back_only_where_the_artifact_is_to_blame(kind: F, package: str | None) -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up(package="good").up(package="new")
    for name in ("r1", "r2"):
        rig.submit(name)
        rig.lifecycle(rig.failed(kind))
    is_back = package is not None
    assert (rig.view.state, rig.view.package) == (G.READY if is_back else G.FAILED, package or "new")


def test_rebuild_for_a_fenced_lane_is_not_blamed_on_a_later_busy_board() -> None:
    rig = Rig(SchedulerConfig(transient_backoff_ns=MS), paged_facts(lanes=2)).up()
    rig.submit("r1", new=9)
    rig.unprepared(F.TRANSIENT)
    rig.tick(MS)
    assert rig.failed(F.REQUEST)[-1] == Release("s", 1, fault(F.REQUEST))


def test_rebuild_the_same_trouble_again_of_a_busy_board_is_a_reset_and_the_window_forgives() -> None:
    rig = Rig(SchedulerConfig(max_transient_retries=0)).up()
    rig.submit("r1")
    rig.lifecycle(rig.failed(F.TRANSIENT))
    rig.submit("r2")
    assert rig.failed(F.TRANSIENT)[-1] == Reset("s", 2, ResetScope.SESSION, fault(F.TRANSIENT))
    later = Rig(facts=paged_facts(lanes=1)).up()
    later.submit("r1")
    later.lifecycle(later.failed(F.REQUEST))
    later.at(600_000 * MS).submit("r2")
    assert isinstance(later.failed(F.REQUEST)[-1], Release)


def test_rebuild_whose_release_fails_becomes_a_reset() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("r1")
    rig.failed(F.REQUEST)
    broken = fault(F.TRANSIENT, "release", 17)
    assert rig.send(Released("s", 1, broken)) == [Reset("s", 1, ResetScope.SESSION, broken)]
    rig.lifecycle(rig.send(ResetDone("s", 1)))
    assert (rig.view.state, rig.view.generation) == (G.READY, 2)


def test_rebuild_unload_in_the_middle_comes_down_after_the_release() -> None:
    rig = streaming()
    rig.failed(F.REQUEST)
    rig.send(Unload("s", 100 * MS))
    assert rig.refusal("waits") == ("model_draining", 0, 0)
    assert rig.send(Released("s", 1)) == []
    assert rig.view.state is G.UNLOADED


def test_rebuild_a_device_fault_of_the_job_still_out_makes_it_a_reset() -> None:
    proven = EVERYTHING | {"concurrent_jobs"}
    rig = Rig(config=SchedulerConfig(max_in_flight=2), facts=paged_facts(max_in_flight=2, proven=proven)).up()
    rig.submit("a", new=9)
    rig.submit("b", new=9)
    rig.unprepared(F.LIFECYCLE)  # nothing more goes out; the other job is on the device
    assert rig.view.state is G.DRAINING
    assert isinstance(rig.failed(F.DEVICE)[-1], Reset)


# --- a job that never started ---------------------------------------------------------------------------


def test_prepare_failed_kv_is_rolled_back_and_the_same_rows_go_again() -> None:
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=5 * MS)).up()
    rig.submit("r1", prompt=20, new=4)
    rig.done()
    before = rig.spec.rows
    assert submits(rig.unprepared(F.TRANSIENT)) == []
    assert rig.engine.next_deadline_ns() == 5 * MS
    (spec,) = submits(rig.tick(5 * MS))
    assert spec.rows == before


def test_busy_backs_off_doubling_then_drains_for_a_recovery() -> None:
    rig = Rig(config=SchedulerConfig(max_transient_retries=3, transient_backoff_ns=5 * MS)).up()
    rig.submit("r1")
    waits = []
    for _ in range(3):
        rig.unprepared(F.TRANSIENT)
        due = rig.engine.next_deadline_ns()
        assert due is not None
        waits.append((due - rig.now) // MS)
        rig.tick(due)
    assert waits == [5, 10, 20]
    rig.unprepared(F.TRANSIENT)
    assert rig.view.state is G.RECOVERING
    assert rig.counters["transient_retries"] == 4


def test_busy_a_success_forgets_the_refusals() -> None:
    rig = Rig(config=SchedulerConfig(max_transient_retries=1, transient_backoff_ns=5 * MS)).up()
    rig.submit("r1", new=9)
    for i in range(1, 5):
        rig.unprepared(F.TRANSIENT)
        rig.tick(i * 5 * MS)
        rig.done()
    assert (rig.view.state, rig.counters["transient_retries"]) == (G.READY, 4)


def test_prepare_failed_by_the_request_ends_only_that_job_and_frees_its_lanes() -> None:
    rig = Rig().up()
    rig.submit("r1")
    rig.unprepared(F.REQUEST, stage="csr")
    assert (rig.reason("r1"), rig.view.state, rig.view.lanes_by_state["free"]) == ("internal", G.READY, 4)


@pytest.mark.parametrize("kind", [F.LIFECYCLE, F.DEVICE, F.UNKNOWN])
def test_prepare_failed_that_wants_a_recovery_submits_nothing_more_to_that_generation(kind: F) -> None:
    rig = streaming()
    commands = rig.unprepared(kind)
    assert submits(commands) == []
    assert (rig.reason("seen"), rig.view.state) == ("device_fault", G.RECOVERING)
    rig.lifecycle(commands)
    assert (rig.view.generation, rig.rows) == (2, ["waits"])


@pytest.mark.parametrize("stage", ["submit", "kv"])
@pytest.mark.parametrize("kind", list(F))
def test_prepare_failed_again_and_again_at_one_instant_comes_to_rest(kind: F, stage: str) -> None:
    rig = Rig().up()
    for name in ("stream1", "stream2"):
        rig.submit(name, new=50)
    while len(rig.rows) < 2:
        rig.done()
    for name in ("begins1", "begins2"):
        rig.submit(name, prompt=60)  # one of them fills a job
    refusals = 0
    while rig.jobs:
        rig.unprepared(kind, stage)
        refusals += 1
        assert refusals <= 4, "the board refuses the same rows on and on"
    if kind in (F.REQUEST, F.PROGRAMMING):
        assert len(rig.finished) == 4  # each refusal ended somebody
    if kind is F.TRANSIENT:
        due = rig.engine.next_deadline_ns()
        assert due is not None
        assert due > rig.now


def test_prepare_failed_for_kv_twice_at_one_instant_pauses_the_rows_that_remain() -> None:
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=5 * MS)).up()
    rig.submit("stream", new=50)
    for name in ("begins1", "begins2"):
        rig.submit(name, prompt=100)
    rig.done()
    assert rig.rows == ["stream", "begins1"]
    rig.unprepared(F.TRANSIENT, stage="kv")
    assert rig.rows == ["stream", "begins2"]
    assert submits(rig.unprepared(F.TRANSIENT, stage="kv")) == []
    assert rig.engine.next_deadline_ns() == 5 * MS
    rig.tick(5 * MS)
    assert rig.rows == ["stream"]


def test_prepare_failed_for_kv_whose_last_holder_is_fenced_is_tried_again_by_its_time() -> None:
    rig = Rig(SchedulerConfig(kv_retry_ns=700 * MS)).up()
    rig.submit("holds", new=20)
    rig.done()
    rig.submit("waits", new=4)
    rig.done()
    assert rig.rows == ["holds", "waits"]
    rig.unprepared(F.TRANSIENT, stage="kv")
    assert (rig.rows, rig.view.waiting_reason) == (["holds"], "kv_released")
    rig.failed(F.REQUEST)
    assert (rig.jobs, rig.view.state, rig.view.waiting_reason) == ({}, G.READY, "kv_released")
    assert rig.engine.next_deadline_ns() == 700 * MS
    rig.tick(700 * MS)
    assert rig.rows == ["waits"]


def test_busy_without_a_backoff_still_does_not_go_again_at_the_same_instant() -> None:
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=0)).up()
    rig.submit("r1")
    assert submits(rig.unprepared(F.TRANSIENT)) == []
    assert rig.engine.next_deadline_ns() == 1
    assert len(submits(rig.tick(1))) == 1


def test_prepare_failed_by_the_device_recovers_and_the_unseen_request_survives() -> None:
    rig = Rig().up()
    rig.submit("r1", new=2)
    rig.lifecycle(rig.unprepared(F.DEVICE))
    assert (rig.view.generation, rig.rows) == (2, ["r1"])


# --- recovery -------------------------------------------------------------------------------------------


def test_recovery_resets_configures_the_next_generation_warms_and_serves() -> None:
    rig = streaming()
    assert rig.failed(F.DEVICE)[-1] == Reset("s", 1, ResetScope.SESSION, fault(F.DEVICE))
    rig.submit("new")
    assert rig.refusal("new") == ("model_recovering", 0, 0)
    assert rig.send(ResetDone("s", 1)) == [Configure("s", 2, "p")]
    assert rig.send(rig.answer(Configure("s", 2, "p"))) == [Warm("s", 2)]
    (spec,) = submits(rig.send(rig.answer(Warm("s", 2))))
    assert (spec.generation, spec.rows[0].request, spec.rows[0].first_position) == (2, "waits", 0)
    while rig.jobs:
        rig.done()
    assert rig.reason("waits") == "length"


def test_recovery_an_admitted_request_nobody_saw_anything_of_starts_over_once() -> None:
    rig = Rig().up()
    rig.submit("r1", prompt=100, new=4)
    rig.done()  # one chunk of 64 in KV, nothing sent
    rig.lifecycle(rig.failed(F.DEVICE))
    assert (rig.rows, rig.spec.rows[0].first_position) == (["r1"], 0)
    rig.lifecycle(rig.failed(F.DEVICE))
    assert rig.reason("r1") == "device_fault"
    assert rig.counters["restarted_requests"] == 1


def test_recovery_scope_without_a_proven_reset_is_the_configuration() -> None:
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(facts=paged_facts(proven=proven)).up()
    rig.submit("r1")
    assert rig.failed(F.DEVICE)[-1] == Reset("s", 1, ResetScope.CONFIGURATION, fault(F.DEVICE))


def test_recovery_of_a_wide_scope_waits_for_the_sibling_and_is_ordered_once() -> None:
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(facts=paged_facts(proven=proven)).up("a", model="ma").up("b", model="mb")
    rig.submit("r1", model="ma")
    rig.submit("r2", new=3, model="mb")
    rig.failed(F.DEVICE, job=1)
    assert not [o for o in rig.orders if isinstance(o, Reset)]  # b still has a job on the device
    rig.submit("r3", model="mb")
    assert rig.refusal("r3") == ("model_recovering", 0, 0)
    while len(rig.jobs):
        rig.done()
    assert rig.reason("r2") == "length"
    assert [o for o in rig.orders if isinstance(o, Reset)] == [Reset("a", 1, ResetScope.CONFIGURATION, fault(F.DEVICE))]
    commands = rig.send(ResetDone("a", 1))
    assert commands == [Configure("a", 3, "p"), Configure("b", 4, "p")]


def test_recovery_of_a_session_scope_leaves_the_sibling_serving() -> None:
    rig = Rig().up("a", model="ma").up("b", model="mb")
    rig.submit("r1", model="ma")
    rig.submit("r2", new=5, model="mb")
    rig.failed(F.DEVICE, job=1)
    assert [v.state for v in rig.engine.snapshot(0).sessions] == [G.RECOVERING, G.READY]
    while rig.jobs:
        rig.done()
    assert rig.reason("r2") == "length"


def test_recovery_beyond_the_reset_budget_is_failed_and_the_window_forgives() -> None:
    config = SchedulerConfig(max_resets=2, reset_window_ns=600_000 * MS)
    rig = Rig(config=config).up()
    for i in range(2):
        rig.submit(f"r{i}", new=1)
        rig.lifecycle(rig.failed(F.DEVICE))
        rig.done()
    rig.submit("third")
    rig.failed(F.DEVICE)
    assert (rig.view.state, rig.counters["resets"]) == (G.FAILED, 2)
    later = Rig(config=config).up()
    for i in range(4):
        later.at(i * 400_000 * MS).submit(f"r{i}", new=1)
        later.lifecycle(later.failed(F.DEVICE))
        later.done()
    assert (later.view.state, later.counters["resets"]) == (G.READY, 4)


def test_recovery_a_failed_reset_is_followed_by_the_next_wider_one() -> None:
    rig = streaming(Rig(SchedulerConfig(max_resets=3), paged_facts(lanes=1, proven=CHIP_RESET)))
    rig.failed(F.DEVICE)
    broken = fault(F.DEVICE, "reset", 25)
    assert rig.send(ResetDone("s", 1, broken)) == [Reset("s", 1, ResetScope.CHIP, broken)]
    assert rig.send(ResetDone("s", 1, broken)) == [Reset("s", 1, ResetScope.CONFIGURATION, broken)]
    assert "waits" not in rig.finished
    rig.lifecycle(rig.send(ResetDone("s", 1)))
    assert (rig.view.state, rig.rows) == (G.READY, ["waits"])
    assert (rig.counters["resets"], rig.counters["failed_resets"]) == (3, 2)


def test_recovery_wider_resets_are_within_the_budget() -> None:
    rig = streaming(Rig(SchedulerConfig(max_resets=1), paged_facts(lanes=1, proven=CHIP_RESET)))
    rig.failed(F.DEVICE)
    rig.send(ResetDone("s", 1, fault(F.DEVICE, "reset", 25)))
    assert rig.exit is not None
    assert (rig.exit.code, rig.counters["resets"]) == (EXIT_UNKNOWN_DMA, 1)


@pytest.mark.parametrize("restarts", [True, False])
def test_recovery_a_wider_reset_takes_a_sibling_along_only_where_the_process_would_end(restarts: bool) -> None:
    rig = Rig(SchedulerConfig(restart_on_unknown_dma=restarts)).up("a", model="ma").up("b", model="mb")
    rig.submit("r1", model="ma")
    rig.failed(F.DEVICE)
    rig.send(ResetDone("a", 1, fault(F.DEVICE, "reset", 25)))
    states = [v.state for v in rig.engine.snapshot(0).sessions]
    assert states == ([G.RECOVERING, G.RECOVERING] if restarts else [G.FAILED, G.READY])
    assert rig.exit is None


def test_recovery_a_lost_job_is_never_answered_by_more_than_a_chip() -> None:
    rig = overdue(CHIP_RESET)
    rig.tick(60 * MS)
    rig.send(ResetDone("s", 1, fault(F.DEVICE, "reset", 25)))
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA
    assert [o.scope for o in rig.orders if isinstance(o, Reset)] == [ResetScope.CHIP]


def test_recovery_a_ladder_of_failed_resets_ends_the_process_after_everyone_was_told() -> None:
    rig = streaming()
    rig.failed(F.DEVICE)
    rig.send(ResetDone("s", 1, fault(F.DEVICE, "reset", 25)))
    commands = rig.send(ResetDone("s", 1, fault(F.DEVICE, "reset", 25)))
    assert rig.refusal("waits") == ("model_failed", 0, 0)
    assert rig.exit is not None
    assert commands[-1] == rig.exit
    assert (rig.exit.code, rig.exit.reason) == (EXIT_UNKNOWN_DMA, "session s: reset 25")


def test_recovery_a_failed_reset_without_restart_is_failed_and_fenced() -> None:
    rig = streaming(Rig(config=SchedulerConfig(restart_on_unknown_dma=False), facts=paged_facts(lanes=1)))
    rig.failed(F.DEVICE)
    for _ in range(2):
        rig.send(ResetDone("s", 1, fault(F.DEVICE, "reset", 25)))
    assert (rig.view.state, rig.exit) == (G.FAILED, None)
    assert not [o for o in rig.orders if isinstance(o, Release)]


def test_recovery_a_completion_after_the_reset_touches_nothing() -> None:
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=MS), facts=paged_facts(proven=CHIP_RESET)).up()
    rig.submit("r1", new=9)
    old = rig.spec
    rig.send(JobOverdue(old.job, 1))
    rig.jobs.clear()
    rig.lifecycle(rig.tick(MS))
    assert (rig.view.generation, rig.rows) == (2, ["r1"])
    assert rig.send(JobDone(old.job, 1, (RowResult(RowEnd.EOS, 1),))) == []
    assert ("r1" in rig.finished, rig.counters["stale_completions"]) == (False, 1)


def test_recovery_unload_in_the_middle_releases_instead_of_serving_again() -> None:
    rig = streaming()
    rig.failed(F.DEVICE)
    rig.send(Unload("s", 100 * MS))
    assert rig.refusal("waits") == ("model_draining", 0, 0)
    assert rig.send(ResetDone("s", 1)) == [Release("s", 1)]


# --- overdue --------------------------------------------------------------------------------------------


def overdue(proven: frozenset[str], **config: object) -> Rig:
    settings = SchedulerConfig(overdue_grace_ns=50 * MS, **config)  # type: ignore[arg-type]
    rig = streaming(Rig(config=settings, facts=paged_facts(lanes=1, proven=proven)))
    rig.at(10 * MS).send(JobOverdue(rig.spec.job, 1))
    return rig


def test_overdue_stops_admission_keeps_everything_and_waits_a_grace() -> None:
    rig = overdue(EVERYTHING)
    assert (rig.view.state, rig.view.waiting_reason, rig.view.jobs_in_flight) == (G.READY, "paused", 1)
    assert rig.engine.next_deadline_ns() == 60 * MS
    assert "seen" not in rig.finished


def test_overdue_that_comes_back_in_time_goes_on_as_if_nothing_was() -> None:
    rig = overdue(EVERYTHING)
    assert len(submits(rig.at(59 * MS).done())) == 1
    while rig.jobs:
        rig.done()
    assert (rig.reason("seen"), rig.finished["seen"].usage.completion_tokens) == ("length", 20)


def test_overdue_past_the_grace_with_a_proven_chip_reset_recovers() -> None:
    rig = overdue(CHIP_RESET)
    commands = rig.tick(60 * MS)
    assert rig.reason("seen") == "device_fault"
    assert isinstance(commands[-1], Reset)
    assert commands[-1].scope is ResetScope.CHIP
    rig.jobs.clear()
    rig.lifecycle(commands)
    assert rig.rows == ["waits"]


def test_overdue_past_the_grace_without_a_reset_that_stops_writes_ends_the_process() -> None:
    rig = overdue(EVERYTHING)
    rig.tick(60 * MS)
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA
    assert (rig.reason("seen"), rig.reason("waits")) == ("device_fault", "refused")


def test_overdue_past_the_grace_without_restart_is_failed() -> None:
    rig = overdue(EVERYTHING, restart_on_unknown_dma=False)
    rig.tick(60 * MS)
    assert (rig.view.state, rig.exit) == (G.FAILED, None)


# --- a row that is not usable ---------------------------------------------------------------------------


ISOLATED = paged_facts(proven=EVERYTHING | {"lane_fault_isolation"})


def test_unusable_row_without_proven_isolation_is_a_failed_job_and_nothing_of_it_is_delivered() -> None:
    rig = Rig().up()
    for name in ("bad", "mate", "apart"):
        rig.submit(name, prompt=60, new=20)
    while {row.request for row in rig.spec.rows} != {"bad", "mate", "apart"}:
        rig.done()
    told = len(rig.emitted)
    commands = rig.done(ends={"bad": RowEnd.ERROR})
    assert {rig.reason(name) for name in ("bad", "mate", "apart")} == {"internal"}
    assert (len(rig.emitted), rig.jobs, rig.view.state) == (told, {}, G.RECOVERING)
    assert isinstance(commands[-1], Release)
    rig.lifecycle(commands)
    assert (rig.view.state, rig.view.generation) == (G.READY, 2)


def test_unusable_row_without_proven_isolation_submits_nothing_more_to_that_generation() -> None:
    proven = EVERYTHING | {"concurrent_jobs"}
    rig = Rig(SchedulerConfig(max_in_flight=2), paged_facts(max_in_flight=2, proven=proven)).up()
    rig.submit("bad", new=9)
    rig.submit("apart", new=9)
    assert submits(rig.done(job=1, ends={"bad": RowEnd.ERROR})) == []
    assert (rig.view.state, rig.view.lanes_by_state["unknown"], rig.view.jobs_in_flight) == (G.DRAINING, 1, 1)
    assert rig.view.downgrade_reason == "output"


def test_unusable_row_ends_its_request_and_the_generation_is_warmed_again() -> None:
    rig = Rig(facts=ISOLATED).up()
    rig.submit("bad", new=20)
    rig.submit("good", new=3)
    while len(rig.spec.rows) < 2:
        rig.done()
    commands = rig.done(ends={"bad": RowEnd.ERROR})
    assert (rig.reason("bad"), rig.view.state) == ("internal", G.DRAINING)
    assert "good" not in rig.finished
    while rig.jobs:
        commands = rig.done()
    assert rig.reason("good") == "length"
    rig.lifecycle(commands)
    assert (rig.view.state, rig.view.generation) == (G.READY, 2)


def test_request_that_leaves_no_token_to_choose_ends_alone() -> None:
    rig = Rig().up()
    rig.submit("absurd", new=20)
    rig.submit("good", new=3)
    while len(rig.spec.rows) < 2:
        rig.done()
    rig.done(ends={"absurd": RowEnd.UNUSABLE})
    assert (rig.reason("absurd"), rig.view.state) == ("internal", G.READY)
    while rig.jobs:
        rig.done()
    assert (rig.reason("good"), rig.view.generation) == ("length", 1)


def test_drain_before_a_recovery_is_bounded() -> None:
    rig = Rig(SchedulerConfig(recovery_drain_ns=80 * MS), ISOLATED).up()
    rig.submit("bad", new=20)
    rig.submit("good", new=100)
    while len(rig.spec.rows) < 2:
        rig.done()
    rig.done(ends={"bad": RowEnd.ERROR})
    rig.tick(80 * MS)
    assert rig.reason("good") == "device_fault"
    assert isinstance(rig.done()[-1], Release)


# --- one thing on top of another ------------------------------------------------------------------------


def in_soft_drain() -> Rig:
    """`bad` was not usable; `good` may end before the generation is rebuilt; `waits` stands in line."""
    rig = Rig(facts=replace(ISOLATED, lanes=2)).up()
    rig.submit("bad", new=20)
    rig.submit("good", new=9)
    rig.submit("waits", new=1)
    while len(rig.spec.rows) < 2:
        rig.done()
    rig.done(ends={"bad": RowEnd.ERROR})
    assert rig.view.state is G.DRAINING
    return rig


def test_device_fault_in_a_drain_before_recovery_ends_the_drain() -> None:
    rig = in_soft_drain()
    commands = rig.failed(F.DEVICE)
    assert (rig.reason("good"), rig.view.state) == ("device_fault", G.RECOVERING)
    rig.lifecycle(commands)
    assert rig.rows == ["waits"]


def test_artifact_fault_in_a_drain_before_recovery_is_failed() -> None:
    rig = in_soft_drain()
    rig.failed(F.ARTIFACT)
    assert (rig.reason("good"), rig.refusal("waits")[0], rig.view.state) == ("internal", "model_failed", G.FAILED)


def test_unload_in_a_drain_before_recovery_ends_in_the_release() -> None:
    rig = in_soft_drain()
    rig.send(Unload("s", 100 * MS))
    assert rig.refusal("waits") == ("model_draining", 0, 0)
    while rig.jobs:
        rig.done()
    assert rig.reason("good") == "length"
    assert rig.orders[-1] == Release("s", 1, Failure("output", 0, F.ARTIFACT, "row 0 of job 2"))
    assert rig.send(Released("s", 1)) == []
    assert rig.view.state is G.UNLOADED


def test_device_fault_in_an_unload_tells_the_device_fault_and_releases() -> None:
    rig = Rig().up()
    rig.submit("seen", new=20)
    rig.submit("unseen", prompt=100, new=2)
    rig.done()
    rig.send(Unload("s", 500 * MS))
    assert rig.failed(F.DEVICE)[-1] == Release("s", 1)
    assert (rig.reason("seen"), rig.reason("unseen")) == ("device_fault", "device_fault")


def test_a_release_that_fails_is_followed_by_a_reset_and_released() -> None:
    rig = Rig().up()
    rig.send(Unload("s", 0))
    broken = fault(F.DEVICE, "release")
    assert rig.send(Released("s", 1, broken)) == [Reset("s", 1, ResetScope.SESSION, broken)]
    assert rig.send(ResetDone("s", 1)) == [Release("s", 1)]
    assert rig.send(Released("s", 1)) == []
    assert (rig.view.state, rig.view.failure) == (G.UNLOADED, None)


def test_a_release_that_fails_costs_no_sibling_a_reset() -> None:
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(facts=paged_facts(proven=proven)).up("a", model="ma").up("b", model="mb")
    rig.send(Unload("a", 0))
    rig.send(Released("a", 1, fault(F.DEVICE, "release")))
    assert [v.state for v in rig.engine.snapshot(0).sessions] == [G.FAILED, G.READY]
    assert rig.send(Load("a", "ma", "q")) == []


def test_a_release_that_fails_twice_is_failed_and_never_configured_over() -> None:
    rig = Rig().up()
    rig.send(Unload("s", 0))
    rig.send(Released("s", 1, fault(F.DEVICE, "release")))
    rig.send(ResetDone("s", 1))
    rig.send(Released("s", 1, fault(F.DEVICE, "release")))
    assert rig.view.state is G.FAILED
    assert rig.send(Load("s", "m", "q")) == []
    rig.send(Shutdown(10 * MS))
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA


def test_a_sibling_taken_along_by_a_reset_costs_the_budget_once() -> None:
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(config=SchedulerConfig(max_resets=1), facts=paged_facts(proven=proven))
    rig.up("a", model="ma").up("b", model="mb")
    rig.submit("r1", model="ma")
    rig.failed(F.DEVICE)
    assert [v.state for v in rig.engine.snapshot(0).sessions] == [G.RECOVERING, G.RECOVERING]
    for command in rig.send(ResetDone("a", 1)):
        rig.lifecycle([command])
    assert [v.state for v in rig.engine.snapshot(0).sessions] == [G.READY, G.READY]


def test_two_in_flight_a_fault_of_one_keeps_the_lanes_of_the_other_until_it_retired() -> None:
    proven = EVERYTHING | {"concurrent_jobs"}
    rig = Rig(config=SchedulerConfig(max_in_flight=2), facts=paged_facts(max_in_flight=2, proven=proven)).up()
    rig.submit("a", new=9)
    rig.submit("b", new=9)
    rig.failed(F.DEVICE, job=1)
    assert (rig.view.state, rig.view.jobs_in_flight) == (G.DRAINING, 1)
    assert not [o for o in rig.orders if isinstance(o, Reset)]
    commands = rig.done(job=2)
    assert isinstance(commands[-1], Reset)
    rig.lifecycle(commands)
    # neither had seen a token: both start over in the new generation
    assert {row.request for spec in rig.jobs.values() for row in spec.rows} == {"a", "b"}


def test_the_end_of_the_process_is_decided_before_anything_new_is_submitted() -> None:
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=50 * MS)).up("a", model="ma").up("b", model="mb")
    rig.submit("r1", new=9, model="ma")
    rig.submit("r2", new=9, model="mb")
    rig.send(JobOverdue(2, 2))
    commands = rig.at(50 * MS).send(JobDone(1, 1, (RowResult(RowEnd.NONE, 1),)))
    assert submits(commands) == []
    assert (rig.reason("r1"), rig.refusal("r2")[0]) == ("device_fault", "model_failed")  # r2 had seen nothing
    assert commands[-1] == rig.exit
