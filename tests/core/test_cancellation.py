"""Cancel and deadline in every state: told at once, resources only when no job writes them any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_rig import MS, Rig, lane_facts, paged_facts, submits

from calserve.core.commands import Finish
from calserve.core.config import SchedulerConfig
from calserve.core.events import Cancel, CancelCause, ClientStalled, JobDone, Load, RowResult
from calserve.core.outcomes import FinishReason, RowEnd

GONE = CancelCause.CLIENT_GONE


def cancel(rig: Rig, name: str) -> list[object]:
    return list(rig.send(Cancel(name, GONE)))


def waiting_model() -> Rig:
    rig = Rig()
    rig.send(Load("s", "m", "p"))
    rig.submit("x")
    return rig


def waiting_admission() -> Rig:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("first", new=50)
    rig.submit("x")
    return rig


def prefill_ready() -> Rig:
    rig = Rig().up()
    rig.submit("first", new=50)
    rig.submit("x", prompt=40)  # has a lane, the job in flight was made before it came
    return rig


def prefill_running() -> Rig:
    rig = Rig().up()
    rig.submit("x")
    return rig


def between_chunks() -> Rig:
    """In the middle of a chunked prefill: one chunk committed, the next in flight."""
    rig = Rig(config=SchedulerConfig(prefill_chunk_tokens=8)).up()
    rig.submit("first", new=50)
    rig.done()
    rig.submit("x", prompt=40)
    rig.done()
    rig.done()
    assert rig.spec.rows[1].first_position == 8
    return rig


def decode_ready() -> Rig:
    """Its token is there, a prefill of someone else is in flight."""
    rig = Rig(facts=lane_facts()).up()
    rig.submit("x", new=50)
    rig.done()
    while rig.rows != ["y"]:
        if "y" not in set(rig.engine.supervisor.sessions["s"].worker.roster.requests):
            rig.submit("y", prompt=20)
        rig.done()
    return rig


def decode_running() -> Rig:
    rig = Rig().up()
    rig.submit("x", new=50)
    rig.done()
    return rig


STATES = [
    waiting_model,
    waiting_admission,
    prefill_ready,
    prefill_running,
    between_chunks,
    decode_ready,
    decode_running,
]


@pytest.mark.parametrize("state", STATES)
def test_cancel_in_any_state_twice_tells_once_and_leaves_nothing_reserved(state: Callable[[], Rig]) -> None:
    rig = state()
    ends = [c for c in cancel(rig, "x") if isinstance(c, Finish)]
    assert [(end.request, end.reason) for end in ends] == [("x", FinishReason.CANCELLED)]
    assert not [c for c in cancel(rig, "x") if isinstance(c, Finish)]
    assert rig.counters["unknown_cancels"] == 1
    for name in ("first", "y"):
        cancel(rig, name)
    while rig.jobs:
        rig.done()
    view = rig.view
    assert (view.kv_units_held, view.kv_units_reserved, view.running_requests, view.waiting_requests) == (0, 0, 0, 0)
    assert view.lanes_by_state["free"] == view.lanes_total


def test_cancel_is_counted_by_its_cause() -> None:
    rig = Rig().up()
    for name in ("a", "b", "c", "d"):
        rig.submit(name)
    rig.send(Cancel("a", CancelCause.CLIENT_GONE))
    rig.send(Cancel("b", CancelCause.ASKED))
    rig.send(Cancel("c", CancelCause.ASKED))
    rig.send(ClientStalled("d"))
    rig.send(ClientStalled("d"))
    counted = {name: count for name, count in rig.counters.items() if name.startswith("cancels_")}
    assert counted == {"cancels_client_gone": 1, "cancels_asked": 2, "cancels_stalled": 1}


def test_cancel_of_an_unknown_name_is_counted_and_nothing_else() -> None:
    rig = Rig().up()
    assert cancel(rig, "nobody") == []
    assert rig.counters["unknown_cancels"] == 1


def test_cancel_in_flight_the_lane_comes_back_when_the_job_retired_and_is_given_in_that_call() -> None:
    rig = Rig(facts=paged_facts(lanes=1, units=4)).up()
    rig.submit("x", prompt=20, new=10)
    rig.done()
    units = rig.spec.rows[0].kv_units
    rig.submit("next", prompt=20, new=10)
    assert cancel(rig, "x")
    assert rig.view.lanes_by_state["releasing"] == 1
    assert (rig.view.running_requests, rig.view.waiting_requests, rig.view.kv_units_held) == (0, 1, len(units))
    commands = rig.done()
    (spec,) = submits(commands)
    assert (spec.rows[0].request, spec.rows[0].lane, spec.rows[0].kv_units) == ("next", 0, units)


def test_cancel_in_flight_the_late_token_is_dropped() -> None:
    rig = decode_running()
    before = len(rig.emitted)
    cancel(rig, "x")
    commands = rig.done()
    assert len(rig.emitted) == before
    assert not [c for c in commands if isinstance(c, Finish)]
    assert rig.counters["dropped_rows"] == 1


def test_cancel_in_flight_batch_mates_go_on_unchanged() -> None:
    rig = Rig().up()
    for name in ("a", "x", "b"):
        rig.submit(name, new=5)
    while len(rig.spec.rows) < 3:
        rig.done()
    cancel(rig, "x")
    while rig.jobs:
        rig.done()
    assert [rig.reason(n) for n in ("a", "b")] == ["length", "length"]
    assert [rig.finished[n].usage.completion_tokens for n in ("a", "b")] == [5, 5]


def test_a_stalled_reader_is_cancelled() -> None:
    rig = decode_running()
    rig.send(ClientStalled("x"))
    assert rig.reason("x") == "cancelled"


def test_the_first_terminal_wins_over_a_completion_in_flight() -> None:
    rig = Rig().up()
    rig.submit("x", new=1)
    cancel(rig, "x")
    rig.done()
    assert rig.reason("x") == "cancelled"
    assert rig.finished["x"].usage.completion_tokens == 0


def test_cancel_refunds_what_was_not_spent() -> None:
    rig = Rig(facts=paged_facts(lanes=1, units=64)).up()
    rig.submit("x", prompt=8, new=200, tenant="a")
    cancel(rig, "x")
    rig.done()
    rig.submit("blocker", prompt=8, new=1, tenant="z")
    rig.submit("b", prompt=8, new=6, tenant="b")
    rig.submit("a", prompt=8, new=3, tenant="a")
    rig.done()
    assert rig.rows == ["a"]  # 808 charged, all but the 8 of its prefill given back: 8 + 20 is before b's 32


# --- deadlines ------------------------------------------------------------------------------------------


def test_deadline_while_queued_ends_without_board_work() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("first", new=50)
    rig.submit("x", deadline=30 * MS)
    assert rig.engine.next_deadline_ns() == 30 * MS
    rig.tick(30 * MS)
    assert rig.reason("x") == "deadline"
    for _ in range(5):
        rig.done()
        assert rig.rows == ["first"]


def test_deadline_already_past_is_told_at_once() -> None:
    rig = Rig().up()
    commands = rig.at(50 * MS).submit("x", deadline=50 * MS)
    assert (rig.reason("x"), len(commands), rig.jobs) == ("deadline", 1, {})


def test_deadline_while_running_tells_at_once_and_frees_the_lane_with_the_job() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("x", new=50, deadline=30 * MS)
    rig.done()
    rig.submit("next")
    rig.tick(30 * MS)
    assert rig.reason("x") == "deadline"
    assert (rig.view.running_requests, rig.view.lanes_by_state["releasing"]) == (0, 1)
    (spec,) = submits(rig.done())
    assert spec.rows[0].request == "next"


def test_deadline_and_completion_at_the_same_instant_is_the_deadline() -> None:
    rig = Rig().up()
    rig.submit("x", new=1, deadline=30 * MS)
    rig.at(30 * MS).done()
    assert rig.reason("x") == "deadline"


def test_deadline_default_counts_from_arrival() -> None:
    rig = Rig(config=SchedulerConfig(deadline_default_ns=70 * MS)).at(5 * MS).up()
    rig.submit("x", new=50)
    assert rig.engine.next_deadline_ns() == 75 * MS


def test_deadline_while_waiting_for_the_model() -> None:
    rig = Rig()
    rig.send(Load("s", "m", "p"))
    rig.submit("x", deadline=9 * MS)
    rig.tick(9 * MS)
    assert rig.reason("x") == "deadline"


# --- stale facts ----------------------------------------------------------------------------------------


def test_a_completion_twice_changes_nothing_the_second_time() -> None:
    rig = Rig().up()
    rig.submit("x", new=9)
    spec = rig.spec
    rig.done()
    again = JobDone(spec.job, spec.generation, (RowResult(RowEnd.NONE, 1),))
    assert rig.send(again) == []
    assert rig.counters["stale_completions"] == 1
    assert rig.spec.rows[0].first_position == 8


def test_a_completion_of_another_generation_is_counted_and_dropped() -> None:
    rig = Rig().up()
    rig.submit("x", new=9)
    assert rig.send(JobDone(rig.spec.job, 99, (RowResult(RowEnd.EOS, 1),))) == []
    assert (rig.counters["stale_completions"], "x" in rig.finished) == (1, False)


def test_a_completion_with_the_wrong_number_of_rows_is_a_broken_invariant() -> None:
    rig = Rig().up()
    rig.submit("x")
    with pytest.raises(ValueError, match="2 results for 1 rows"):
        rig.send(JobDone(1, 1, (RowResult(RowEnd.NONE, 1),) * 2))


def test_time_that_goes_back_is_a_broken_invariant() -> None:
    rig = Rig().at(10).up()
    with pytest.raises(ValueError, match="time went back from 10 to 9"):
        rig.tick(9)
