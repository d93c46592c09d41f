"""The board's job counters against our own account.

Owns: when they are compared. Must not know: jobs. Seed 000, section 14: after a drain nothing is pending or left. The
moments at which nothing is in flight are told by the caller (see `EngineSteps`): when a session's last job came home,
which a busy board does hundreds of times a second, so not more often than `AUDIT_EVERY_NS`; and before a session is
released or reset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.runtime.contract import Board

AUDIT_EVERY_NS = 5_000_000_000


@dataclass(slots=True)
class BoardAudit:
    """On the engine thread. Without a board nothing is ever due.

    told: by session, its generation and what was last wrong in it.
    """

    board: Board | None = None
    last_ns: int | None = None
    told: dict[str, tuple[int, str]] = field(default_factory=dict)

    def is_due(self, now_ns: int) -> bool:
        return self.board is not None and (self.last_ns is None or now_ns - self.last_ns >= AUDIT_EVERY_NS)

    def news(self, session: str, generation: int, now_ns: int) -> str:
        """What does not add up, where this was not said of the generation the last time: said once, it is known."""
        wrong = self.complaint(now_ns)
        before, self.told[session] = self.told.get(session), (generation, wrong)
        return "" if before == (generation, wrong) else wrong

    def complaint(self, now_ns: int) -> str:
        """What does not add up while nothing is in flight; empty when all does, or when the board says it is ill."""
        if self.board is None:
            return ""
        self.last_ns = now_ns
        counters = self.board.counters()
        if (counters.pending == 0 and counters.left == 0) or not self.board.health().ok:
            return ""
        return f"nothing is in flight, and the board counts {counters.pending} pending and {counters.left} left"
