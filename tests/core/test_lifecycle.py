"""Load, drain, unload, replace, shutdown."""

from __future__ import annotations

import pytest
from core_rig import EVERYTHING, MS, Rig, fault, paged_facts, submits

from calserve.core.commands import Configure, Exit, Release, Validate, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.events import Configured, JobOverdue, Load, Released, Shutdown, Unload, Validated, Warmed
from calserve.core.outcomes import FaultClass
from calserve.core.states import GenerationState as G
from calserve.core.supervisor import EXIT_DONE, EXIT_FORCED, EXIT_UNKNOWN_DMA


def test_load_validates_configures_warms_in_that_order_each_after_the_other() -> None:
    rig = Rig()
    assert rig.send(Load("s", "m", "p")) == [Validate("s", 1, "m", "p")]
    assert rig.view.state is G.VALIDATING
    assert rig.send(Validated("s", 1)) == [Configure("s", 1, "p")]
    assert rig.view.state is G.CONFIGURING
    assert rig.send(Configured("s", 1, rig.facts)) == [Warm("s", 1)]
    assert rig.view.state is G.WARMING
    assert rig.send(Warmed("s", 1)) == []
    assert (rig.view.state, rig.view.context_tokens, rig.view.lanes_total) == (G.READY, 256, 4)


@pytest.mark.parametrize("at", ["validate", "configure", "warm"])
def test_load_a_failed_step_is_failed_and_those_who_waited_are_told(at: str) -> None:
    rig = Rig()
    broken = fault(FaultClass.ARTIFACT, at)
    rig.send(Load("s", "m", "p"))
    rig.submit("r1")
    rig.send(Validated("s", 1, broken if at == "validate" else None))
    if at != "validate":
        rig.send(Configured("s", 1, None if at == "configure" else rig.facts, broken if at == "configure" else None))
    if at == "warm":
        rig.send(Warmed("s", 1, (), broken))
    assert (rig.view.state, rig.view.failure) == (G.FAILED, broken)
    assert rig.refusal("r1") == ("model_failed", 0, 0)
    rig.submit("r2")
    assert rig.refusal("r2") == ("model_failed", 0, 0)
    # only a configured board has something to release
    assert [type(o) is Release for o in rig.orders][-1] == (at == "warm")


def test_load_over_a_failed_one_starts_again_after_its_release() -> None:
    rig = Rig()
    rig.send(Load("s", "m", "p"))
    rig.send(Validated("s", 1))
    rig.send(Configured("s", 1, rig.facts))
    rig.send(Warmed("s", 1, (), fault(FaultClass.ARTIFACT)))
    assert rig.send(Load("s", "m", "q")) == []
    commands = rig.send(Released("s", 1))
    assert commands == [Validate("s", 2, "m", "q")]
    rig.lifecycle(commands)
    assert (rig.view.state, rig.view.package, rig.view.failure) == (G.READY, "q", None)


def test_load_a_hundred_times_leaves_the_engine_as_small_as_after_one() -> None:
    rig = Rig().up()
    for _ in range(100):
        rig.submit("r")
        rig.finished.clear()
        rig.lifecycle(rig.send(Unload("s", rig.now)))
        while rig.jobs:
            rig.lifecycle(rig.done())
        assert rig.view.state is G.UNLOADED
        rig.up()
    assert (len(rig.engine.supervisor.sessions), rig.view.generation, rig.view.running_requests) == (1, 101, 0)


def test_load_a_second_time_while_one_is_coming_up_is_ignored() -> None:
    rig = Rig()
    rig.send(Load("s", "m", "p"))
    assert rig.send(Load("s", "m", "q")) == []
    assert (rig.view.package, rig.counters["ignored_loads"]) == ("p", 1)


def test_drain_with_nothing_running_ends_at_once() -> None:
    rig = Rig().up()
    assert rig.send(Unload("s", 1_000 * MS)) == [Release("s", 1)]
    assert rig.view.state is G.UNLOADING
    rig.send(Released("s", 1))
    assert rig.view.state is G.UNLOADED
    rig.submit("late")
    assert rig.refusal("late") == ("unknown_model", 0, 0)


def test_drain_running_answers_end_in_their_own_time_and_the_waiting_are_told_now() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("runs", new=3)
    rig.submit("waits")
    rig.send(Unload("s", 1_000 * MS))
    assert rig.refusal("waits") == ("model_draining", 0, 0)
    rig.done()
    rig.done()
    commands = rig.done()
    assert rig.reason("runs") == "length"
    assert commands[-1] == Release("s", 1)


def test_drain_by_its_deadline_everyone_is_told_but_the_board_is_kept_until_the_job_retired() -> None:
    rig = Rig().up()
    rig.submit("runs", new=200)
    rig.done()
    rig.send(Unload("s", 100 * MS))
    assert rig.engine.next_deadline_ns() == 100 * MS
    rig.tick(100 * MS)
    assert rig.reason("runs") == "shutdown"
    assert not [o for o in rig.orders if isinstance(o, Release)]
    assert rig.view.jobs_in_flight == 1
    assert Release("s", 1) in rig.done()


def test_drain_a_job_that_never_comes_back_is_not_released_under() -> None:
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=40 * MS)).up()
    rig.submit("runs", new=200)
    rig.send(Unload("s", 100 * MS))
    rig.tick(100 * MS)
    assert rig.engine.next_deadline_ns() == 140 * MS
    rig.tick(140 * MS)
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA
    assert not [o for o in rig.orders if isinstance(o, Release)]


def overdue_then_unload(in_flight: int = 1) -> Rig:
    """Grace until 50 ms; `runs` is in the job that is overdue, the drain may take until 1 s."""
    proven = EVERYTHING | {"concurrent_jobs"}
    config = SchedulerConfig(overdue_grace_ns=40 * MS, max_in_flight=in_flight)
    rig = Rig(config=config, facts=paged_facts(proven=proven, max_in_flight=in_flight)).up()
    rig.submit("runs", new=3)
    if in_flight > 1:
        rig.submit("too", new=3)
    rig.at(10 * MS).send(JobOverdue(min(rig.jobs), 1))
    rig.at(20 * MS).send(Unload("s", 1_000 * MS))
    return rig


def test_drain_begun_while_a_job_is_overdue_goes_on_when_it_comes_back() -> None:
    rig = overdue_then_unload()
    assert len(submits(rig.at(49 * MS).done())) == 1
    rig.done()
    assert rig.done()[-1] == Release("s", 1)
    assert rig.reason("runs") == "length"


def test_drain_while_a_job_is_overdue_submits_nothing_beside_it() -> None:
    rig = overdue_then_unload(in_flight=2)
    assert submits(rig.done(job=2)) == []
    assert len(submits(rig.done(job=1))) >= 1
    while rig.jobs:
        rig.done()
    assert (rig.reason("runs"), rig.reason("too")) == ("length", "length")


def test_drain_a_job_that_turns_overdue_in_it_stops_the_others_until_it_comes_back() -> None:
    proven = EVERYTHING | {"concurrent_jobs"}
    rig = Rig(config=SchedulerConfig(max_in_flight=2), facts=paged_facts(proven=proven, max_in_flight=2)).up()
    rig.submit("runs", new=3)
    rig.submit("too", new=3)
    rig.send(Unload("s", 1_000 * MS))
    rig.at(10 * MS).send(JobOverdue(1, 1))
    assert submits(rig.done(job=2)) == []
    assert len(submits(rig.done(job=1))) >= 1


def test_drain_an_overdue_job_past_its_grace_is_lost_before_the_drain_is_out_of_time() -> None:
    rig = overdue_then_unload()
    assert rig.engine.next_deadline_ns() == 50 * MS
    rig.tick(50 * MS)
    assert rig.reason("runs") == "device_fault"
    assert rig.exit is not None
    assert rig.exit.code == EXIT_UNKNOWN_DMA
    assert not [o for o in rig.orders if isinstance(o, Release)]


def test_unload_while_loading_waits_for_the_step_that_is_out() -> None:
    rig = Rig()
    rig.send(Load("s", "m", "p"))
    rig.send(Validated("s", 1))
    rig.submit("r1")
    assert [type(c).__name__ for c in rig.send(Unload("s", 100 * MS))] == ["Finish"]
    assert rig.view.state is G.DRAINING
    assert rig.send(Configured("s", 1, rig.facts)) == [Release("s", 1)]


def test_replacing_a_package_ends_running_answers_on_the_old_generation() -> None:
    rig = Rig().up()
    rig.submit("old", new=3)
    rig.send(Load("s", "m", "q"))
    rig.submit("between")
    assert rig.refusal("between") == ("model_draining", 0, 0)
    while rig.jobs:
        assert rig.spec.generation == 1
        last = rig.done()
    assert rig.reason("old") == "length"
    rig.lifecycle(last)
    assert (rig.view.state, rig.view.package, rig.view.generation) == (G.READY, "q", 2)


# --- shutdown -------------------------------------------------------------------------------------------


def test_shutdown_idle_releases_and_exits_zero() -> None:
    rig = Rig().up().up("s2", model="m2")
    rig.lifecycle(rig.send(Shutdown(1_000 * MS)))
    rig.send(Released("s2", 2))
    assert rig.exit == Exit(EXIT_DONE, "shut down")


def test_shutdown_without_a_session_exits_at_once() -> None:
    rig = Rig()
    assert rig.send(Shutdown(5)) == [Exit(EXIT_DONE, "shut down")]


def test_shutdown_one_queued_one_submitted_queued_is_told_submitted_drains() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("submitted", new=2)
    rig.submit("queued")
    rig.send(Shutdown(1_000 * MS))
    assert rig.refusal("queued") == ("model_draining", 0, 0)
    rig.submit("late")
    assert rig.refusal("late") == ("model_draining", 0, 0)
    rig.done()
    rig.lifecycle(rig.done())
    assert rig.reason("submitted") == "length"
    assert rig.exit is not None
    assert rig.exit.code == EXIT_DONE


def test_shutdown_deadline_ends_streams_then_waits_a_grace_for_the_device() -> None:
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=40 * MS)).up()
    rig.submit("runs", new=200)
    rig.send(Shutdown(100 * MS))
    rig.tick(100 * MS)
    assert rig.reason("runs") == "shutdown"
    assert rig.exit is None
    rig.at(120 * MS)
    rig.lifecycle(rig.done())
    assert rig.exit is not None
    assert rig.exit.code == EXIT_DONE


def test_shutdown_a_release_that_never_ends_is_left_behind_by_its_time() -> None:
    rig = Rig(config=SchedulerConfig(overdue_grace_ns=40 * MS)).up()
    rig.send(Shutdown(100 * MS))
    assert rig.engine.next_deadline_ns() == 140 * MS
    rig.tick(140 * MS)
    assert rig.exit is not None
    assert rig.exit.code == EXIT_FORCED
    assert rig.engine.next_deadline_ns() is None


def test_after_the_exit_events_change_nothing_and_submits_are_refused() -> None:
    rig = Rig().up()
    rig.lifecycle(rig.send(Shutdown(100 * MS)))
    assert rig.send(Load("s", "m", "p")) == []
    rig.submit("late")
    assert rig.reason("late") == "refused"


def test_stale_lifecycle_answers_change_nothing() -> None:
    rig = Rig().up()
    assert rig.send(Warmed("s", 1)) == []
    assert rig.send(Released("s", 1)) == []
    assert rig.send(Configured("other", 1)) == []
    assert (rig.view.state, rig.counters["stale_events"]) == (G.READY, 3)


def test_snapshot_of_an_idle_session_is_all_zeros() -> None:
    view = Rig().up().view
    assert (view.jobs_in_flight, view.oldest_job_submitted_ns, view.oldest_job_deadline_ns) == (0, None, None)
    assert [(q.queue, q.depth, q.oldest_wait_ns) for q in view.queues] == [
        ("decode", 0, 0),
        ("short", 0, 0),
        ("medium", 0, 0),
        ("long", 0, 0),
    ]


def test_snapshot_shows_what_waits_and_for_how_long() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).at(10 * MS).up()
    rig.submit("runs", new=50)
    rig.at(30 * MS).submit("waits", prompt=20)
    rig.now = 45 * MS
    view = rig.view
    assert (view.waiting_requests, view.waiting_prompt_tokens, view.running_requests) == (1, 20, 1)
    assert [(q.queue, q.depth, q.oldest_wait_ns) for q in view.queues][1] == ("short", 1, 15 * MS)
    assert (view.oldest_job_submitted_ns, view.jobs_in_flight) == (10 * MS, 1)


def test_submits_of_two_sessions_do_not_wait_for_each_other() -> None:
    rig = Rig().up("a", model="ma").up("b", model="mb")
    assert len(submits(rig.submit("r1", model="ma"))) == 1
    assert len(submits(rig.submit("r2", model="mb"))) == 1
