"""A board as an earlier process left it.

Owns: what is done about jobs that are still on it before the first session is configured. Must not know: sessions,
jobs. A process that ended does not end what it had submitted: such a job still writes KV and, for all we know, lanes
that a new session would use. The board's own counters tell. Most such jobs end by themselves in a moment, so the board
is given `WAIT_NS` first; then comes a reset, once in the life of this process, and after it the board is only used once
it is empty, or where the reset is proven to stop the writes. Waiting is `core`'s: busy is a transient failure, which it
tries again after a back-off.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.core.commands import ResetScope
from calserve.core.outcomes import BoardNote, Failure
from calserve.runtime.contract import Board, Code, Evidence
from calserve.runtime.errors import CalCode, failure

# How long jobs of an earlier process may end by themselves: a few steps of any graph, and well within the tries that
# `core` has for a transient failure (1.3 s by default).
WAIT_NS = 250_000_000


@dataclass(frozen=True, slots=True)
class Opening:
    """told: what was found and done, "" where nothing new was. before, after: around a reset. failure: why nothing may
    be configured yet."""

    told: str = ""
    before: BoardNote | None = None
    after: BoardNote | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class BoardOpening:
    """Called on the lifecycle thread, while no session of ours is on the board, until `is_clear`.

    Invariants: resets the board at most once; `is_clear` never goes back.
    """

    board: Board
    is_clear: bool = False
    found_ns: int | None = None  # when jobs were first seen
    reset_code: Code | None = None  # what the one reset gave

    def look(self, now_ns: int) -> Opening:
        """Make sure that nothing of another process writes any more."""
        left = self.board.counters().left
        if not left:
            self.is_clear = True
            return Opening()
        if self.reset_code is not None:
            return Opening(failure=_busy(self.reset_code))
        if not self.board.health().ok:
            return self._reset(left)  # nothing ends by itself there
        if self.found_ns is None:
            self.found_ns = now_ns
            return Opening(f"{left} jobs of an earlier process are on the board", failure=_busy())
        if now_ns - self.found_ns < WAIT_NS:
            return Opening(failure=_busy())
        return self._reset(left)

    def _reset(self, left: int) -> Opening:
        is_proven = self.board.describe().capabilities.get("chip_reset") is Evidence.C0
        scope = ResetScope.CHIP if is_proven else ResetScope.CONFIGURATION
        before = note_of(self.board)
        self.reset_code = code = self.board.reset(scope, None)
        told = f"{left} jobs of an earlier process stayed on the board; a {scope.value} reset gave code {code}"
        self.is_clear = code == CalCode.SUCCESS and (is_proven or not self.board.counters().left)
        return Opening(told, before, note_of(self.board), None if self.is_clear else _busy(code))


def _busy(code: Code = CalCode.SUCCESS) -> Failure:
    return failure("configure", code or CalCode.DEVICE_BUSY, "jobs of an earlier process are still on the board")


def note_of(board: Board) -> BoardNote:
    """How the board stands now, for the record of a reset."""
    health = board.health()
    return BoardNote(tuple(sorted(board.describe().versions.items())), health.ok, health.detail)
