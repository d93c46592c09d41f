"""Resets: how many there may be, and how wide the next one is.

Owns: the budget of the board and the ladder of scopes. Must not know: what a session does with the answer.

The ladder is session, chip, configuration: the smallest scope that is proven and enough comes first, and one that
failed is followed by the next wider one. The configuration needs no proof, for it is used only when nothing is on the
device, but no sibling survives it: it is a step up only where no sibling is up, or where giving up would end the
process and the siblings with it. A reset of the whole board is not on the ladder: nothing proves what survives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from calserve.core.commands import ResetScope
from calserve.core.config import SchedulerConfig
from calserve.core.recovery import Wish
from calserve.core.session import Session
from calserve.core.states import GenerationState

LADDER = (ResetScope.SESSION, ResetScope.CHIP, ResetScope.CONFIGURATION)
_PROOF = {ResetScope.SESSION: "session_reset", ResetScope.CHIP: "chip_reset"}


def is_wide(scope: ResetScope | None) -> bool:
    """Whether it takes every session along. A chip is wide enough for one session: no two share one."""
    return scope is ResetScope.CONFIGURATION


class Budget:
    """At most `max_resets` in `reset_window_ns`, over every session of the board."""

    __slots__ = ("_config", "_times")

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._times: deque[int] = deque()

    def has_room(self, now_ns: int) -> bool:
        while self._times and self._times[0] <= now_ns - self._config.reset_window_ns:
            self._times.popleft()
        return len(self._times) < self._config.max_resets

    def spend(self, now_ns: int) -> None:
        self._times.append(now_ns)


def choose_scope(session: Session, siblings: Iterable[Session], config: SchedulerConfig) -> ResetScope | None:
    """The next scope of the ladder for this session, or None: there is nothing that is known to be enough.

    A session reset need not stop the writes of a job that never returned; only a chip reset is known to.
    """
    recovery = session.recovery
    steps: tuple[ResetScope, ...] = LADDER if recovery.wish is not Wish.RESET_LOST else (ResetScope.CHIP,)
    if recovery.has_failed_reset and recovery.scope is not None:
        steps = tuple(step for step in steps if LADDER.index(step) > LADDER.index(recovery.scope))
    for step in steps:
        proof = _PROOF.get(step)
        if proof is None:
            return step if _may_take_along(session, siblings, config) else None
        if proof in session.proven:
            return step
    return None


def _may_take_along(session: Session, siblings: Iterable[Session], config: SchedulerConfig) -> bool:
    """Whether a reset that no sibling survives is worth it."""
    if any(each.is_fenced or each.recovery.lost is not None for each in siblings):
        return False  # it frees memory of theirs that a lost job may still write
    if all(each is session or is_down(each) for each in siblings):
        return True
    recovery = session.recovery
    if recovery.has_failed_release or not recovery.was_ready:
        return False  # nobody waits for an unload, and a package that never served here must not cost those that do
    return config.restart_on_unknown_dma or not recovery.has_failed_reset


def is_down(session: Session) -> bool:
    """Nothing of it is on the device or on its way there."""
    is_at_rest = session.state in (GenerationState.UNLOADED, GenerationState.FAILED)
    return is_at_rest and not session.pending
