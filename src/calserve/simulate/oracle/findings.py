"""What the oracle found: the first few violations in words, all of them as a number.

Must not know: what any invariant means. Life: one list for a run, shared by every part of the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT = 50  # a broken run breaks everything after; the first ones tell why


@dataclass(frozen=True, slots=True)
class Violation:
    """invariant: its name in the design, "I4". sentence: names the request, lane, job and times it is about."""

    invariant: str
    at_ns: int
    sentence: str


@dataclass(slots=True)
class Findings:
    """Invariants: `kept` holds the first of `count`."""

    kept: list[Violation] = field(default_factory=list)
    count: int = 0

    def add(self, invariant: str, at_ns: int, sentence: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Violation(invariant, at_ns, sentence))
