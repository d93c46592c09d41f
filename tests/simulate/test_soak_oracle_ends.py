"""Planted faults in what clients are told: ends, refusals, deadlines, idle boards, drains, shares."""

from dataclasses import replace

import pytest
from soak_oracle_rig import MS, WORLD, History, ask, greedy

from calserve.runtime.sim.facts import FactKind


def one(**changes: object) -> History:
    history = History()
    history.submit(ask(**changes))
    return history.at(20)


# --- I1 and I12 ---------------------------------------------------------------------------------------------


def test_request_without_an_end_is_found_at_the_end_of_the_run() -> None:
    history = one()
    history.oracle.finish(30 * MS)
    assert history.found == ["I1"]


def test_second_end_is_found() -> None:
    history = one()
    history.whole("r1", 0)
    history.end("r1", "length", 3)
    assert history.found == ["I1"]
    assert "after its end (length)" in history.say()


def test_token_after_the_end_is_found() -> None:
    history = one()
    history.oracle.cancelled("r1", history.now)
    history.end("r1", "cancelled")
    history.tell("r1", greedy(history.requests["r1"], 1)[0])
    assert history.found == ["I1"]


def test_end_of_nobody_is_found() -> None:
    history = History()
    history.end("r99", "stop", 1)
    assert history.found == ["I1"]


def test_same_name_while_it_lives_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="r1 was submitted twice"):
        one().submit(ask())


def test_process_that_ends_in_order_tells_everyone() -> None:
    """No terminal at shutdown: the streams only broke."""
    for code, expected in ((0, ["I1"]), (75, ["I1"]), (-9, [])):
        history = one()
        history.state("draining")
        history.at(500)
        history.oracle.process_ended(history.now, code)
        history.end("r1", "process_ended")
        assert history.found == expected, code


def test_request_that_came_as_the_process_ended_may_go_untold() -> None:
    history = History()
    history.at(500)
    history.submit(ask(submitted_ns=499 * MS))
    history.end("r1", "process_ended")
    history.oracle.process_ended(history.now, 0)
    assert history.found == []


def test_request_left_open_by_a_dead_process_is_found() -> None:
    history = one()
    history.oracle.process_ended(history.now, -9)
    history.at(30).oracle.process_started(30 * MS)
    assert history.found == ["I1"]


# --- refusals -----------------------------------------------------------------------------------------------


def full(history: History, waiting: int, prompt: tuple[int, ...] = (1,)) -> None:
    for number in range(waiting):
        history.submit(ask(f"w{number}", prompt=prompt, submitted_ns=10 * MS))


def test_queue_full_is_true_only_when_as_many_wait() -> None:
    for waiting, expected in ((8, []), (7, ["I12"])):
        history = History()
        full(history, waiting)
        history.submit(ask("late", submitted_ns=12 * MS))
        history.at(13).end("late", "refused", detail="queue_full")
        assert history.found == expected, waiting


def test_queue_that_was_full_a_moment_ago_makes_the_refusal_true() -> None:
    history = History()
    full(history, 8)
    history.submit(ask("late", submitted_ns=12 * MS))
    history.at(13)
    for number in range(4):
        history.oracle.cancelled(f"w{number}", history.now)
        history.end(f"w{number}", "cancelled")
    history.at(14).end("late", "refused", detail="queue_full")
    assert history.found == []


def test_queue_tokens_full_is_true_only_when_as_many_wait() -> None:
    for size, expected in ((33, []), (20, ["I12"])):
        history = History()
        full(history, 3, (1,) * size)
        history.submit(ask("late", submitted_ns=12 * MS))
        history.at(13).end("late", "refused", detail="queue_tokens_full")
        assert history.found == expected, size


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"max_new_tokens": 62}, "too_long", []),
        ({"max_new_tokens": 61}, "too_long", ["I12"]),
        ({"max_new_tokens": 0}, "invalid", []),
        ({}, "invalid", ["I12"]),
        ({"model": "other"}, "unknown_model", []),
        ({}, "unknown_model", ["I12"]),
        ({}, "tenant_queue_full", ["I12"]),
        ({}, "made_up", ["I12"]),
    ],
)
def test_refusal_is_held_against_what_is_visible(changes: dict[str, object], kind: str, expected: list[str]) -> None:
    history = one(**changes)
    history.end("r1", "refused", detail=kind)
    assert history.found == expected


def test_refusal_for_a_model_that_serves_is_found_unless_trouble_shows_soon() -> None:
    history = one()
    history.end("r1", "refused", detail="model_recovering")
    history.oracle.check(200 * MS)
    assert history.found == ["I7"]
    other = one()
    other.end("r1", "refused", detail="model_recovering")
    other.at(21).state("draining")
    other.oracle.check(200 * MS)
    assert other.found == []


def test_refusal_after_tokens_is_found() -> None:
    history = one()
    history.run(history.row("r1", 0))
    history.tell("r1", greedy(history.requests["r1"], 1)[0])
    history.end("r1", "refused", detail="queue_full")
    assert history.found == ["I7"]


# --- I7: an end that needs an excuse ------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["device_fault", "internal", "shutdown"])
def test_end_by_trouble_without_any_is_found(reason: str) -> None:
    history = one()
    history.run(history.row("r1", 0))
    history.end("r1", reason)
    history.oracle.check(100 * MS)
    assert history.found == []  # it may show yet
    history.oracle.check(200 * MS)
    assert history.found == ["I7"]


def test_end_by_trouble_that_is_seen_is_excused() -> None:
    history = one()
    ticket = history.put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket, code=18, detail="done_ccu_exception")
    history.end("r1", "device_fault")
    history.oracle.finish(history.now)
    assert history.found == []


def test_output_of_a_failed_job_is_never_looked_at() -> None:
    """Code trusted without status: the buffer shows no numbers, and the request is told its output was bad."""
    for detail, expected in (("output 0", ["I10"]), ("status 0", [])):
        history = one()
        ticket = history.put(history.row("r1", 0))
        history.read(ticket)
        history.retire(ticket, detail="done_ccu_exception")
        history.deliver(ticket)
        history.end("r1", "internal", detail=detail)
        assert history.found == expected, detail


def test_siblings_trouble_excuses_no_device_fault() -> None:
    """A fault on one chip loses only what it must."""
    history = History(replace(WORLD, sessions={"s0": "m", "s1": "m"}))
    history.submit(ask())
    history.at(20).run(history.row("r1", 0))
    history.oracle.session_state("s1", 1, "draining", history.now)
    history.end("r1", "device_fault")
    history.oracle.check(200 * MS)
    assert history.found == ["I7"]


def test_cancel_nobody_asked_for_is_found() -> None:
    history = one()
    history.end("r1", "cancelled")
    assert history.found == ["I7"]


def test_settings_that_leave_no_token_are_an_internal_end_of_their_own() -> None:
    history = one(min_tokens=1, stop_token_ids=tuple(range(64)))
    history.end("r1", "internal")
    history.oracle.finish(200 * MS)
    assert history.found == []


# --- I11 ----------------------------------------------------------------------------------------------------


def test_deadline_that_passes_without_an_end_is_found_once() -> None:
    history = one(deadline_ns=300 * MS)
    history.state("draining")
    history.oracle.check(400 * MS)
    assert history.found == []
    history.oracle.check(401 * MS)
    history.oracle.check(500 * MS)
    assert history.found == ["I11"]


def test_deadline_end_before_the_deadline_is_found() -> None:
    history = one(deadline_ns=300 * MS)
    history.at(299).end("r1", "deadline")
    assert history.found == ["I11"]


def test_deadline_in_the_past_ends_at_once() -> None:
    history = one(deadline_ns=9 * MS)
    history.end("r1", "deadline")
    assert history.found == []


def test_cancel_without_an_end_is_found() -> None:
    history = one()
    history.oracle.cancelled("r1", 20 * MS)
    history.oracle.cancelled("r1", 90 * MS)
    history.oracle.check(121 * MS)
    assert history.found == ["I11"]


@pytest.mark.parametrize(("state", "bound"), [("draining", 1_000), ("recovering", 2_000), ("unloading", 3_000)])
def test_state_that_outlasts_its_bound_is_found(state: str, bound: int) -> None:
    history = History().at(20)
    history.state(state)
    history.oracle.check((20 + bound) * MS)
    assert history.found == []
    history.oracle.check((21 + bound) * MS)
    assert history.found == ["I11"]


def test_recovery_is_bounded_through_all_its_states() -> None:
    history = History().at(20)
    history.state("recovering")
    history.at(1_000).state("configuring")
    history.at(2_000).state("warming")
    history.at(2_021).state("ready")
    assert history.found == ["I11"]


# --- I8 -----------------------------------------------------------------------------------------------------


def test_idle_session_with_somebody_waiting_is_found() -> None:
    history = one()
    history.oracle.check(210 * MS)
    assert history.found == []
    history.oracle.check(211 * MS)
    assert history.found == ["I8"]


def test_idle_gap_is_found_at_the_submit_that_ends_it() -> None:
    history = one()
    history.at(400).put(history.row("r1", 0))
    assert history.found == ["I8"]


def test_idle_gap_in_the_middle_of_an_answer_is_found() -> None:
    history = one()
    history.run(history.row("r1", 0))
    history.tell("r1", greedy(history.requests["r1"], 1)[0])
    history.at(400).put(history.row("r1", 0, 3))
    assert history.found == ["I8"]


def test_idle_session_is_excused_by_a_refusal_of_the_board_for_a_time() -> None:
    history = one()
    history.at(100).fact(FactKind.FAULT, detail="submit_busy")
    history.oracle.check(500 * MS)
    assert history.found == []
    history.oracle.check(501 * MS)
    assert history.found == ["I8"]


def test_kv_refused_excuses_who_waited_then_and_nobody_later() -> None:
    history = one(deadline_ns=20_000 * MS)
    history.at(100).fact(FactKind.FAULT, detail="kv_cannot_allocate")
    history.submit(ask("r2", submitted_ns=101 * MS))
    history.oracle.check(10_000 * MS)
    assert history.found == []
    history.at(20_000).end("r1", "deadline")
    history.oracle.check(21_000 * MS)
    assert history.found == ["I8"]


def test_idle_copy_beside_a_busy_one_is_nothing_to_find() -> None:
    """Whose line a request waits in is not seen."""
    history = History(replace(WORLD, sessions={"s0": "m", "s1": "m"}))
    history.oracle.session_state("s1", 2, "ready", 0)
    history.submit(ask())
    history.submit(ask("r2"))
    history.at(20).put(history.row("r1", 0))
    history.oracle.check(5_000 * MS)
    history.at(6_000)
    history.session, history.generation = "s1", 2
    history.put(history.row("r2", 1))  # handed over to the idle one only now
    assert history.found == [], history.say()


def test_idle_session_with_nobody_to_run_finds_nothing() -> None:
    history = one()
    history.oracle.cancelled("r1", 20 * MS)
    history.end("r1", "cancelled")
    history.oracle.check(50_000 * MS)
    assert history.found == []


# --- memory -------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_length_of_a_run() -> None:
    history = History(replace(WORLD, context=64))
    sizes = []
    for number in range(9_000):
        request = history.submit(ask(f"r{number}", max_new_tokens=1, submitted_ns=history.now, deadline_ns=10**15))
        history.whole(request.name, number % 4)
        del history.requests[request.name]
        history.specs.clear()
        if number % 1_000 == 999:
            sizes.append(history.oracle.size)
    assert sizes[-1] == sizes[-3] < 5_000
    assert history.oracle.submits == history.oracle.ends["length"] == 9_000
    assert history.found == []


def test_violations_beyond_the_first_are_counted_and_not_kept() -> None:
    history = History()
    for number in range(200):
        history.end(f"x{number}", "stop")
    assert (len(history.oracle.violations), history.oracle.violation_count) == (50, 200)
