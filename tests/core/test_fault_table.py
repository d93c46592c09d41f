"""Seed 003, section 8, acted on: every class of failure, by where it came up.

The table below is written by hand from the seed; each of its cells is something that is seen here from outside: what
the job's requests are told, whether somebody new comes in, and what the engine orders.
"""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, paged_facts, submits

from calserve.core.commands import Command, Configure, Release, ReleaseLane, Reset, ResetScope, Validate, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.events import Configured, Load, Released, ResetDone, Unload, Validated, Warmed
from calserve.core.outcomes import Failure, FaultClass
from calserve.core.states import GenerationState as G
from calserve.core.supervisor import EXIT_UNKNOWN_DMA

F = FaultClass
TABLE: dict[F, dict[str, tuple[object, ...]]] = {
    # where it came up: what the job's request is told (None: it lives on), the state, the first lifecycle order
    F.REQUEST: {"refused": ("internal", G.READY, None), "failed": ("internal", G.READY, None)},
    F.PROGRAMMING: {"refused": ("internal", G.READY, None), "failed": ("internal", G.READY, None)},
    F.TRANSIENT: {"refused": (None, G.READY, None), "failed": ("device_fault", G.READY, None)},
    F.LIFECYCLE: {
        "refused": ("device_fault", G.RECOVERING, Release),
        "failed": ("device_fault", G.RECOVERING, Release),
    },
    F.DEVICE: {"refused": ("device_fault", G.RECOVERING, Reset), "failed": ("device_fault", G.RECOVERING, Reset)},
    F.UNKNOWN: {"refused": ("device_fault", G.RECOVERING, Reset), "failed": ("device_fault", G.RECOVERING, Reset)},
    F.ARTIFACT: {"refused": ("internal", G.FAILED, Release), "failed": ("internal", G.FAILED, Release)},
    F.COMPATIBILITY: {"refused": ("internal", G.FAILED, Release), "failed": ("internal", G.FAILED, Release)},
}
# a new request right after: admitted at once, waiting for its lane, or refused
NEWCOMER = {
    F.REQUEST: "admitted",
    F.PROGRAMMING: "admitted",
    F.TRANSIENT: "backing_off",
    F.LIFECYCLE: "model_recovering",
    F.DEVICE: "model_recovering",
    F.UNKNOWN: "model_recovering",
    F.ARTIFACT: "model_failed",
    F.COMPATIBILITY: "model_failed",
}


def plain() -> Rig:
    """`seen` has had a token and decodes in the job that is out; three lanes are free."""
    rig = Rig(config=SchedulerConfig(transient_backoff_ns=5 * MS)).up()
    rig.submit("seen", new=20)
    rig.done()
    rig.orders.clear()
    return rig


def first_order(rig: Rig) -> type[Command] | None:
    """Of the lifecycle: a lane that is free again is none."""
    return next((type(order) for order in rig.orders if not isinstance(order, ReleaseLane)), None)


@pytest.mark.parametrize("where", ["refused", "failed"])
@pytest.mark.parametrize("kind", list(F))
def test_job_of_each_class_has_the_effects_of_its_row(kind: F, where: str) -> None:
    rig = plain()
    commands = rig.unprepared(kind) if where == "refused" else rig.failed(kind)
    told, state, order = TABLE[kind][where]
    ended = rig.finished.get("seen")
    assert (ended.reason.value if ended else None, rig.view.state, first_order(rig)) == (told, state, order)
    assert submits(commands) == []
    rig.submit("newcomer")
    refused = rig.finished.get("newcomer")
    if refused is not None:
        assert refused.refusal is not None
        assert refused.refusal.kind.value == NEWCOMER[kind]
    else:
        assert NEWCOMER[kind] == (rig.view.waiting_reason or "admitted")


@pytest.mark.parametrize("kind", list(F))
def test_job_refused_fences_nothing_and_job_failed_fences_its_lane(kind: F) -> None:
    for where, unknown in (("refused", 0), ("failed", 1)):
        rig = plain()
        if where == "refused":
            rig.unprepared(kind)
        else:
            rig.failed(kind)
        if rig.view.lanes_total:  # otherwise the generation and its lanes are gone
            assert rig.view.lanes_by_state["unknown"] == unknown


# --- orders on the way up -------------------------------------------------------------------------------


def going_up(where: str) -> tuple[Rig, Command]:
    """A first load, stopped before the answer of `where`."""
    rig = Rig(config=SchedulerConfig(max_transient_retries=2, transient_backoff_ns=5 * MS))
    (order,) = rig.send(Load("s", "m", "p"))
    for step in ("validate", "configure", "warm"):
        if step == where:
            return rig, order
        (order,) = rig.send(rig.answer(order))
    raise AssertionError(where)


def refuse(rig: Rig, order: Command, kind: F) -> list[Command]:
    match order:
        case Validate(session, generation):
            return rig.send(Validated(session, generation, fault(kind, "validate")))
        case Configure(session, generation):
            return rig.send(Configured(session, generation, None, fault(kind, "configure")))
        case Warm(session, generation):
            return rig.send(Warmed(session, generation, (), fault(kind, "warm")))
    raise AssertionError(order)


@pytest.mark.parametrize("where", ["validate", "configure", "warm"])
@pytest.mark.parametrize("kind", [F.REQUEST, F.ARTIFACT, F.COMPATIBILITY, F.PROGRAMMING])
def test_order_of_a_class_that_blames_the_package_is_failed_without_a_reset(kind: F, where: str) -> None:
    rig, order = going_up(where)
    commands = refuse(rig, order, kind)
    assert rig.view.state is G.FAILED
    assert commands == ([Release("s", 1, fault(kind, "warm"))] if where == "warm" else [])


@pytest.mark.parametrize("where", ["configure", "warm"])
@pytest.mark.parametrize("kind", [F.DEVICE, F.UNKNOWN])
def test_order_of_a_class_that_blames_the_device_is_reset_within_the_budget_and_configured_again(
    kind: F, where: str
) -> None:
    rig, order = going_up(where)
    for generation in (1, 2):
        rig.submit(f"early{generation}")
        (reset,) = refuse(rig, order, kind)
        assert isinstance(reset, Reset)
        assert (rig.view.state, f"early{generation}" in rig.finished) == (G.RECOVERING, False)
        (order,) = rig.send(ResetDone("s", generation))
        assert order == Configure("s", generation + 1, "p")
        if where == "warm":
            (order,) = rig.send(rig.answer(order))
    refuse(rig, order, kind)
    assert (rig.view.state, rig.counters["resets"]) == (G.FAILED, 2)
    assert rig.refusal("early1") == ("model_failed", 0, 0)


@pytest.mark.parametrize("kind", [F.DEVICE, F.UNKNOWN, F.LIFECYCLE])
def test_validation_touches_no_board_so_nothing_is_reset_for_it(kind: F) -> None:
    rig, order = going_up("validate")
    assert refuse(rig, order, kind) == []
    assert rig.view.state is G.FAILED


@pytest.mark.parametrize("where", ["configure", "warm"])
def test_order_of_class_lifecycle_is_checked_once_by_configuring_again_then_failed(where: str) -> None:
    rig, order = going_up(where)
    (release,) = refuse(rig, order, F.LIFECYCLE)
    assert isinstance(release, Release)
    (order,) = rig.send(Released("s", 1))
    assert order == Configure("s", 2, "p")
    if where == "warm":
        (order,) = rig.send(rig.answer(order))
    refuse(rig, order, F.LIFECYCLE)
    assert (rig.view.state, "resets" in rig.counters) == (G.FAILED, False)


@pytest.mark.parametrize("where", ["validate", "configure", "warm"])
def test_order_of_class_transient_goes_out_again_after_a_bounded_back_off(where: str) -> None:
    rig, order = going_up(where)
    for pause in (5, 10):
        assert refuse(rig, order, F.TRANSIENT) == []
        assert rig.engine.next_deadline_ns() == rig.now + pause * MS
        assert rig.tick(rig.now + pause * MS) == [order]
    commands = refuse(rig, order, F.TRANSIENT)
    assert rig.counters["retries_exhausted"] == 1
    if where == "validate":
        assert rig.view.state is G.FAILED
    else:
        assert isinstance(commands[0], Reset)


def test_order_that_goes_through_at_last_forgets_its_refusals() -> None:
    rig, order = going_up("configure")
    refuse(rig, order, F.TRANSIENT)
    (order,) = rig.tick(5 * MS)
    (warm,) = rig.send(rig.answer(order))
    refuse(rig, warm, F.TRANSIENT)
    assert rig.engine.next_deadline_ns() == 10 * MS
    rig.send(rig.answer(rig.tick(10 * MS)[0]))
    assert rig.view.state is G.READY


def test_unload_while_an_order_backs_off_drops_it() -> None:
    rig, order = going_up("configure")
    refuse(rig, order, F.TRANSIENT)
    assert rig.send(Unload("s", 100 * MS)) == [Release("s", 1)]
    assert rig.tick(5 * MS) == []
    rig.send(Released("s", 1))
    assert rig.view.state is G.UNLOADED


# --- orders on the way down -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(F))
def test_release_that_fails_leaves_unknown_what_is_held_whatever_the_class(kind: F) -> None:
    rig = Rig().up()
    rig.send(Unload("s", 0))
    (reset,) = rig.send(Released("s", 1, fault(kind, "release")))
    assert isinstance(reset, Reset)
    assert rig.view.state is G.RECOVERING


@pytest.mark.parametrize("kind", list(F))
def test_reset_that_fails_has_ended_nothing_whatever_the_class(kind: F) -> None:
    rig = plain()
    rig.failed(F.DEVICE)
    (wider,) = rig.send(ResetDone("s", 1, fault(kind, "reset")))
    assert isinstance(wider, Reset)
    rig.send(ResetDone("s", 1, fault(kind, "reset")))
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA


# --- a device-level failure, the threshold, the features ------------------------------------------------


def test_device_failure_stops_admission_at_once_and_fails_every_row_of_the_job() -> None:
    rig = Rig().up()
    for name in ("a", "b", "c"):
        rig.submit(name, new=20)
    while len(rig.spec.rows) < 3 or min(row.first_position for row in rig.spec.rows) < 8:
        rig.done()
    rig.failed(F.DEVICE)
    assert {rig.reason(name) for name in ("a", "b", "c")} == {"device_fault"}


def test_backing_off_nobody_new_gets_a_lane_until_it_is_over() -> None:
    rig = plain()
    rig.unprepared(F.TRANSIENT)
    rig.submit("newcomer")
    assert (rig.view.waiting_reason, rig.view.lanes_by_state["free"]) == ("backing_off", 3)
    rig.tick(5 * MS)
    assert rig.rows == ["seen", "newcomer"]


def test_transient_at_the_threshold_drains_and_rebuilds_and_the_line_survives() -> None:
    rig = Rig(config=SchedulerConfig(max_transient_retries=1, transient_backoff_ns=5 * MS)).up()
    rig.submit("seen", new=20)
    rig.done()
    rig.unprepared(F.TRANSIENT)
    rig.submit("waits", new=1)
    rig.tick(5 * MS)
    commands = rig.unprepared(F.TRANSIENT)
    assert (rig.reason("seen"), rig.view.state) == ("device_fault", G.RECOVERING)
    rig.lifecycle(commands)
    assert (rig.view.generation, rig.rows) == (2, ["waits"])


def test_programming_a_mixed_job_refused_runs_again_in_plain_jobs_for_this_generation() -> None:
    rig = Rig().up()
    rig.submit("runs", new=20)
    rig.done()
    rig.submit("comes")
    rig.done()
    assert rig.spec.task.value == "mixed"
    rig.unprepared(F.PROGRAMMING)
    assert (rig.finished, rig.view.features_off, rig.counters["features_off"]) == ({}, ("mixed_jobs",), 1)
    tasks = set()
    while rig.jobs:
        tasks.add(rig.spec.task.value)
        rig.done()
    assert tasks == {"prefill", "decode"}
    assert {rig.reason(name) for name in ("runs", "comes")} == {"length"}
    assert "resets" not in rig.counters


def test_programming_a_plain_job_refused_ends_its_requests_and_switches_nothing_off() -> None:
    rig = plain()
    rig.unprepared(F.PROGRAMMING)
    assert (rig.reason("seen"), rig.view.features_off, rig.view.state) == ("internal", (), G.READY)


def test_programming_a_feature_is_back_with_the_next_generation() -> None:
    rig = Rig().up()
    rig.submit("runs", new=20)
    rig.done()
    rig.submit("comes")
    rig.done()
    rig.unprepared(F.PROGRAMMING)
    rig.lifecycle(rig.failed(F.DEVICE))
    assert (rig.view.generation, rig.view.features_off) == (2, ())


@pytest.mark.parametrize("proven", [True, False])
def test_warm_up_job_that_never_came_back_is_a_lost_job(proven: bool) -> None:
    facts = paged_facts(proven=EVERYTHING | {"chip_reset"}) if proven else paged_facts()
    rig = Rig(facts=facts)
    (order,) = rig.send(Load("s", "m", "p"))
    for _ in range(2):
        (order,) = rig.send(rig.answer(order))
    lost = Failure("lost", 13, F.UNKNOWN, "a warm-up job never came back")
    commands = rig.send(Warmed("s", 1, (), lost))
    if proven:
        assert commands == [Reset("s", 1, ResetScope.CHIP, lost)]
    else:
        assert rig.exit is not None
        assert rig.exit.code == EXIT_UNKNOWN_DMA
