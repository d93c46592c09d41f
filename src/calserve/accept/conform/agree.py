"""When two results are the same result: bit for bit where numerics are exact, within a bound where they are not.

Owns: the bounds, and the worst that was seen. Must not know: where the logits come from. Life: one a proof, asked for
every pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calserve.accept.conform.hand import Logits, best
from calserve.accept.evidence import Figure

# Of fast numerics. Measured with the default int8 package: at most 0.053 between two ways of computing a sequence (who
# shares the job, how the prompt is cut), 0.74 and more between two sequences, 0.2 to 1.1 for a wrong first token. One
# wrong token deep in a long prompt moves less (0.05): only an exact package can show that.
FAST_DISTANCE_MAX = 0.10
# Of two graphs with exact numerics, prefill and decode: at most 0.0001 was measured.
EXACT_DISTANCE_MAX = 0.005


@dataclass(slots=True)
class Agreement:
    """distance_max: 0 asks for equal bits. tolerance: in logits; a best token that led by less may be another.

    first: the sentence of the first pair that did not agree, "" while all did.
    """

    distance_max: float
    tolerance: float
    compared: int = 0
    differing: int = 0
    max_abs: float = 0.0
    distance: float = 0.0
    first: str = ""

    @property
    def is_exact(self) -> bool:
        return self.distance_max == 0

    def check(self, what: str, expected: Logits, seen: Logits) -> bool:
        """Whether they agree. what: names the pair, for people."""
        self.compared += 1
        gap, far = float(np.abs(expected - seen).max()), distance(expected, seen)
        self.max_abs, self.distance = max(self.max_abs, gap), max(self.distance, far)
        wrong = self._wrong(expected, seen, gap, far)
        if wrong and not self.first:
            self.first = f"{what}: {wrong}"
        self.differing += bool(wrong)
        return not wrong

    def check_tokens(self, what: str, expected: list[int], seen: list[int]) -> bool:
        """Token by token; only where numerics are exact, as one near tie changes all that follows."""
        if not self.is_exact:
            return True
        self.compared += 1
        at = next((i for i, pair in enumerate(zip(expected, seen, strict=True)) if pair[0] != pair[1]), None)
        if at is None:
            return True
        self.differing += 1
        self.first = self.first or f"{what}: token {at} is {seen[at]}, not {expected[at]}"
        return False

    @property
    def bound(self) -> str:
        if self.is_exact:
            return "equal bits"
        lead = f"the best token the same where it led by {self.tolerance:g} or more"
        return f"distance at most {self.distance_max:g} of the logits' own spread, {lead}"

    def figures(self) -> dict[str, Figure]:
        return {
            "compared": self.compared,
            "differing": self.differing,
            "max_abs": round(self.max_abs, 6),
            "distance": round(self.distance, 6),
            "bound": self.bound,
        }

    def _wrong(self, expected: Logits, seen: Logits, gap: float, far: float) -> str:
        if self.is_exact:
            return f"logits differ by up to {gap:g}" if expected.tobytes() != seen.tobytes() else ""
        if far > self.distance_max:
            return f"distance {far:.3f}"
        top = np.partition(expected, -2)[-2:]
        lead = float(top[1] - top[0])
        if best(expected) != best(seen) and lead >= self.tolerance:
            return f"best token {best(seen)}, not {best(expected)}, which led by {lead:.3f}"
        return ""


def distance(expected: Logits, seen: Logits) -> float:
    """|seen - expected| over |expected - its mean|: what all logits share says nothing about the sequence."""
    spread = float(np.linalg.norm(expected - expected.mean()))
    return float(np.linalg.norm(seen - expected)) / spread if spread else float(not np.array_equal(expected, seen))
