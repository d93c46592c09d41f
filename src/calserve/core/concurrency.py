"""How many jobs a session may have in flight: the proven number, or one where two were in doubt.

Owns: the number allowed now, why it was lowered, and what it watches for (refusals in a row of time, step times of
jobs that had company against those that had none). Must not know: the jobs themselves, resets, the board.

Life: made with its session; `open` takes the number proven for a generation; `lower` brings it to one, for new jobs
only, and it stays there through recoveries until an operator loads a package anew (`renew`): the doubt is about this
board with this package, and a reset does not answer it (seed 002, section 14).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from calserve.core.outbox import Outbox

# transient refusals and overdue jobs within the window that lower it; ours
REFUSALS = 3
REFUSAL_WINDOW_NS = 60_000_000_000
# jobs a 99th percentile is taken of: the third largest, so one outlier or two do not decide; ours
WINDOW = 256
# alone jobs needed before their own 99th percentile is the measure; with fewer it is what warm-up measured
LEAST_ALONE = 64
# seed 003, section 13.3: with two in flight the 99th percentile of a step may be 5 % longer
ALLOWED_PERCENT = 105


class Doubt(Enum):
    """Why two jobs at once are no longer trusted. Each is counted (`downgrades_<doubt>`)."""

    CROSS_TALK = "cross_talk"  # a completion named another job or generation
    STATUS = "status"  # a job with company came back with a bad status, late or twice
    OUTPUT = "output"  # a job with company gave an output that cannot be
    COUNTERS = "counters"  # the board's own account does not close
    LATENCY = "latency"  # the 99th percentile of the step time grew
    REFUSALS = "refusals"  # busy or overdue again and again
    RECOVERY = "recovery"  # a recovery of uncertain outcome: a job never came back, a reset failed
    UNSUPPORTED = "unsupported"  # the board says it cannot


class Concurrency:
    """Invariants: 1 <= allowed <= proven; allowed is 1 while there is a reason."""

    __slots__ = ("_alone", "_ceiling", "_most", "_out", "_paired", "_refusals", "allowed", "reason")

    def __init__(self, outbox: Outbox, ceiling: int) -> None:
        """ceiling: what is configured, until a generation says what is proven."""
        self._out = outbox
        self._ceiling = self._most = ceiling
        self.allowed = 1
        self.reason = ""
        self._refusals: deque[int] = deque(maxlen=REFUSALS)
        self._alone: deque[int] = deque(maxlen=WINDOW)  # permille of the expected time
        self._paired: list[int] = []  # since the last verdict

    def open(self, proven: int) -> None:
        """A generation is Ready; step times of another one say nothing about it."""
        self._most = proven
        self.allowed = 1 if self.reason else proven
        self._refusals.clear()
        self._alone.clear()
        self._paired.clear()

    def renew(self) -> None:
        """An operator loads a package: what was doubted before was another loading of it."""
        self.reason = ""
        self._most = self._ceiling

    def lower(self, doubt: Doubt) -> None:
        """One job at a time from here, also where no generation was Ready yet. Those in flight are not touched."""
        if self.reason or self._most == 1:
            return
        self.allowed = 1
        self.reason = doubt.value
        self._out.count("downgrades_" + doubt.value)

    def note_refusal(self, now_ns: int) -> None:
        """The board was busy, or a job is overdue."""
        if self.allowed == 1:
            return
        self._refusals.append(now_ns)
        if len(self._refusals) == REFUSALS and now_ns - self._refusals[0] <= REFUSAL_WINDOW_NS:
            self.lower(Doubt.REFUSALS)

    def note_step(self, took_ns: int, expected_ns: int, *, had_company: bool) -> None:
        """A job came back good. After every `WINDOW` jobs with company there is a verdict over exactly those, so a
        regression that lasts is seen within twice as many."""
        if self.allowed == 1 or expected_ns <= 0:
            return
        permille = took_ns * 1000 // expected_ns
        if not had_company:
            self._alone.append(permille)
            return
        self._paired.append(permille)
        if len(self._paired) < WINDOW:
            return
        measure = p99(self._alone) if len(self._alone) >= LEAST_ALONE else 1000
        if p99(self._paired) * 100 > ALLOWED_PERCENT * measure:
            self.lower(Doubt.LATENCY)
        self._paired.clear()


def p99(values: deque[int] | list[int]) -> int:
    """The smallest value that at least 99 % of `values` (not empty) do not exceed."""
    ordered = sorted(values)
    return ordered[-(-99 * len(ordered) // 100) - 1]
