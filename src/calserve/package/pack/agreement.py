"""How close a packed graph is to the source's own float16 weights in exact numerics.

Owns the figures and the bounds beyond which a pack is refused. Must not know how either graph was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calserve.package.fault import PackageError
from calserve.package.pack.loop import Logits

TOP = 5


class Bounds(NamedTuple):
    """What a pack must reach: at least top1, top5_overlap, cosine_min and cosine_mean; at most abs_max (in logits) and
    rel_max."""

    top1: float
    top5_overlap: float
    abs_max: float
    rel_max: float
    cosine_min: float
    cosine_mean: float


# Measured on SmolLM2-135M, in the order of a Bounds:
#   fp16 exact  1.000 0.999  0.02 0.0008  1.000 1.0000
#   fp16 fast   0.969 0.978  1.53 0.073   0.985 0.9998
#   int8 exact  0.963 0.962  1.74 0.080   0.989 0.9990
#   int8 fast   0.960 0.951  2.00 0.091   0.983 0.9988
#   int4 exact  0.819 0.809 11.07 0.440   0.603 0.9739
#   int4 fast   0.822 0.803 11.93 0.456   0.583 0.9727
# Each bound leaves room for another model, text and processor, and still refuses what is really broken: a 4-bit reader
# that rounds zero points had 0.745 0.747 18.86 0.939 -0.069 0.8822. abs_max is in logits, and those of other
# models are up to twice as large, which its room is for. Float16 weights in exact numerics differ from their source
# only by paging.
BOUNDS: dict[tuple[str, str], Bounds] = {
    # a tiny random model against transformers, another engine: 0.043 relative, smallest cosine 0.9989
    ("fp16", "exact"): Bounds(0.99, 0.95, 0.5, 0.08, 0.995, 0.9995),
    ("fp16", "fast"): Bounds(0.95, 0.93, 4.0, 0.20, 0.95, 0.995),
    ("int8", "exact"): Bounds(0.92, 0.88, 6.0, 0.30, 0.90, 0.99),
    ("int8", "fast"): Bounds(0.90, 0.88, 6.0, 0.30, 0.90, 0.99),
    ("int4", "exact"): Bounds(0.70, 0.65, 24.0, 0.80, 0.20, 0.94),
    ("int4", "fast"): Bounds(0.70, 0.65, 24.0, 0.80, 0.20, 0.94),
    ("given", "exact"): Bounds(0.90, 0.88, 6.0, 0.30, 0.90, 0.99),
    ("given", "fast"): Bounds(0.90, 0.88, 6.0, 0.30, 0.90, 0.99),
}
# Figure -> its words, the digits that are told, and whether it is a ceiling; in the order they are held.
_HELD = {
    "top1": ("top-1 agreement", 3, False),
    "top5_overlap": ("top-5 overlap", 3, False),
    "cosine_mean": ("mean cosine", 5, False),
    "cosine_min": ("smallest cosine", 5, False),
    "rel_max": ("max relative difference", 4, True),
    "abs_max": ("max absolute difference", 4, True),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over `tokens` positions: share with equal argmax, mean overlap of the five best, logit differences, cosines.

    rel_max: largest absolute difference over the largest absolute logit of the reference at that position.
    """

    tokens: int
    top1: float
    top5_overlap: float
    abs_max: float
    rel_max: float
    cosine_min: float
    cosine_mean: float

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Name and value of every figure, for a table."""
        return (
            ("positions compared", str(self.tokens)),
            ("top-1 agreement", f"{self.top1:.4f}"),
            ("top-5 overlap", f"{self.top5_overlap:.4f}"),
            ("max absolute difference", f"{self.abs_max:.4f}"),
            ("max relative difference", f"{self.rel_max:.4f}"),
            ("cosine, smallest", f"{self.cosine_min:.6f}"),
            ("cosine, mean", f"{self.cosine_mean:.6f}"),
        )

    def table(self) -> str:
        return "\n".join(f"  {name:<24} {value:>10}" for name, value in self.rows())


def agreement(packed: Logits, reference: Logits) -> Agreement:
    """Compare logits float32[tokens, vocab] of the same teacher-forced pass.

    Logits that are not finite agree with nothing: they give a top-1 of 0.
    """
    if packed.shape != reference.shape:
        raise ValueError(f"shapes differ: {packed.shape} and {reference.shape}")
    if not (np.isfinite(packed).all() and np.isfinite(reference).all()):
        return Agreement(len(packed), 0.0, 0.0, float("inf"), float("inf"), -1.0, -1.0)
    difference = np.abs(packed - reference).max(axis=1)
    scale = np.maximum(np.abs(reference).max(axis=1), 1e-6)
    a, b = packed.astype(np.float64), reference.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = np.einsum("ij,ij->i", a, b) / np.maximum(norms, 1e-12)
    overlap = [len(set(x) & set(y)) / TOP for x, y in zip(_best(packed), _best(reference), strict=True)]
    return Agreement(
        tokens=len(packed),
        top1=float((packed.argmax(axis=1) == reference.argmax(axis=1)).mean()),
        top5_overlap=float(np.mean(overlap)),
        abs_max=float(difference.max()),
        rel_max=float((difference / scale).max()),
        cosine_min=float(cosines.min()),
        cosine_mean=float(cosines.mean()),
    )


def check_agreement(figures: Agreement, weights: str, numerics: str, *, is_wide: bool = False) -> None:
    """Raise PackageError naming the first figure beyond its bound for this kind of package.

    is_wide: weights as given that take sixteen bits or more, which exact numerics must carry as they do fp16.
    """
    kind, bounds = f"{weights} {numerics}", BOUNDS[weights, numerics]
    if (weights, numerics) == ("given", "exact") and is_wide:
        kind, bounds = f"{kind} of sixteen bits or more", BOUNDS["fp16", "exact"]
    for name, (words, digits, is_ceiling) in _HELD.items():
        value, bound = getattr(figures, name), getattr(bounds, name)
        if not (value <= bound if is_ceiling else value >= bound):
            raise PackageError(
                "agreement",
                f"The packed graph's {words} with its source is {value:.{digits}f}; {kind} needs at "
                f"{'most' if is_ceiling else 'least'} {bound:.{digits}f}.",
                bound,
                value,
            )


def _best(logits: Logits) -> Any:
    return np.argpartition(logits, -TOP, axis=1)[:, -TOP:]
