"""Jobs one by one: tickets, time-outs, refusals, buffers, counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from board_case import BoardCase
from harness import LONG_NS, Flying, Hand, Turn, best, bits, is_unreadable, prompt, proves

from calserve.core.job import Bank
from calserve.runtime.contract import Board, Session, StatusKind, Ticket
from calserve.runtime.encoding import encode


def _start(hand: Hand, case: BoardCase, length: int = 12) -> Flying:
    return hand.fly(*hand.describe([Turn(hand.line(0), prompt(case.package, length))]))


def _long(hand: Hand, case: BoardCase) -> Flying:
    """The longest job the board takes: it cannot be over when `wait` looks the first time."""
    least = min(case.package.context, *(g.profile.max_job_tokens for g in hand.session.graphs.values())) - 1
    return _start(hand, case, max(least, min(1000, case.package.context - 1)))


def test_submit_then_wait_tells_whose_job_ended(hand: Hand, case: BoardCase) -> None:
    flying = _start(hand, case)
    code, status = hand.session.wait(flying.ticket, LONG_NS)
    assert code == 0
    assert status is not None
    assert status.status is StatusKind.DONE
    assert status.ticket == flying.ticket
    assert (status.ticket.job, status.ticket.generation) == (flying.spec.job, 1)
    assert status.generation == 1
    assert status.device_ns > 0


def test_wait_two_jobs_in_turn_have_tickets_of_their_own(hand: Hand, case: BoardCase) -> None:
    first = _start(hand, case)
    hand.land(first)
    second = _start(hand, case)
    hand.land(second)
    assert first.ticket.number != second.ticket.number


def test_wait_with_no_time_gives_thirteen_and_the_job_stays_ours(hand: Hand, case: BoardCase) -> None:
    flying = _long(hand, case)
    assert hand.session.wait(flying.ticket, 0)[0] == 13
    assert hand.session.wait(flying.ticket, 0)[0] == 13
    assert hand.land(flying)[0] is not None


def test_wait_for_a_ticket_that_is_not_in_flight_is_refused(hand: Hand, case: BoardCase) -> None:
    flying = _start(hand, case)
    hand.land(flying)
    for ticket in (flying.ticket, Ticket(999, 1, 1)):
        code, status = hand.session.wait(ticket, LONG_NS)
        assert code not in (0, 13)
        assert status is None


def test_close_while_a_job_is_in_flight_gives_seventeen(hand: Hand, case: BoardCase) -> None:
    flying = _long(hand, case)
    assert hand.session.close() == 17
    assert hand.land(flying)[0] is not None
    assert hand.session.close() == 0


def test_submit_after_close_is_refused(hand: Hand, case: BoardCase) -> None:
    flying = _start(hand, case)
    hand.land(flying)
    assert hand.session.close() == 0
    assert hand.session.submit(flying.spec, flying.buffers)[0] != 0
    code, buffers = hand.session.allocate(flying.spec.graph, Bank.PING)
    assert code != 0
    assert buffers is None


def test_submit_another_generation_or_session_is_refused(hand: Hand, case: BoardCase, board: Board) -> None:
    spec, tokens = hand.describe([Turn(hand.line(0), prompt(case.package, 6))])
    for wrong in (replace(spec, generation=2), replace(spec, session="other"), replace(spec, graph="nothing")):
        buffers = hand.buffers(spec.graph)
        assert encode(hand.session.graphs[spec.graph], spec, tokens, buffers) is None
        code, ticket = hand.session.submit(wrong, buffers)
        assert code != 0
        assert ticket is None
        hand.give_back(buffers)
    assert board.counters().left == 0


def test_submit_unfilled_buffers_is_refused(hand: Hand, case: BoardCase) -> None:
    spec, _ = hand.describe([Turn(hand.line(0), prompt(case.package, 6))])
    code, ticket = hand.session.submit(spec, hand.buffers(spec.graph))
    assert code != 0
    assert ticket is None


def test_submit_buffers_in_flight_is_refused(hand: Hand, case: BoardCase) -> None:
    flying = _long(hand, case)
    code, ticket = hand.session.submit(flying.spec, flying.buffers)
    assert code == 17
    assert ticket is None
    assert flying.buffers.reset() != 0
    hand.land(flying)


def test_counters_after_a_drain_are_closed(board: Board, hand: Hand, case: BoardCase) -> None:
    before = board.counters().finished
    flying = _long(hand, case)
    assert board.counters().left == 1
    hand.land(flying)
    assert hand.session.drain(LONG_NS) == 0
    counters = board.counters()
    assert (counters.pending, counters.left) == (0, 0)
    assert counters.finished == before + 1


def test_trace_after_a_job_has_its_span_on_a_chip(board: Board, hand: Hand, case: BoardCase) -> None:
    flying = _start(hand, case)
    hand.land(flying)
    spans = [span for span in board.trace(0) if span.job == flying.spec.job]
    assert spans
    assert {span.chip for span in spans} <= {chip.chip for chip in board.describe().chips}
    assert all(span.end_ns >= span.begin_ns for span in spans)
    assert any(span.phase == "compute" and span.end_ns > span.begin_ns for span in spans)
    assert board.trace(max(span.end_ns for span in board.trace(0)) + 1) == ()


def test_allocate_an_unknown_graph_is_refused(session: Session) -> None:
    code, buffers = session.allocate("nothing", Bank.PING)
    assert code != 0
    assert buffers is None


def test_buffers_over_many_jobs_keep_their_addresses(hand: Hand, case: BoardCase) -> None:
    def addresses(flying: Flying) -> dict[str, int]:
        tensors = (*flying.contract.inputs, *flying.contract.outputs)
        return {name: flying.buffers.host(name).__array_interface__["data"][0] for name in tensors}

    flying = _start(hand, case, 3)
    first = addresses(flying)
    hand.land(flying)
    for length in (1, 17, 40):
        flying = _start(hand, case, length)
        assert addresses(flying) == first
        hand.land(flying)
    assert np.shares_memory(flying.buffers.output("logits"), flying.buffers.host("logits"))


def test_buffers_beyond_their_memory_are_refused_here(hand: Hand) -> None:
    for name, contract in hand.session.graphs.items():
        buffers = hand.buffers(name)
        assert buffers.map("nothing") != 0
        assert buffers.slice("nothing", (1,)) != 0
        assert buffers.set_csr("nothing", 1) != 0
        for tensor in (*contract.inputs.values(), *contract.outputs.values()):
            assert buffers.map(tensor.name) == 0
            if not tensor.shape:
                assert buffers.slice(tensor.name, (1,)) != 0
                continue
            assert buffers.slice(tensor.name, (tensor.shape[0] + 1, *tensor.shape[1:])) != 0
            assert buffers.slice(tensor.name, (*tensor.shape, 1)) != 0
            assert (buffers.slice(tensor.name, tensor.shape) == 0) == tensor.sliceable
        hand.give_back(buffers)


def test_reset_with_a_slice_left_is_refused_until_it_is_undone(hand: Hand) -> None:
    for name, contract in hand.session.graphs.items():
        for tensor in contract.inputs.values():
            if tensor.sliceable:
                buffers = hand.buffers(name)
                assert buffers.map(tensor.name) == 0
                assert buffers.slice(tensor.name, tensor.shape) == 0
                assert buffers.reset() != 0
                assert buffers.undo_slices() == 0
                assert buffers.reset() == 0


def test_reset_after_a_job_leaves_nothing_of_the_request(hand: Hand, case: BoardCase) -> None:
    flying = _start(hand, case, 30)
    hand.land(flying)
    for name in flying.contract.inputs:
        assert not flying.buffers.host(name).any(), name
    for name in flying.contract.outputs:
        for row in flying.buffers.host(name).reshape(-1, flying.contract.vocab_size):
            assert is_unreadable(row), name


def test_mirror_out_of_range_lanes_units_and_lengths_are_refused(session: Session) -> None:
    kv, last = session.kv, session.lanes - 1
    assert kv.apply(session.lanes, (0,), 1) != 0
    assert kv.apply(-1, (0,), 1) != 0
    assert kv.apply(last, (session.kv_units,), 1) != 0
    assert kv.apply(last, (-1,), 1) != 0
    assert kv.apply(last, (last,), session.unit_tokens + 1) != 0
    assert kv.apply(last, (last,), -1) != 0
    assert kv.can_allocate(session.kv_units)
    assert not kv.can_allocate(session.kv_units + 1)


def test_mirror_held_units_are_counted_until_released(session: Session) -> None:
    assert session.kv.apply(0, (0,), 1) == 0
    assert not session.kv.can_allocate(session.kv_units)
    assert session.kv.can_allocate(session.kv_units - 1)
    assert session.kv.release(0) == 0
    assert session.kv.can_allocate(session.kv_units)
    assert session.kv.release(0) == 0


def test_mirror_a_unit_of_another_lane_is_refused(hand: Hand, case: BoardCase) -> None:
    line = hand.line(0)
    hand.prefill(line, prompt(case.package, 9))
    other = 1 % hand.session.lanes
    spare = hand.session.kv_units - 1
    wanted = line.units if other != line.lane else (spare + 1,)
    assert hand.session.kv.apply(other, wanted, 1) != 0
    assert best(hand.decode([line], [3])[0]) >= 0


def test_reuse_of_a_released_lane_and_its_units_gives_what_a_fresh_one_gives(hand: Hand, case: BoardCase) -> None:
    line = hand.line(0)
    short = prompt(case.package, 9, salt=1)
    fresh = hand.prefill(line, short)
    following = hand.decode([line], [5])[0]
    hand.release(line)
    hand.prefill(line, prompt(case.package, 100, salt=2))
    hand.release(line)
    assert bits(hand.prefill(line, short)) == bits(fresh)
    assert bits(hand.decode([line], [5])[0]) == bits(following)


def test_second_job_beside_the_first_follows_what_is_proven(board: Board, hand: Hand, case: BoardCase) -> None:
    flying = _long(hand, case)
    spec = replace(flying.spec, job=next(hand.jobs), bank=Bank.PONG)
    buffers = hand.buffers(spec.graph, Bank.PONG)
    ids = [prompt(case.package, row.token_count) for row in spec.rows]
    assert encode(flying.contract, spec, ids, buffers) is None
    code, ticket = hand.session.submit(spec, buffers)
    # The session was configured for one job in flight, the only number every board has.
    assert (code, ticket) == (17, None)
    hand.land(flying)
    assert hand.session.cancel(flying.ticket) == (0 if proves(board, "job_cancel") else 27)
