"""No sequence sees another: alone equals batched, whole equals chunked, and each mutant of that is caught.

Equality is of bits, so the packages here have exact numerics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from board_case import BoardCase
from harness import Change, Hand, Line, Sent, Tokens, Turn, best, bits, choose_graph, prompt, proves

from calserve.core.board import RowBinding
from calserve.core.job import JobSpec, LogitsWanted, Row, Task
from calserve.runtime.contract import Board, Session
from calserve.runtime.encoding import encode

MATE_LENGTHS = (5, 33, 2, 17, 31, 64, 9)
TARGET_LENGTH = 21


def refuses_two_rows(session: Session) -> bool:
    rows = [Row("a", 0, (0,), 1, 1, LogitsWanted.LAST), Row("b", 1, (1,), 1, 1, LogitsWanted.LAST)]
    return all(choose_graph(session, task, rows) is None for task in Task)


def has_fixed_rows(session: Session) -> bool:
    return any(g.profile.row_binding is RowBinding.FIXED for g in session.graphs.values())


def mate_prompt(case: BoardCase, lane: int) -> Tokens:
    return prompt(case.package, MATE_LENGTHS[lane % len(MATE_LENGTHS)], salt=lane + 10)


def arrange(hand: Hand, target: Line, mates: Sequence[Line], place: int) -> list[Line]:
    """Rows with the target at row `place`; fixed rows stand where their lanes are."""
    rows = [*mates[:place], target, *mates[place:]]
    return sorted(rows, key=lambda line: line.lane) if has_fixed_rows(hand.session) else rows


def check_alone_equals_batched(hand: Hand, case: BoardCase, places: Sequence[int]) -> None:
    """The target's logits in every lane of `places`, with as many mates as a graph has rows, against those it had
    alone."""
    ids = prompt(case.package, TARGET_LENGTH)
    lines = [hand.line(lane) for lane in range(hand.session.lanes)]
    widest = max(g.profile.batch for g in hand.session.graphs.values() if Task.DECODE in g.profile.tasks)
    alone = None
    for place in places:
        for line in lines:
            if line.lane in (place, 0) or line.length == 0 or line.lane in places:
                if line.length:
                    hand.release(line)
                hand.prefill(line, ids if line.lane == place else mate_prompt(case, line.lane))
        target = lines[place]
        others = [line for line in lines if line is not target]
        if alone is None:
            alone = bits(hand.again([target], [7])[0])
        for count in range(min(widest, len(lines))):
            rows = arrange(hand, target, others[:count], min(place, count))
            logits = hand.again(rows, [7 if line is target else 11 + line.lane for line in rows])
            assert bits(logits[rows.index(target)]) == alone, f"{count} mates, lane {place}"


@pytest.mark.slow
def test_decode_with_any_mates_in_any_position_equals_alone(board: Board, hand: Hand, case: BoardCase) -> None:
    if not proves(board, "batch_lanes"):
        assert refuses_two_rows(hand.session)
        return
    check_alone_equals_batched(hand, case, range(hand.session.lanes))


def check_chunks(hand: Hand, case: BoardCase, length: int, pieces: Sequence[int]) -> None:
    """Prompt of `length` cut into `pieces` (the rest in one): logits of it and of the next token."""
    line, ids = hand.line(0), prompt(case.package, length)
    whole = hand.prefill(line, ids)
    after = hand.decode([line], [9])[0]
    hand.release(line)
    assert bits(hand.prefill(line, ids, pieces)) == bits(whole)
    assert bits(hand.decode([line], [9])[0]) == bits(after)
    hand.release(line)


def cut(length: int, size: int, least: int) -> list[int]:
    """Pieces of `size`; a rest below `least` borrows from the piece before it."""
    pieces = [size] * (length // size) + ([length % size] if length % size else [])
    if len(pieces) > 1 and pieces[-1] < least:
        lent = least - pieces[-1]
        pieces[-2:] = [pieces[-2] - lent, least]
    return pieces


@pytest.mark.parametrize("size", [4, 16, 32])
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 64, 65])
def test_prefill_in_chunks_equals_whole(board: Board, hand: Hand, case: BoardCase, length: int, size: int) -> None:
    if not proves(board, "incremental_prefill"):
        line = hand.line(0)
        hand.prefill(line, prompt(case.package, 8))
        spec, tokens = hand.describe([Turn(line, prompt(case.package, 8))])
        buffers = hand.buffers(spec.graph)
        fault = encode(hand.session.graphs[spec.graph], spec, tokens, buffers)
        assert fault is not None or hand.session.submit(spec, buffers)[0] != 0
        return
    least = max(graph.profile.min_chunk_tokens for graph in hand.session.graphs.values())
    check_chunks(hand, case, length, cut(length, size, least))


def test_prefill_beside_decodes_equals_alone(board: Board, hand: Hand, case: BoardCase) -> None:
    first, second = hand.line(0), hand.line(1 % hand.session.lanes)
    ids, chunk = prompt(case.package, 19), prompt(case.package, 40, salt=3)
    if not proves(board, "mixed_batch"):
        assert all(Task.MIXED not in graph.profile.tasks for graph in hand.session.graphs.values())
        hand.prefill(first, ids)
        spec, tokens = hand.describe([Turn(first, [5])])
        flawed = replace(spec, task=Task.MIXED)
        buffers = hand.buffers(spec.graph)
        assert encode(hand.session.graphs[spec.graph], flawed, tokens, buffers) is None
        assert hand.session.submit(flawed, buffers)[0] != 0
        return
    hand.prefill(first, ids)
    decoded = hand.again([first], [5])[0]
    prefilled = hand.prefill(second, chunk)
    hand.release(second)
    for turns in ([Turn(first, [5]), Turn(second, chunk)], [Turn(second, chunk), Turn(first, [5])]):
        rows = dict(zip((turn.line.lane for turn in turns), hand.step(turns), strict=True))
        assert rows[0] is not None
        assert rows[1] is not None
        assert bits(rows[0]) == bits(decoded)
        assert bits(rows[1]) == bits(prefilled)
        first.length -= 1
        hand.release(second)


@pytest.mark.slow
def test_two_sequences_alternating_for_a_thousand_tokens_equal_alone(hand: Hand, case: BoardCase) -> None:
    share = min(1000, case.package.context - 40)
    for round_number in range(-(-1000 // share)):
        prompts = [prompt(case.package, length, salt=round_number) for length in (12, 35)]
        alone = []
        for ids in prompts:
            line = hand.line(0)
            alone.append(hand.greedy(line, ids, share))
            hand.release(line)
        if hand.session.lanes == 1:  # only one sequence can hold KV, and the mirror says so
            assert hand.session.kv.apply(1, (1,), 1) != 0
            assert hand.greedy(hand.line(0), prompts[0], share) == alone[0]
            hand.release(hand.line(0))
            continue
        lines = [hand.line(0), hand.line(1)]
        texts = [[best(hand.prefill(line, ids))] for line, ids in zip(lines, prompts, strict=True)]
        for _ in range(share - 1):
            for line, text in zip(lines, texts, strict=True):
                text.append(best(hand.decode([line], text[-1:])[0]))
        assert texts == alone
        for line in lines:
            hand.release(line)


def test_decode_through_a_full_context_ends_at_its_last_position(hand: Hand, case: BoardCase) -> None:
    line, context = hand.line(0), case.package.context
    hand.prefill(line, prompt(case.package, context - 1))
    hand.decode([line], [4])
    assert line.length == context
    units = (*line.units, hand.session.kv_units - 1)
    assert hand.session.kv.apply(line.lane, units[: len(line.units)], context + 1) != 0


# Mutants: each is planted between the true job and the board, and must change what comes out or be refused.


def swap_tokens(spec: JobSpec, tokens: list[Tokens]) -> Sent:
    return spec, [tokens[1], tokens[0], *tokens[2:]]


def swap_positions(spec: JobSpec, tokens: list[Tokens]) -> Sent:
    first, second, *rest = spec.rows
    swapped = (
        replace(first, first_position=second.first_position),
        replace(second, first_position=first.first_position),
    )
    return replace(spec, rows=(*swapped, *rest)), tokens


def swap_units(spec: JobSpec, tokens: list[Tokens]) -> Sent:
    """Each row runs on the other's KV: its units, and where rows are lanes its lane."""
    first, second, *rest = spec.rows
    swapped = (
        replace(first, lane=second.lane, kv_units=second.kv_units),
        replace(second, lane=first.lane, kv_units=first.kv_units),
    )
    return replace(spec, rows=(*swapped, *rest)), tokens


@pytest.mark.parametrize("change", [swap_tokens, swap_positions, swap_units])
def test_mutant_that_swaps_two_rows_changes_both_outputs(
    board: Board, hand: Hand, case: BoardCase, change: Change
) -> None:
    if not proves(board, "batch_lanes"):
        assert refuses_two_rows(hand.session)
        return
    lines = [hand.line(0), hand.line(1)]
    # Equal numbers of units, so that the swapped job is still one the board accepts.
    for line, length in zip(lines, (14, 18), strict=True):
        hand.prefill(line, prompt(case.package, length, salt=length))
    true = [bits(row) for row in hand.again(lines, [3, 8])]
    assert [bits(row) for row in hand.again(lines, [3, 8])] == true
    mutated = [bits(row) for row in hand.again(lines, [3, 8], change)]
    assert all(given != wanted for given, wanted in zip(mutated, true, strict=True))


def test_mutant_without_the_mirror_check_corrupts_what_the_check_protects(hand: Hand, case: BoardCase) -> None:
    owner = hand.line(0)
    hand.prefill(owner, prompt(case.package, 14))
    true = bits(hand.again([owner], [3])[0])
    thief_lane = 1 if hand.session.lanes > 1 else hand.session.lanes
    assert hand.session.kv.apply(thief_lane, owner.units, 10) != 0
    # The check dropped: a second sequence is written over the first one's units.
    thief = Line(owner.lane, owner.units)
    hand.prefill(thief, prompt(case.package, 10, salt=9))
    assert bits(hand.again([owner], [3])[0]) != true
