"""Resets: what is proven destroys what it declares and leaves a board to configure again; the rest is refused."""

from __future__ import annotations

import pytest
from board_case import BoardCase
from harness import Hand, Turn, bits, configure, prompt, proves

from calserve.core.commands import ResetScope
from calserve.core.job import Bank
from calserve.runtime.contract import Board, StatusKind


@pytest.mark.parametrize(
    ("scope", "capability"),
    [(ResetScope.SESSION, "session_reset"), (ResetScope.CHIP, "chip_reset")],
)
def test_reset_in_a_scope_follows_what_is_proven(
    board: Board, case: BoardCase, hand: Hand, scope: ResetScope, capability: str
) -> None:
    ids = prompt(case.package, 23)
    before = bits(hand.prefill(hand.line(0), ids))
    code = board.reset(scope, "main")
    if not proves(board, capability):
        assert code == 27
        hand.release(hand.line(0))
        assert bits(hand.prefill(hand.line(0), ids)) == before
        return
    assert code == 0
    assert hand.session.allocate(next(iter(hand.session.graphs)), Bank.PING) != (0, None)
    again = Hand(configure(board, case.package, "main", 2), generation=2)
    assert bits(again.prefill(again.line(0), ids)) == before
    assert any(board.telemetry(chip.chip).resets != 0 for chip in board.describe().chips)


def test_reset_with_a_job_in_flight_ends_it_under_its_old_name(board: Board, case: BoardCase, hand: Hand) -> None:
    length = min(1000, case.package.context - 1)
    flying = hand.fly(*hand.describe([Turn(hand.line(0), prompt(case.package, length))]))
    if not proves(board, "session_reset"):
        assert board.reset(ResetScope.SESSION, "main") == 27
        hand.land(flying)
        return
    assert board.reset(ResetScope.SESSION, "main") == 0
    code, status = hand.session.wait(flying.ticket, 10_000_000_000)
    # It may have ended well before the reset reached it; either way it has ended, and says whose it was.
    assert code != 13
    assert status is None or status.ticket == flying.ticket
    assert status is None or (code == 0) == (status.status is StatusKind.DONE)
    again = Hand(configure(board, case.package, "main", 2), generation=2)
    again.prefill(again.line(0), prompt(case.package, 5))
    assert board.counters().left == 0


def test_reset_of_a_session_that_does_not_exist_is_refused(board: Board, hand: Hand, case: BoardCase) -> None:
    assert board.reset(ResetScope.SESSION, "nobody") != 0
    hand.prefill(hand.line(0), prompt(case.package, 5))


def test_submit_of_an_old_generation_after_a_reset_is_refused(board: Board, hand: Hand, case: BoardCase) -> None:
    spec, tokens = hand.describe([Turn(hand.line(0), prompt(case.package, 6))])
    hand.land(hand.fly(spec, tokens))
    if not proves(board, "session_reset"):
        assert board.reset(ResetScope.SESSION, "main") == 27
        return
    assert board.reset(ResetScope.SESSION, "main") == 0
    again = Hand(configure(board, case.package, "main", 2), generation=2)
    assert again.session.submit(spec, hand.buffers(spec.graph))[0] != 0
    assert again.session.submit(spec, again.buffers(spec.graph))[0] != 0
