"""How much two workloads gain by running at once, and how sure that is. Pure arithmetic on times and spans.

Owns: the ratio of seed 004, section 13.2, with its interval, and the compute two sets of jobs share in a trace. Must
not know: what ran, or on which board.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from calserve.runtime.contract import TraceSpan

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
ROUNDS_MAX = len(STUDENT_T) + 1


@dataclass(frozen=True, slots=True)
class OverlapRatio:
    """1 - joint / serial over the rounds: 0 no gain, 0.5 two equal halves wholly at once.

    low: lower end of the 95 % interval of the mean; the mean itself where there was one round, which proves nothing.
    """

    mean: float
    low: float
    rounds: int

    @property
    def is_proven(self) -> bool:
        """Above 0, with an interval that does not reach it."""
        return self.low > 0

    def words(self) -> str:
        return f"overlap ratio {self.mean:.3f}, at least {self.low:.3f} in 95 % ({self.rounds} rounds)"


def overlap_ratio(serial_ns: Sequence[int], joint_ns: Sequence[int]) -> OverlapRatio:
    """From the times of as many rounds (at most `ROUNDS_MAX`) of one after another, and of both at once."""
    ratios = [1 - joint / serial for serial, joint in zip(serial_ns, joint_ns, strict=True)]
    mean, rounds = statistics.fmean(ratios), len(ratios)
    if rounds == 1:
        return OverlapRatio(mean, mean, rounds)
    half = STUDENT_T[rounds - 2] * statistics.stdev(ratios) / rounds**0.5
    return OverlapRatio(mean, mean - half, rounds)


def shared_ns(spans: Iterable[TraceSpan], jobs: Sequence[Collection[int]]) -> int:
    """Time in which jobs of more than one of the sets computed, on whichever chips."""
    edges: list[tuple[int, int, int]] = []
    for span in spans:
        owner = next((at for at, own in enumerate(jobs) if span.job in own), None)
        if owner is not None and span.phase == "compute" and span.end_ns > span.begin_ns:
            edges += ((span.begin_ns, 1, owner), (span.end_ns, -1, owner))
    active, shared, before = [0] * len(jobs), 0, 0
    for at, step, owner in sorted(edges):
        if sum(count > 0 for count in active) > 1:
            shared += at - before
        before = at
        active[owner] += step
    return shared
