"""The liveness phase of an era: the faults have healed, and everything must come right by itself.

Owns: from when on nothing may be lost any more, what an end says about that, and how long a person may still help. Must
not know: why something is wrong. Life: `heal` when the faults stop; asked at every end of a request, and at the end of
the phase.
"""

from __future__ import annotations

from collections.abc import Sequence

from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.simulate.oracle import ClientRequest
from calserve.simulate.plan import SECOND

# Ends that a server which is well may give; a missed deadline only to those who asked for a short one.
_REGULAR = (
    "stop",
    "length",
    "cancelled",
    "refused too_long",
    "refused unknown_model",
    "refused queue_full",
    "refused queue_tokens_full",
    "refused tenant_queue_full",
    "refused invalid",
)
_SHORT_DEADLINE_NS = 5 * SECOND


def settle_ns(configure_ns: int, reset_ns: int) -> int:
    """How long a recovery that was under way when the faults healed may take: a few attempts, and a new process. Half
    of it is the operator's, who looks four times, 4 s apart, before the process is started again."""
    return 3 * (configure_ns + reset_ns) + 30 * SECOND


class Liveness:
    """Invariants: before `heal` nothing is judged."""

    def __init__(self) -> None:
        self._healed_ns: int | None = None
        self._settle_ns = 0

    def begin_era(self) -> None:
        self._healed_ns = None

    def heal(self, now_ns: int, settle_ns: int) -> None:
        self._healed_ns, self._settle_ns = now_ns, settle_ns

    def may_help(self, now_ns: int) -> bool:
        """Whether an operator may still put right what the faults left: a session that Failed stays so by itself."""
        return self._healed_ns is None or now_ns < self._healed_ns + self._settle_ns // 2

    def is_judged(self, at_ns: int) -> bool:
        """Whether everything must be right at that time."""
        return self._healed_ns is not None and at_ns > self._healed_ns + self._settle_ns

    def complaint_of(self, request: ClientRequest, end: str) -> str:
        """What is wrong about how a request ended; empty when nothing is."""
        if not self.is_judged(request.submitted_ns) or end.startswith(_REGULAR):
            return ""
        is_short = request.deadline_ns - request.submitted_ns < _SHORT_DEADLINE_NS
        if end.startswith("deadline") and is_short:
            return ""
        return f"liveness: {request.name} ended with {end!r} after every fault had healed"

    def complaint_about(self, views: Sequence[SessionView], now_ns: int) -> str:
        """What is wrong about the sessions at the end of the phase."""
        if not self.is_judged(now_ns):
            return ""
        wrong = [view for view in views if view.state is not GenerationState.READY]
        if not views:
            return "liveness: no server was up at the end of the healed phase"
        if wrong:
            return f"liveness: session {wrong[0].session} is {wrong[0].state.value} at the end of the healed phase"
        return ""
