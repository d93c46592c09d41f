"""A board as an earlier process left it.

Owns: what is done about jobs that are still on it before the first session is configured. Must not know: sessions,
jobs. A process that ended does not end what it had submitted: such a job still writes KV and, for all we know, lanes
that a new session would use. The board's own counters tell; a reset that is proven to stop the writes ends it, and
without one the board is only used once it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.core.commands import ResetScope
from calserve.core.outcomes import Failure
from calserve.runtime.contract import Board, Evidence
from calserve.runtime.errors import CalCode, failure


@dataclass(frozen=True, slots=True)
class Opening:
    """told: what was found and done, "" for an empty board. failure: why nothing may be configured yet."""

    told: str = ""
    failure: Failure | None = None


def clear_board(board: Board) -> Opening:
    """Make sure that nothing of another process writes any more. Only while no session of ours is on the board."""
    left = board.counters().left
    if not left:
        return Opening()
    is_proven = board.describe().capabilities.get("chip_reset") is Evidence.C0
    scope = ResetScope.CHIP if is_proven else ResetScope.CONFIGURATION
    code = board.reset(scope, None)
    told = f"{left} jobs of an earlier process were on the board; a {scope.value} reset gave code {code}"
    if code == CalCode.SUCCESS and (is_proven or not board.counters().left):
        return Opening(told)
    # Transient for `core`: it tries again after a back-off, and the job may have ended by then.
    busy = failure("configure", code or CalCode.DEVICE_BUSY, "jobs of an earlier process are still on the board")
    return Opening(told, busy)
