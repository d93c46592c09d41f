"""Planted faults in the board's account: each history is right but for one line, and exactly that is found."""

from dataclasses import replace

import pytest
from soak_oracle_rig import WORLD, History, ask, greedy, text

from calserve.runtime.sim.facts import FactKind, RowFact


def two() -> History:
    """Two requests of three prompt tokens each, nothing run yet."""
    history = History()
    history.submit(ask())
    history.submit(ask("r2", prompt=(7, 8, 9)))
    return history.at(20)


def test_two_requests_side_by_side_find_nothing() -> None:
    history = two()
    history.whole("r1", 0)
    history.whole("r2", 1)
    history.oracle.finish(history.now)
    assert history.found == [], history.say()


def test_lane_named_while_a_job_writes_it_is_found() -> None:
    """A lane returned on cancel while its job runs: the next holder's job goes in beside it."""
    history = History(replace(WORLD, max_in_flight=2))
    history.submit(ask())
    history.submit(ask("r2"))
    history.at(20).put(history.row("r1", 2))
    history.oracle.cancelled("r1", history.now)
    history.end("r1", "cancelled")
    history.at(21).put(history.row("r2", 2))
    assert history.found == ["I4"]
    assert "r2, which job 1 (ticket 1, session s0, generation 1) may still write on chip 0" in history.say()


def test_lane_named_before_the_host_knows_its_last_job_is_found() -> None:
    """Commit before wait: the device is through, and nobody has told the host."""
    history = two()
    ticket = history.put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket)
    history.put(history.row("r1", 0, 3))
    assert history.found == ["I4"]


def test_lane_left_unknown_by_a_failed_job_is_found_when_it_is_used_again() -> None:
    """The fence dropped: a new request gets the lane of a failed job in the same generation."""
    history = two()
    ticket = history.put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket, detail="done_ccu_exception")
    history.deliver(ticket)
    history.end("r1", "device_fault")
    history.put(history.row("r2", 0))
    assert history.found == ["I4"]
    assert "left unknown" in history.say()


def test_lane_of_a_failed_job_is_clean_in_the_next_generation() -> None:
    history = two()
    ticket = history.put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket, detail="done_ccu_exception")
    history.deliver(ticket)
    history.end("r1", "device_fault")
    for state in ("draining", "recovering"):
        history.state(state)
    history.fact(FactKind.RESET, detail="chip")
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.state("ready")
    history.whole("r2", 0)
    history.oracle.finish(history.now)
    assert history.found == [], history.say()


def test_late_job_of_an_older_generation_still_writes_after_a_reset_that_stops_nothing() -> None:
    for scope, expected in (("session", ["I4"]), ("chip", [])):
        history = two()
        history.put(history.row("r1", 0))
        history.state("draining")
        history.fact(FactKind.RESET, detail=scope)
        history.generation = 2
        history.fact(FactKind.CONFIGURED)
        history.state("ready")
        history.put(history.row("r2", 0))
        assert history.found == expected, scope


def test_job_left_by_a_dead_process_still_writes() -> None:
    history = two()
    history.put(history.row("r1", 0))
    history.fact(FactKind.HOST_ENDED)
    history.oracle.process_ended(history.now, -9)
    history.end("r1", "process_ended")
    history.end("r2", "process_ended")
    history.oracle.process_started(history.now)
    history.submit(ask("r3"))
    history.state("ready")
    history.put(history.row("r3", 0))
    assert history.found == ["I4"]


def test_lane_beyond_the_board_is_found() -> None:
    history = two()
    history.put(history.row("r1", 4))
    assert history.found == ["I4"]


def test_row_for_a_request_that_ended_is_found() -> None:
    history = two()
    history.oracle.cancelled("r1", history.now)
    history.end("r1", "cancelled")
    history.put(history.row("r1", 0))
    assert history.found == ["I4"]


# --- what the device read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bent", "why"),
    [
        (RowFact(1, 0, (3, 4, 5), (0, 1, 2), 3), "the wrong lane"),
        (RowFact(0, 1, (3, 4, 5), (0, 1, 2), 4), "the wrong slot"),
        (RowFact(0, 0, (3, 4, 5), (1, 2, 3), 3), "the wrong positions"),
        (RowFact(0, 0, (7, 8, 9), (0, 1, 2), 3), "another request's prompt: a buffer in flight handed out again"),
        (RowFact(0, 0, (0, 0, 0), (0, 0, 0), 3), "a buffer scrubbed before its DMA"),
        (RowFact(0, 0, (3, 4), (0, 1), 2), "a token short"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_device_read_other_than_the_job_says_is_found(bent: RowFact, why: str) -> None:
    history = two()
    ticket = history.put(history.row("r1", 0))
    history.read(ticket, (bent,))
    assert history.found == ["I4"], why


def test_device_read_of_a_wrong_output_token_is_found() -> None:
    history = two()
    history.run(history.row("r1", 0))
    ticket = history.put(history.row("r1", 0, 3))
    wrong = (greedy(history.requests["r1"], 1)[0] + 1) % 64
    history.read(ticket, (RowFact(0, 3, (wrong,), (3,), 4),))
    assert history.found == ["I4"]


def test_rows_swapped_between_lanes_are_found() -> None:
    history = two()
    history.run(history.row("r1", 0))
    history.run(history.row("r2", 1))
    ticket = history.put(history.row("r1", 0, 3), history.row("r2", 1, 3))
    first, second = history.right_rows(ticket)
    history.read(ticket, (replace(second, lane=0), replace(first, lane=1)))
    assert history.found == ["I4", "I4"]


# --- lanes, positions, generations --------------------------------------------------------------------------


def test_lane_given_to_two_requests_is_found_when_the_first_goes_on() -> None:
    """A lane or a unit released twice."""
    history = two()
    history.run(history.row("r1", 0))
    history.run(history.row("r2", 0))
    history.put(history.row("r1", 0, 3))
    assert history.found == ["I2"]
    assert "r2 was given that lane since" in history.say()


def test_request_that_changes_its_lane_is_found() -> None:
    history = two()
    history.run(history.row("r1", 0))
    history.put(history.row("r1", 1, 3))
    assert history.found == ["I2"]


def test_position_that_skips_or_repeats_is_found() -> None:
    for first in (2, 4):
        history = two()
        history.run(history.row("r1", 0))
        history.put(history.row("r1", 0, first, 1))
        assert history.found == ["I3"], first


def test_first_chunk_that_does_not_start_at_zero_is_found() -> None:
    history = two()
    history.put(history.row("r1", 0, 1, 2))
    assert history.found == ["I3"]


def test_prompt_in_chunks_finds_nothing_and_a_row_beyond_the_length_is_found() -> None:
    history = two()
    history.run(history.row("r1", 0, 0, 2))
    right = greedy(history.requests["r1"], 3)
    for index, token in enumerate(right):
        history.at(21 + index).run(history.row("r1", 0, 2 + index, 1))
        history.tell("r1", token)
    assert history.found == [], history.say()
    history.put(history.row("r1", 0, 5))
    assert history.found == ["I3"]


def test_two_jobs_of_one_request_at_once_are_found() -> None:
    history = History(replace(WORLD, max_in_flight=2))
    history.submit(ask())
    history.at(20).put(history.row("r1", 0))
    history.put(history.row("r1", 1, 3))
    assert history.found == ["I3", "I3"]  # carried twice, and not committed


def test_request_that_goes_on_in_another_generation_is_found() -> None:
    history = two()
    history.run(history.row("r1", 0))
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.put(history.row("r1", 0, 3))
    assert "I5" in history.found


def test_request_that_starts_over_after_its_client_had_a_token_is_found() -> None:
    history = two()
    history.run(history.row("r1", 0))
    history.tell("r1", greedy(history.requests["r1"], 1)[0])
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.put(history.row("r1", 0))
    assert history.found == ["I5"]


def test_request_may_start_over_once_and_a_third_beginning_is_found() -> None:
    history = two()
    for generation in (1, 2, 3):
        history.generation = generation
        history.fact(FactKind.CONFIGURED)
        history.run(history.row("r1", 0))
        assert history.found == ([] if generation < 3 else ["I5"]), history.say()


def started_over(**changes: object) -> tuple[History, list[int]]:
    """A whole answer with one token, whose generation went; the second one has run its prompt. And what is right."""
    history = History()
    request = history.submit(ask(is_whole=True, **changes))
    right = greedy(request, 3)
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", right[0])
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.at(40).run(history.row("r1", 0))
    return history, right


def finish(history: History, right: list[int]) -> None:
    for index in (1, 2):
        history.run(history.row("r1", 0, 2 + index))
        history.tell("r1", right[index])


def test_whole_answer_that_starts_over_and_is_right_is_clean() -> None:
    history, right = started_over()
    history.oracle.starts_over("r1", history.now)
    history.tell("r1", right[0])
    finish(history, right)
    history.oracle.answered("r1", text(right), history.now)
    history.end("r1", "length", 3)
    assert history.found == [], history.say()


def test_outputs_of_the_first_try_may_still_come_when_the_second_is_on_the_board() -> None:
    history = History()
    right = greedy(history.submit(ask(is_whole=True)), 3)
    history.at(20).run(history.row("r1", 0))
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.put(history.row("r1", 0))  # begun anew, and the first token is still on its way
    history.tell("r1", right[0])
    assert history.found == [], history.say()
    history.tell("r1", right[1])  # the first try gave one
    assert history.found == ["I10"]


def test_whole_answer_that_starts_over_without_a_word_is_found() -> None:
    history, right = started_over()
    history.tell("r1", right[0])
    assert history.found == ["I10"]


def test_whole_answer_with_its_first_try_still_in_it_is_found() -> None:
    history, right = started_over()
    history.oracle.starts_over("r1", history.now)
    history.tell("r1", right[0])
    finish(history, right)
    history.oracle.answered("r1", text(right[:1] + right), history.now)
    assert history.found == ["I10"]


def test_whole_answer_whose_use_counts_both_tries_is_found() -> None:
    history, right = started_over()
    history.oracle.starts_over("r1", history.now)
    history.tell("r1", right[0])
    finish(history, right)
    history.end("r1", "length", 4)
    assert history.found == ["I10"]


def test_whole_answer_that_starts_over_twice_or_for_nothing_or_as_a_stream_is_found() -> None:
    twice, _ = started_over()
    twice.oracle.starts_over("r1", twice.now)
    assert twice.found == []
    twice.oracle.starts_over("r1", twice.now)
    for_nothing = History()
    for_nothing.submit(ask(is_whole=True))
    for_nothing.at(20).run(for_nothing.row("r1", 0))
    for_nothing.oracle.starts_over("r1", for_nothing.now)
    stream = two()
    stream.oracle.starts_over("r1", stream.now)
    nobody = History()
    nobody.oracle.starts_over("nobody", nobody.now)
    found = [history.found for history in (twice, for_nothing, stream, nobody)]
    assert found == [["I5"], ["I5"], ["I5"], ["I1"]]


def test_completion_of_an_older_generation_taken_for_the_new_one_is_found() -> None:
    """The generation check skipped: the token is right, but the job of this generation has not given it."""
    history = two()
    old = history.put(history.row("r1", 0))
    history.read(old)
    history.state("draining")
    history.fact(FactKind.RESET, detail="session")
    history.retire(old)
    history.generation = 2
    history.fact(FactKind.CONFIGURED)
    history.state("ready")
    history.put(history.row("r1", 0))
    history.fact(FactKind.DELIVERED, old, generation=1, detail="stray")
    history.tell("r1", greedy(history.requests["r1"], 1)[0])
    assert history.found == ["I10"]


def test_job_beyond_the_proven_number_is_found() -> None:
    history = two()
    history.put(history.row("r1", 0))
    history.put(history.row("r2", 1))
    assert history.found == ["I6"]


def test_limit_announced_lower_holds_from_then_on() -> None:
    history = History(replace(WORLD, max_in_flight=2))
    history.submit(ask())
    history.submit(ask("r2"))
    history.oracle.in_flight_limit("s0", 1, 0)
    history.at(20).put(history.row("r1", 0))
    history.put(history.row("r2", 1))
    assert history.found == ["I6"]


def test_decode_left_out_of_too_many_jobs_is_found() -> None:
    history = History(replace(WORLD, passed_over_bound=2))
    history.submit(ask())
    history.submit(ask("r2", max_new_tokens=20))
    history.at(20).run(history.row("r1", 0))
    history.run(history.row("r2", 1))
    for step in range(3):
        history.run(history.row("r2", 1, 3 + step))
    history.put(history.row("r1", 0, 3))
    assert history.found == ["I8"]


def test_warm_up_jobs_of_the_server_are_nobodys_and_still_hold_their_lanes() -> None:
    history = two()
    history.requests["warm-0"] = ask("warm-0", prompt=(1, 2, 3))
    ticket = history.put(history.row("warm-0", 0), number=-1)
    history.read(ticket)
    assert history.found == [], history.say()
    history.put(history.row("r1", 0))
    assert history.found == ["I6", "I4"]
