"""Who may run when: banks, chips and engines of a board, as arithmetic on times.

Owns: which (chip, bank) slots are taken and when each chip's H2D, compute and D2H engines are free. Must not
know: what jobs compute, faults, the clock. A job holds its slots from the start of H2D to the end of D2H; its
three phases each need the matching engine of every chip it runs on. Traffic between chips is part of compute: the
CalCores of both wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from calserve.core.job import Bank
from calserve.runtime.contract import Ticket, TraceSpan
from calserve.runtime.sim.job import Job, Slot
from calserve.runtime.sim.profile import SimProfile

TRACE_PHASES = 1 << 16
PHASES = ("h2d", "compute", "d2h")
Phase = tuple[tuple[int, ...], Ticket, str, int, int, Bank]


class Timeline:
    """Invariants: a slot has at most one job; an engine's phases never overlap on one chip."""

    def __init__(self, profile: SimProfile) -> None:
        self._profile = profile
        self._taken: set[Slot] = set()
        self._free_ns = {phase: [0] * profile.chips for phase in PHASES}
        self._phases: deque[Phase] = deque(maxlen=TRACE_PHASES)

    def take(self, job: Job, blocked: set[Slot]) -> bool:
        """Give `job` a free bank; if there is none, what it waits for is added to `blocked`: nobody overtakes."""
        banks = (Bank.PING, Bank.PONG) if job.bank is Bank.AUTO else (job.bank,)
        for bank in banks:
            wanted = self._slots(job.chips, bank)
            if not any(slot in self._taken or slot in blocked for slot in wanted):
                job.slots, job.used_bank = wanted, bank
                self._taken.update(wanted)
                return True
        for bank in banks:
            blocked.update(self._slots(job.chips, bank))
        return False

    def give_back(self, job: Job) -> None:
        self._taken.difference_update(job.slots)
        job.slots = ()

    def run(self, job: Job, phase: str, earliest_ns: int, duration_ns: int) -> tuple[int, int]:
        """Begin and end of a phase that may start at `earliest_ns`; the engines are taken until its end."""
        free, chips = self._free_ns[phase], self._engines(job.chips)
        begin = max(earliest_ns, *(free[chip] for chip in chips))
        end = begin + duration_ns
        for chip in chips:
            free[chip] = end
        return begin, end

    def record(self, job: Job, phase: str, begin_ns: int, end_ns: int) -> None:
        self._phases.append((job.chips, job.ticket, phase, begin_ns, end_ns, job.used_bank))

    def stop(self, chips: Iterable[int], now_ns: int) -> None:
        """A reset: the engines of these chips are free at once."""
        for free in self._free_ns.values():
            for chip in self._engines(tuple(chips)):
                free[chip] = now_ns

    def spans(self, since_ns: int) -> tuple[TraceSpan, ...]:
        """Phases that ended after `since_ns`, of at most the last 65,536: compute on every CalCore, others once a chip.

        Every CalCore of a chip works on every job (seed 004, section 2.2): no host can place one.
        """
        spans = []
        for chips, ticket, phase, begin, end, bank in self._phases:
            if end > since_ns:
                cores = range(self._profile.cores_per_chip) if phase == "compute" else (-1,)
                spans += [
                    TraceSpan(chip, ticket.job, phase, begin, end, core, bank, ticket.generation)
                    for chip in chips
                    for core in cores
                ]
        return tuple(spans)

    def _slots(self, chips: tuple[int, ...], bank: Bank) -> tuple[Slot, ...]:
        bank = bank if self._profile.banks_overlap else Bank.PING
        return tuple((chip, bank) for chip in self._engines(chips))

    def _engines(self, chips: tuple[int, ...]) -> tuple[int, ...]:
        """Whose engines and banks a job on `chips` takes: where chips do not overlap they are the same for all."""
        return chips if self._profile.chips_overlap else (0,)
