"""A job the board never said is over may still write: whatever else is going on, only a proven reset is an answer."""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, paged_facts

from calserve.core.commands import Command, Configure, Exit, Finish, Release, Reset, ResetScope
from calserve.core.config import SchedulerConfig
from calserve.core.events import (
    Configured,
    JobDone,
    JobFailed,
    JobOverdue,
    JobSubmitted,
    Load,
    ResetDone,
    RowResult,
    Shutdown,
    Unload,
    Validated,
    Warmed,
)
from calserve.core.outcomes import LOST_STAGE, STATUS_STAGE, Failure, FaultClass, RowEnd
from calserve.core.states import GenerationState as G
from calserve.core.supervisor import EXIT_UNKNOWN_DMA

F = FaultClass
CHIP_RESET = EVERYTHING | {"chip_reset"}
TWO_JOBS = CHIP_RESET | {"concurrent_jobs"}
LOST = Failure(LOST_STAGE, 13, F.UNKNOWN, "a warm-up job never came back")


def serving(proven: frozenset[str], **config: object) -> Rig:
    """`seen` has had tokens and decodes in the job that is out."""
    rig = Rig(SchedulerConfig(**config), paged_facts(proven=proven)).up()  # type: ignore[arg-type]
    rig.submit("seen", new=20)
    rig.done()
    rig.orders.clear()
    return rig


def two_in_flight() -> Rig:
    """`a` in job 1 and `b` in job 2 of one session."""
    rig = Rig(SchedulerConfig(max_in_flight=2), paged_facts(max_in_flight=2, proven=TWO_JOBS)).up()
    rig.submit("a", new=9)
    rig.submit("b", new=9)
    return rig


def ladder(orders: list[Command]) -> list[Command]:
    return [order for order in orders if isinstance(order, Release | Reset | Exit)]


@pytest.mark.parametrize("kind", list(F))
def test_job_failed_without_an_end_of_any_class_is_answered_by_a_chip_reset_alone(kind: F) -> None:
    rig = serving(CHIP_RESET)
    rig.failed(kind, has_ended=False)
    assert "seen" in rig.finished
    assert ladder(rig.orders) == [Reset("s", 1, ResetScope.CHIP, fault(kind))]
    assert rig.send(ResetDone("s", 1)) == [Configure("s", 2, "p")]


@pytest.mark.parametrize("kind", list(F))
def test_job_failed_without_an_end_and_without_a_proven_reset_ends_the_process(kind: F) -> None:
    rig = serving(EVERYTHING)
    rig.failed(kind, has_ended=False)
    assert [type(order) for order in ladder(rig.orders)] == [Exit]
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA


def test_job_failed_without_an_end_and_without_a_restart_is_fenced_and_never_released() -> None:
    rig = serving(EVERYTHING, restart_on_unknown_dma=False)
    rig.failed(F.REQUEST, has_ended=False)
    rig.send(Unload("s", 0))
    rig.send(Load("s", "m", "q"))
    assert (rig.view.state, ladder(rig.orders)) == (G.FAILED, [])


def test_job_failed_without_an_end_fences_its_lanes_and_lets_the_other_job_retire_first() -> None:
    rig = two_in_flight()
    rig.failed(F.REQUEST, job=1, has_ended=False)
    assert (rig.view.state, rig.view.lanes_by_state["unknown"], rig.reason("a")) == (G.DRAINING, 1, "internal")
    assert not [order for order in rig.orders if isinstance(order, Reset)]
    assert isinstance(rig.done(job=2)[-1], Reset)


def test_job_failed_without_an_end_lowers_the_concurrency_and_says_why() -> None:
    rig = two_in_flight()
    rig.failed(F.TRANSIENT, job=1, has_ended=False)
    assert (rig.view.max_in_flight, rig.view.downgrade_reason) == (1, "recovery")
    anothers = two_in_flight()
    spec = anothers.jobs.pop(1)
    anothers.send(JobFailed(1, spec.generation, fault(F.UNKNOWN, STATUS_STAGE), has_ended=False))
    assert anothers.view.downgrade_reason == "cross_talk"


@pytest.mark.parametrize("event", [Unload("s", 500 * MS), Shutdown(500 * MS)])
def test_job_failed_without_an_end_in_an_unload_is_reset_before_the_release(event: Unload | Shutdown) -> None:
    rig = serving(CHIP_RESET)
    rig.send(event)
    rig.failed(F.REQUEST, has_ended=False)
    assert ladder(rig.orders) == [Reset("s", 1, ResetScope.CHIP, fault(F.REQUEST))]
    assert rig.send(ResetDone("s", 1)) == [Release("s", 1)]


def test_job_failed_without_an_end_in_a_soft_drain_hardens_it() -> None:
    rig = serving(CHIP_RESET)
    rig.failed(F.LIFECYCLE, has_ended=False)
    soft = two_in_flight()
    soft.failed(F.LIFECYCLE, job=1)
    assert soft.view.state is G.DRAINING
    soft.failed(F.PROGRAMMING, job=2, has_ended=False)
    for each in (rig, soft):
        (reset,) = ladder(each.orders)
        assert isinstance(reset, Reset)
        assert reset.scope is ResetScope.CHIP


def test_job_failed_without_an_end_says_later_that_it_is_over_and_nobody_listens() -> None:
    rig = serving(CHIP_RESET)
    old = rig.spec
    rig.failed(F.DEVICE, has_ended=False)
    assert rig.send(JobDone(old.job, 1, (RowResult(RowEnd.EOS, 1),))) == []
    assert rig.counters["stale_completions"] == 1


def test_shutdown_that_runs_out_while_a_job_may_write_says_so() -> None:
    rig = serving(CHIP_RESET, overdue_grace_ns=50 * MS)
    rig.send(Shutdown(10 * MS))
    rig.failed(F.REQUEST, has_ended=False)
    rig.tick(60 * MS)
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA


# --- lost in a warm-up ----------------------------------------------------------------------------------


def warming(proven: frozenset[str], **config: object) -> Rig:
    rig = Rig(SchedulerConfig(**config), paged_facts(proven=proven, max_in_flight=2))  # type: ignore[arg-type]
    commands = rig.send(Load("s", "m", "p"))
    for _ in range(2):
        commands = rig.send(rig.answer(commands[0]))
    return rig


def test_warm_up_job_lost_before_the_first_ready_leaves_one_job_at_a_time() -> None:
    rig = warming(TWO_JOBS, max_in_flight=2)
    rig.lifecycle(rig.send(Warmed("s", 1, (), LOST)))
    assert (rig.view.state, rig.view.max_in_flight, rig.view.downgrade_reason) == (G.READY, 1, "recovery")


@pytest.mark.parametrize("proven", [CHIP_RESET, EVERYTHING])
def test_warm_up_job_lost_while_an_unload_waits_is_not_forgotten(proven: frozenset[str]) -> None:
    rig = warming(proven)
    rig.send(Unload("s", 10 * MS))
    commands = rig.send(Warmed("s", 1, (), LOST))
    if proven is CHIP_RESET:
        assert commands == [Reset("s", 1, ResetScope.CHIP, LOST)]
        assert rig.send(ResetDone("s", 1)) == [Release("s", 1)]
    else:
        assert [type(order) for order in ladder(commands)] == [Exit]


# --- beside a sibling -----------------------------------------------------------------------------------

NARROW_UNPROVEN = EVERYTHING - {"session_reset"}


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("restarts", [True, False])
def test_lost_job_is_never_healed_by_a_siblings_reset_of_everything(order: str, restarts: bool) -> None:
    config = SchedulerConfig(restart_on_unknown_dma=restarts)
    rig = Rig(config, paged_facts(proven=NARROW_UNPROVEN)).up(order[0]).up(order[1])
    rig.submit("x", new=6)
    rig.submit("y", new=6)
    jobs = {spec.session: spec for spec in rig.jobs.values()}
    for spec in jobs.values():
        rig.send(JobSubmitted(spec.job, spec.generation))
    rig.now = 10_000 * MS
    rig.send(JobOverdue(jobs["b"].job, jobs["b"].generation))
    rig.now = rig.engine.next_deadline_ns() or 0
    rig.orders.clear()
    rig.failed(F.DEVICE, job=jobs["a"].job)  # at the very instant b's grace ends
    assert not [each for each in rig.orders if isinstance(each, Reset)]
    assert not [each for each in rig.orders if isinstance(each, Release) and each.session == "b"]
    states = {view.session: view.state for view in rig.engine.snapshot(rig.now).sessions}
    if restarts:
        assert rig.exit is not None
        assert rig.orders[-1] == rig.exit
    else:
        assert states == {"a": G.FAILED, "b": G.FAILED}


def test_order_that_was_to_be_tried_again_is_not_given_after_the_process_was_told_to_end() -> None:
    """The board may still write for the lost job; whoever is refused meanwhile wakes nobody."""
    rig = Rig(SchedulerConfig(max_resets=0)).up("a", model="one")
    rig.send(Load("b", "two", "p"))
    rig.send(Validated("b", 2))
    rig.send(Configured("b", 2, None, fault(F.TRANSIENT, "configure", 17)))
    rig.submit("lost", model="one")
    rig.failed(F.DEVICE, has_ended=False)
    assert rig.exit is not None
    rig.at(5_000 * MS)
    assert [type(command) for command in rig.submit("late", model="one")] == [Finish]


@pytest.mark.parametrize("kind", [F.ARTIFACT, F.COMPATIBILITY])
def test_refused_package_is_not_configured_again_by_the_reset_that_a_lost_job_needs(kind: FaultClass) -> None:
    """Job 1 says that the package is bad, job 2 of the same drain never returns."""
    facts = paged_facts(max_in_flight=2, proven=EVERYTHING | {"chip_reset", "concurrent_jobs"})
    rig = Rig(SchedulerConfig(max_in_flight=2), facts).up(package="good")
    rig.lifecycle(rig.send(Load("s", "m", "bad")))
    rig.submit("a", new=9)
    rig.submit("b", new=9)
    rig.orders.clear()
    rig.failed(kind)
    rig.tick(20_000 * MS)
    rig.tick(40_000 * MS)
    reset = rig.orders[-1]
    assert isinstance(reset, Reset)
    assert reset.cause.stage == "wait"  # the lost job is what is reset for
    assert reset.cause.fault is F.UNKNOWN
    rig.orders.clear()
    rig.lifecycle(rig.send(ResetDone("s", reset.generation)))
    configured = [order.package for order in rig.orders if isinstance(order, Configure)]
    assert "bad" not in configured
    assert rig.view.package == ("good" if kind is F.ARTIFACT else "bad")
    assert rig.view.state is (G.READY if kind is F.ARTIFACT else G.FAILED)


def test_package_condemned_while_it_is_reset_comes_down_where_it_was_to_be_unloaded() -> None:
    facts = paged_facts(max_in_flight=2, proven=EVERYTHING | {"chip_reset", "concurrent_jobs"})
    rig = Rig(SchedulerConfig(max_in_flight=2), facts).up()
    rig.submit("a", new=9)
    rig.submit("b", new=9)
    rig.failed(F.ARTIFACT)
    rig.tick(20_000 * MS)
    rig.tick(40_000 * MS)
    reset = rig.orders[-1]
    assert isinstance(reset, Reset)
    rig.send(Unload("s", rig.now))
    rig.lifecycle(rig.send(ResetDone("s", reset.generation)))
    assert rig.view.state is G.UNLOADED
