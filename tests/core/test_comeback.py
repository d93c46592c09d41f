"""What Failed while it served and has nothing to go back to is tried again once the window has passed, a few times.

Literal times: the window is 600 s, so a trouble at 50 s and its like at 100 s are within it, and 700 s ends the wait.
"""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, Rig, fault, paged_facts

from calserve.core.commands import Command, Release, Reset, Validate
from calserve.core.config import SchedulerConfig
from calserve.core.events import JobFailed, Load, Released, Shutdown, Unload, Validated, Warmed
from calserve.core.outcomes import FaultClass, RowEnd
from calserve.core.states import GenerationState as G

F = FaultClass
SECOND = 1_000_000_000
CONFIG = SchedulerConfig(reset_window_ns=600 * SECOND, max_comebacks=3)


def not_finite(rig: Rig, at_s: int) -> list[Command]:
    """A request whose output is NaN; what was ordered then."""
    rig.at(at_s * SECOND).submit(f"r{at_s}", new=9)
    return rig.done(ends={f"r{at_s}": RowEnd.ERROR})


def twice_not_finite(start_s: int = 0, rig: Rig | None = None) -> Rig:
    """The first leads to a new generation, the second within the window to Failed, 100 s after `start_s`."""
    rig = rig or Rig(CONFIG).up()
    rig.lifecycle(not_finite(rig, start_s + 50))
    assert rig.view.state is G.READY
    rig.lifecycle(not_finite(rig, start_s + 100))
    assert rig.view.state is G.FAILED
    return rig


def test_second_nan_in_the_window_is_failed_and_comes_back_when_it_has_passed() -> None:
    rig = twice_not_finite()
    rig.submit("early")
    assert rig.refusal("early")[0] == "model_failed"
    assert rig.engine.next_deadline_ns() == 700 * SECOND
    assert rig.tick(700 * SECOND - 1) == []
    (order,) = rig.tick(700 * SECOND)
    assert order == Validate("s", 3, "m", "p")
    rig.lifecycle([order])
    assert (rig.view.state, rig.view.refused_package, rig.counters["comebacks"]) == (G.READY, "", 1)
    assert rig.engine.next_deadline_ns() is None
    rig.submit("after")
    assert rig.rows == ["after"]


def test_comeback_gives_a_package_its_rebuild_again() -> None:
    rig = twice_not_finite()
    rig.lifecycle(rig.tick(700 * SECOND))
    rig.lifecycle(not_finite(rig, 710))
    assert rig.view.state is G.READY


def test_comeback_is_tried_three_times_in_a_row_and_then_a_person_must() -> None:
    rig = twice_not_finite()
    for start_s in (700, 1400, 2100):
        rig.lifecycle(rig.tick(start_s * SECOND))
        twice_not_finite(start_s, rig)
    assert (rig.counters["comebacks"], rig.engine.next_deadline_ns()) == (3, None)
    assert rig.tick(10_000 * SECOND) == []
    rig.lifecycle(rig.send(Load("s", "m", "p")))
    twice_not_finite(10_000, rig)
    assert rig.engine.next_deadline_ns() == 10_700 * SECOND


def test_comeback_that_never_becomes_ready_is_tried_three_times_too() -> None:
    rig = twice_not_finite()
    for at_s in (700, 1300, 1900):
        (validate,) = rig.tick(at_s * SECOND)
        assert isinstance(validate, Validate)
        rig.send(Validated("s", validate.generation, fault(F.ARTIFACT)))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, None)


def test_comeback_that_served_for_a_whole_window_counts_from_one_again() -> None:
    rig = Rig(SchedulerConfig(reset_window_ns=600 * SECOND, max_comebacks=1)).up()
    twice_not_finite(0, rig)
    rig.lifecycle(rig.tick(700 * SECOND))
    rig.lifecycle(rig.at(1300 * SECOND).submit("ill") and rig.failed(F.ARTIFACT))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, 1900 * SECOND)
    rig.lifecycle(rig.tick(1900 * SECOND))
    rig.lifecycle(rig.at(2499 * SECOND).submit("soon") and rig.failed(F.ARTIFACT))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, None)


def test_comeback_whose_goldens_fail_waits_for_the_next_window() -> None:
    rig = twice_not_finite()
    (validate,) = rig.tick(700 * SECOND)
    (configure,) = rig.send(rig.answer(validate))
    rig.send(rig.answer(configure))
    (release,) = rig.at(701 * SECOND).send(Warmed("s", 3, (), fault(F.ARTIFACT, "warm")))
    rig.lifecycle([release])
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, 1301 * SECOND)


def test_comebacks_can_be_turned_off() -> None:
    rig = twice_not_finite(rig=Rig(SchedulerConfig(max_comebacks=0)).up())
    assert rig.engine.next_deadline_ns() is None


def test_comeback_beyond_the_reset_budget_has_a_budget_that_is_whole_again() -> None:
    rig = Rig(SchedulerConfig(max_resets=1, reset_window_ns=600 * SECOND)).up()
    for at_s in (50, 100):
        rig.at(at_s * SECOND).submit(f"r{at_s}")
        rig.lifecycle(rig.failed(F.DEVICE))
    assert (rig.view.state, rig.counters["budget_exhausted"]) == (G.FAILED, 1)
    rig.lifecycle(rig.tick(700 * SECOND))
    rig.submit("again")
    assert [type(command) for command in rig.failed(F.DEVICE)] == [Reset]
    assert rig.counters["resets"] == 2


@pytest.mark.parametrize("kind", [F.LIFECYCLE, F.PROGRAMMING])
def test_comeback_never_follows_what_a_person_must_repair_after_a_rebuild(kind: F) -> None:
    rig = Rig(CONFIG, paged_facts(lanes=1)).up()
    for name in ("r1", "r2"):
        rig.submit(name)
        rig.lifecycle(rig.failed(kind))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, None)


def test_comeback_never_follows_an_incompatibility() -> None:
    rig = Rig(CONFIG).up()
    rig.submit("r1")
    rig.lifecycle(rig.failed(F.COMPATIBILITY))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, None)


def test_comeback_is_not_for_a_package_that_never_served_here() -> None:
    rig = Rig(CONFIG)
    rig.send(Load("s", "m", "p"))
    rig.send(Validated("s", 1, fault(F.ARTIFACT)))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.FAILED, None)
    other = Rig(CONFIG).up(package="p")
    (release,) = other.send(Load("s", "m", "q"))
    (validate,) = other.send(other.answer(release))
    assert other.send(Validated("s", 2, fault(F.COMPATIBILITY))) == []
    assert (validate.generation if isinstance(validate, Validate) else 0, other.view.state) == (2, G.FAILED)
    assert other.engine.next_deadline_ns() is None


def test_comeback_is_dropped_by_an_unload_and_by_a_shutdown() -> None:
    for order in (Unload("s", 0), Shutdown(0)):
        rig = twice_not_finite()
        rig.at(200 * SECOND).send(order)
        rig.send(Released("s", 2))
        assert rig.tick(700 * SECOND) == []
        assert "comebacks" not in rig.counters


@pytest.mark.parametrize("order", [Unload("s", 0), Shutdown(600 * SECOND)])
def test_comeback_is_dropped_by_an_unload_while_the_release_is_out(order: Unload | Shutdown) -> None:
    rig = Rig(SchedulerConfig(reset_window_ns=600 * SECOND, lifecycle_deadline_ns=0)).up()
    rig.lifecycle(not_finite(rig, 50))
    not_finite(rig, 100)
    rig.at(200 * SECOND).send(order)
    rig.send(Released("s", 2))
    assert not any(isinstance(command, Validate) for command in rig.tick(700 * SECOND))


def test_comeback_is_dropped_by_an_operators_load() -> None:
    rig = twice_not_finite()
    rig.lifecycle(rig.at(200 * SECOND).send(Load("s", "m", "p")))
    assert (rig.view.state, rig.engine.next_deadline_ns()) == (G.READY, None)
    assert rig.tick(700 * SECOND) == []


def test_comeback_waits_for_a_release_that_is_still_out() -> None:
    rig = Rig(SchedulerConfig(reset_window_ns=600 * SECOND, lifecycle_deadline_ns=0)).up()
    rig.lifecycle(not_finite(rig, 50))
    (release,) = [order for order in not_finite(rig, 100) if isinstance(order, Release)]
    assert rig.engine.next_deadline_ns() is None
    assert rig.tick(900 * SECOND) == []
    assert rig.send(rig.answer(release)) == [Validate("s", 3, "m", "p")]


def test_comeback_of_what_is_still_on_the_board_is_released_first() -> None:
    rig = Rig(CONFIG).up()
    rig.lifecycle(not_finite(rig, 50))
    not_finite(rig, 100)
    rig.send(Released("s", 2, fault(F.DEVICE, "release")))
    assert (rig.view.state, rig.tick(700 * SECOND)) == (G.FAILED, [Release("s", 2)])
    assert rig.send(Released("s", 2)) == [Validate("s", 3, "m", "p")]


def test_comeback_after_a_roll_back_that_could_not_begin_is_to_the_good_package() -> None:
    rig = Rig(CONFIG).up(package="p")
    rig.lifecycle(rig.send(Load("s", "m", "q")))
    rig.at(100 * SECOND).submit("r1", new=9)
    rig.failed(F.ARTIFACT)
    rig.send(Released("s", 2, fault(F.DEVICE, "release")))
    rig.lifecycle(rig.tick(700 * SECOND))
    assert (rig.view.state, rig.view.package) == (G.READY, "p")


def test_comeback_never_happens_while_a_lost_job_may_write() -> None:
    facts = paged_facts(proven=EVERYTHING - {"session_reset"})
    rig = Rig(SchedulerConfig(restart_on_unknown_dma=False, reset_window_ns=600 * SECOND), facts).up()
    rig.at(100 * SECOND).submit("r1", new=9)
    rig.failed(F.DEVICE, has_ended=False)
    assert (rig.view.state, rig.exit) == (G.FAILED, None)
    assert rig.engine.next_deadline_ns() is None
    assert rig.tick(900 * SECOND) == []


def test_comeback_never_follows_a_release_that_was_never_answered() -> None:
    config = SchedulerConfig(reset_window_ns=600 * SECOND, restart_on_unknown_dma=False, lifecycle_deadline_ns=SECOND)
    rig = Rig(config).up()
    rig.lifecycle(not_finite(rig, 50))
    not_finite(rig, 100)
    rig.tick(101 * SECOND)
    assert (rig.view.state, rig.exit, rig.engine.next_deadline_ns()) == (G.FAILED, None, None)
    assert rig.tick(700 * SECOND) == []


def test_comeback_is_no_new_look_at_two_jobs_at_once() -> None:
    facts = paged_facts(max_in_flight=2, proven=EVERYTHING | {"concurrent_jobs"})
    rig = Rig(SchedulerConfig(max_in_flight=2, max_resets=0, reset_window_ns=600 * SECOND), facts).up()
    for name in ("r1", "r2"):
        rig.at(100 * SECOND).submit(name, new=30)
    assert len(rig.jobs) == 2
    spec = rig.jobs.pop(1)
    rig.send(JobFailed(spec.job, 1, fault(F.DEVICE, "status")))
    rig.lifecycle(rig.done())
    assert (rig.view.state, rig.view.downgrade_reason) == (G.FAILED, "status")
    rig.lifecycle(rig.tick(700 * SECOND))
    assert (rig.view.state, rig.view.max_in_flight) == (G.READY, 1)
    rig.lifecycle(rig.send(Load("s", "m", "p")))
    assert (rig.view.state, rig.view.max_in_flight) == (G.READY, 2)
