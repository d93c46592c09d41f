"""How far the recovery of one session has come: what it asks of the supervisor, and what was tried already.

Owns: the wish (a rebuild, a reset), the lost job, the scope and the outcome of the last reset, and when the generation
was last rebuilt. Must not know: who may be reset when, budgets, other sessions.

A reset is never the first answer: where every job came back and the device is well, the generation is rebuilt, which is
a release and a configuration. A release that fails asks for a reset, a reset that fails for a wider one. What follows
where the same trouble comes again within the window is said by its class (`FaultRule.again`).

A lost job outranks all of it: from the moment one is known, every wish is for the reset that ends its writes.
"""

from __future__ import annotations

from enum import Enum

from calserve.core.commands import ResetScope
from calserve.core.faults import needs_reset
from calserve.core.outcomes import Failure


class Wish(Enum):
    """What only the supervisor may grant."""

    NOTHING = "nothing"
    FOLLOW = "follow"  # nothing is wrong with it: it stands still for a sibling's wide reset
    REBUILD = "rebuild"  # every job retired and the device is well: release and configure again
    RESET = "reset"  # every job retired: reset when the budget allows
    RESET_LOST = "reset_lost"  # a job never returned
    GIVE_UP = "give_up"  # the board does not answer any more: nothing in this process can help


class Recovery:
    """Called by its session and the supervisor. Invariants: a wish stands only while nothing was granted for it."""

    __slots__ = (
        "_granted",
        "_rebuilt_ns",
        "condemned",
        "has_failed_release",
        "has_failed_reset",
        "holds_unknown",
        "lost",
        "scope",
        "was_ready",
        "wish",
    )

    def __init__(self) -> None:
        self.wish = Wish.NOTHING
        self._granted = Wish.NOTHING  # what the reset that is out answers
        self.scope: ResetScope | None = None  # of the reset that is out, or that failed last
        self.has_failed_reset = False
        self.has_failed_release = False
        self.lost: Failure | None = None  # the board never said that a job is over: it may write on
        self.condemned: Failure | None = None  # why it must not come back once nothing of it is written any more
        # a configuration broke off or contradicted itself: what the board holds under the name only a reset ends, and
        # that stands whatever package comes next
        self.holds_unknown = False
        self.was_ready = False  # since its package was loaded
        self._rebuilt_ns: int | None = None

    def renew(self) -> None:
        """Another package: nothing was tried with it."""
        self.was_ready = self.has_failed_reset = self.has_failed_release = False
        self._rebuilt_ns = self.condemned = None

    def ask(self, cause: Failure | None) -> None:
        """Nothing is in flight any more: what `cause` asks for."""
        self.want(Wish.RESET if cause is None or needs_reset(cause.fault) else Wish.REBUILD)

    def want(self, wish: Wish) -> None:
        """It is `wish`, or more where a job was lost."""
        self.wish = wish if self.lost is None else Wish.RESET_LOST

    def was_rebuilt(self, now_ns: int, window_ns: int) -> bool:
        """Whether a rebuild without a reset was tried within the window."""
        return self._rebuilt_ns is not None and now_ns - self._rebuilt_ns < window_ns

    def rebuild_granted(self, now_ns: int) -> None:
        if self.wish is not Wish.FOLLOW:  # it had no trouble of its own that could come again
            self._rebuilt_ns = now_ns
        self.wish = Wish.NOTHING

    def reset_granted(self, scope: ResetScope) -> None:
        self._granted, self.wish = self.wish, Wish.NOTHING
        self.scope = scope

    def reset_failed(self) -> None:
        """What it was to answer is wanted still."""
        self.has_failed_reset = True
        self.wish = self._granted

    def reset_done(self) -> None:
        self.wish = Wish.NOTHING
        self.lost = None
        self.has_failed_reset = self.holds_unknown = False
