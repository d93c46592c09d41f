"""How much two jobs run at the same time, read from a board's trace. Pure arithmetic on spans.

Owns: the sweep over one chip's phases. Must not know: who ran the jobs, or why. A job is active while any of its
phases runs; time between its phases, when it only waits for an engine, is not work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calserve.core.job import Bank
from calserve.runtime.contract import TraceSpan


@dataclass(slots=True)
class ChipOverlap:
    """One chip's time, in ns, by bank: with a job of the bank at work, and of that with a second job at work too."""

    busy_ns: dict[Bank, int] = field(default_factory=dict)
    shared_ns: dict[Bank, int] = field(default_factory=dict)

    def share(self, bank: Bank) -> float:
        """0..1: how much of the bank's working time another job worked too."""
        busy = self.busy_ns.get(bank, 0)
        return self.shared_ns.get(bank, 0) / busy if busy else 0.0


def measure_overlap(spans: Iterable[TraceSpan], asked: Mapping[int, Bank]) -> dict[int, ChipOverlap]:
    """Overlap by chip, of the jobs in `asked` only.

    asked: the bank each job was submitted to. Where the trace names a bank, that one counts: with AUTO it is the
    board's choice.
    """
    chips: dict[int, list[tuple[int, int, int]]] = {}
    banks = dict(asked)
    for span in spans:
        if span.job not in asked or span.end_ns <= span.begin_ns:
            continue
        if span.bank is not Bank.AUTO:
            banks[span.job] = span.bank
        edges = chips.setdefault(span.chip, [])
        edges += ((span.begin_ns, 1, span.job), (span.end_ns, -1, span.job))
    return {chip: _sweep(edges, banks) for chip, edges in chips.items()}


def _sweep(edges: list[tuple[int, int, int]], banks: Mapping[int, Bank]) -> ChipOverlap:
    found = ChipOverlap()
    active: Counter[int] = Counter()
    before = 0
    for at, step, job in sorted(edges):
        if active and at > before:
            for bank in {banks[one] for one in active}:
                found.busy_ns[bank] = found.busy_ns.get(bank, 0) + at - before
                if len(active) > 1:
                    found.shared_ns[bank] = found.shared_ns.get(bank, 0) + at - before
        before = at
        active[job] += step
        if not active[job]:
            del active[job]
    return found
