"""A histogram that one thread writes and another may read.

Owns counts and a sum. Must not know what is measured. prometheus-client's own takes a lock and several Python calls
per value, which at sixteen rows a step would cost the engine thread more than the step's decisions do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Invariants: one writer. A reader may see a value in the counts that is not in the sum yet, and no worse."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: rising upper bounds, inclusive; one more bucket takes the rest."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: (upper bound, values at or below it)."""
        running, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), tuple(self.counts), strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(running)))
        return buckets
