"""Two copies of a package on one board: what waits for one is served by the other."""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, paged_facts, submits

from calserve.core.commands import Configure, Release, ReleaseLane, Reset
from calserve.core.config import SchedulerConfig
from calserve.core.events import Load, ResetDone, Shutdown, Unload
from calserve.core.outcomes import FaultClass
from calserve.core.states import GenerationState as G

F = FaultClass


def copies(**config: object) -> Rig:
    """One lane each. a: `a1` decodes, `wa` waits. b: `b1` runs, `wb` waits."""
    rig = Rig(SchedulerConfig(**config), paged_facts(lanes=1)).up("a").up("b")  # type: ignore[arg-type]
    for name in ("a1", "b1", "wa", "wb"):
        rig.submit(name, new=6)
    rig.done(1)
    assert [v.waiting_requests for v in rig.engine.snapshot(0).sessions] == [1, 1]
    return rig


def test_fault_of_one_copy_sends_its_line_to_the_other_which_serves_on() -> None:
    rig = copies()
    rig.failed(F.DEVICE, job=3)
    views = rig.engine.snapshot(0).sessions
    assert [(v.state, v.waiting_requests) for v in views] == [(G.RECOVERING, 0), (G.READY, 2)]
    assert (set(rig.finished), rig.counters["handed_over"]) == ({"a1"}, 1)
    while rig.jobs:
        rig.done()
    assert {rig.reason(name) for name in ("b1", "wa", "wb")} == {"length"}


def test_unseen_request_lost_with_one_copy_starts_over_on_the_other_once() -> None:
    rig = Rig(facts=paged_facts(lanes=2)).up("a").up("b")
    rig.submit("r1", new=2)
    assert len(submits(rig.failed(F.DEVICE))) == 1
    assert (rig.spec.session, rig.rows) == ("b", ["r1"])
    rig.failed(F.DEVICE)
    assert rig.reason("r1") == "device_fault"


def test_copy_that_is_failed_or_unloaded_refuses_nobody_the_other_can_serve() -> None:
    for event in (None, Unload("a", 100 * MS)):
        rig = copies()
        if event is None:
            rig.failed(F.COMPATIBILITY, job=3)
        else:
            rig.send(event)
        assert "wa" not in rig.finished
        assert rig.counters["handed_over"] == 1


def test_line_of_the_other_copy_keeps_its_limits_and_who_was_accepted_waits_on() -> None:
    """A request that was accepted once is not refused for a crowd elsewhere: it waits for its own session."""
    rig = copies(max_waiting_requests=1)
    rig.failed(F.DEVICE, job=3)
    assert "wa" not in rig.finished
    assert rig.counters.get("handed_over", 0) == 0


def test_line_is_not_handed_to_another_package_nor_in_a_shutdown() -> None:
    other = Rig(facts=paged_facts(lanes=1)).up("a", package="p").up("b", package="q")
    for name in ("a1", "b1", "wa", "wb"):
        other.submit(name, new=6)
    other.failed(F.DEVICE, job=1)
    assert "handed_over" not in other.counters
    down = copies()
    down.send(Shutdown(1_000 * MS))
    assert {down.refusal(name)[0] for name in ("wa", "wb")} == {"model_draining"}


def test_deadline_of_a_request_goes_with_it() -> None:
    rig = copies()
    rig.submit("short", new=2, deadline=50 * MS)
    rig.failed(F.DEVICE, job=3)
    rig.tick(50 * MS)
    assert rig.reason("short") == "deadline"


# --- a reset that takes every session along --------------------------------------------------------------


@pytest.mark.parametrize("leader", ["a", "b"])
def test_sibling_that_stands_still_for_a_wide_reset_has_no_way_of_its_own(leader: str) -> None:
    """Busy again and again, rebuilt once, so the second time is a reset; only the configuration's is there."""
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(SchedulerConfig(max_transient_retries=0), paged_facts(proven=proven)).up("a").up("b")
    for _ in range(2):
        for name in ("x", "y"):
            rig.submit(f"{name}{rig.now}", new=4)
        mine = next(job for job, spec in rig.jobs.items() if spec.session == leader)
        commands = rig.failed(F.TRANSIENT, job=mine)
        rig.orders.clear() if rig.now else rig.lifecycle(commands)
        rig.now += MS
        while rig.jobs:
            commands = rig.done()
    assert [type(order) for order in rig.orders if not isinstance(order, ReleaseLane)] == [Reset]
    generations = {view.session: view.generation for view in rig.engine.snapshot(rig.now).sessions}
    again = rig.send(ResetDone(leader, generations[leader]))
    assert [type(order) for order in again] == [Configure, Configure]
    for order in again:
        rig.lifecycle([order])
    views = rig.engine.snapshot(rig.now).sessions
    assert [view.state for view in views] == [G.READY, G.READY]
    assert all(view.generation > generations[view.session] for view in views)
    assert (rig.counters["rebuilds"], rig.counters["resets"]) == (1, 1)


def test_sibling_taken_along_may_be_rebuilt_for_its_own_trouble_later() -> None:
    """To be taken along is not to have been rebuilt: its own trouble comes for the first time."""
    proven = EVERYTHING - {"session_reset"}
    rig = Rig(facts=paged_facts(proven=proven)).up("a").up("b")
    rig.submit("x", new=4)
    for order in rig.failed(F.DEVICE):
        if isinstance(order, Reset):
            for configure in rig.send(rig.answer(order)):
                rig.lifecycle([configure])
    while rig.jobs:
        rig.done()
    for name in ("y", "z"):
        rig.submit(name, new=4)
    mine = next(job for job, spec in rig.jobs.items() if spec.session == "b")
    assert isinstance(rig.failed(F.LIFECYCLE, job=mine)[-1], Release)


# --- an order that is never answered ---------------------------------------------------------------------


def test_order_never_answered_ends_by_its_time_and_asks_for_a_new_process() -> None:
    rig = Rig(SchedulerConfig(lifecycle_deadline_ns=900 * MS)).up()
    rig.submit("r1", new=2)
    (reset,) = [c for c in rig.failed(F.DEVICE) if isinstance(c, Reset)]
    assert rig.engine.next_deadline_ns() == 900 * MS
    commands = rig.tick(900 * MS)
    assert rig.refusal("r1") == ("model_failed", 0, 0)
    assert rig.exit is not None
    assert (commands[-1], rig.exit.code, rig.exit.reason) == (rig.exit, 75, "session s: reset 0")
    assert rig.send(rig.answer(reset)) == []


def test_order_never_answered_without_a_restart_leaves_the_sibling_serving() -> None:
    config = SchedulerConfig(lifecycle_deadline_ns=900 * MS, restart_on_unknown_dma=False)
    rig = Rig(config).up("a").up("b")
    rig.submit("r1", new=2)
    rig.failed(F.DEVICE)
    rig.tick(900 * MS)
    assert [v.state for v in rig.engine.snapshot(0).sessions] == [G.FAILED, G.READY]
    assert rig.send(ResetDone("a", 1)) == []  # too late
    assert rig.send(Load("a", "m", "p")) == []  # what it holds is not known
    assert rig.counters["stale_events"] == 1


def test_light_check_sees_a_count_that_drifted() -> None:
    rig = Rig().up()
    rig.submit("r1")
    rig.engine.check_invariants_light()
    rig.engine.supervisor.sessions["s"].worker.roster.requests.pop("r1")
    with pytest.raises(AssertionError, match="I1"):
        rig.engine.check_invariants_light()


def test_failure_told_to_a_client_is_the_one_that_ended_it() -> None:
    rig = copies()
    rig.failed(F.DEVICE, job=3)
    assert rig.finished["a1"].failure == fault(F.DEVICE)
