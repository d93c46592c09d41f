"""Who may run when: banks, chips and engines of a board, as arithmetic on times.

Owns: which (chip, bank) slots are taken and when each chip's H2D, compute and D2H engines are free. Must not
know: what jobs compute, faults, the clock. A job holds its slots from the start of H2D to the end of D2H; its
three phases each need the matching engine of every chip it runs on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from calserve.core.job import Bank
from calserve.runtime.contract import TraceSpan
from calserve.runtime.sim.job import Job, Slot
from calserve.runtime.sim.profile import SimProfile

TRACE_SPANS = 1 << 16
PHASES = ("h2d", "compute", "d2h")


class Timeline:
    """Invariants: a slot has at most one job; an engine's phases never overlap on one chip."""

    def __init__(self, profile: SimProfile) -> None:
        self._profile = profile
        self._taken: set[Slot] = set()
        self._free_ns = {phase: [0] * profile.chips for phase in PHASES}
        self._spans: deque[tuple[int, int, str, int, int]] = deque(maxlen=TRACE_SPANS)

    def choose_slots(self, job: Job, blocked: set[Slot]) -> tuple[Slot, ...] | None:
        """Free slots for `job`, or None, and then what it waits for is added to `blocked`: nobody overtakes."""
        banks = (Bank.PING, Bank.PONG) if job.bank is Bank.AUTO else (job.bank,)
        for bank in banks:
            wanted = self._slots(job.chips, bank)
            if not any(slot in self._taken or slot in blocked for slot in wanted):
                return wanted
        for bank in banks:
            blocked.update(self._slots(job.chips, bank))
        return None

    def take(self, job: Job, slots: tuple[Slot, ...]) -> None:
        job.slots = slots
        self._taken.update(slots)

    def give_back(self, job: Job) -> None:
        self._taken.difference_update(job.slots)
        job.slots = ()

    def run(self, job: Job, phase: str, earliest_ns: int, duration_ns: int) -> tuple[int, int]:
        """Begin and end of a phase that may start at `earliest_ns`; the engines are taken until its end."""
        free = self._free_ns[phase]
        begin = max(earliest_ns, *(free[chip] for chip in job.chips))
        end = begin + duration_ns
        for chip in job.chips:
            free[chip] = end
        return begin, end

    def record(self, job: Job, phase: str, begin_ns: int, end_ns: int) -> None:
        for chip in job.chips:
            self._spans.append((chip, job.ticket.job, phase, begin_ns, end_ns))

    def stop(self, chips: Iterable[int], now_ns: int) -> None:
        """A reset: the engines of these chips are free at once."""
        for free in self._free_ns.values():
            for chip in chips:
                free[chip] = now_ns

    def spans(self, since_ns: int) -> tuple[TraceSpan, ...]:
        """Phases that ended after `since_ns`, at most the last 65,536."""
        return tuple(TraceSpan(*span) for span in self._spans if span[4] > since_ns)

    def _slots(self, chips: tuple[int, ...], bank: Bank) -> tuple[Slot, ...]:
        bank = bank if self._profile.banks_overlap else Bank.PING
        return tuple((chip, bank) for chip in (chips if self._profile.chips_overlap else (0,)))
