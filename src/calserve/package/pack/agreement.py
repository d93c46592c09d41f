"""How close a packed graph is to the source's own float16 weights in exact numerics.

Owns the figures and the bounds below which a pack is refused. Must not know how either graph was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calserve.package.fault import PackageError
from calserve.package.pack.loop import Logits

TOP = 5

# (top-1, mean cosine) a pack must reach. Measured top-1 against the reference is 1.000, 0.977, 0.967 and 0.958, in the
# order below; each bound leaves room for another processor and another text, and still refuses what is really broken:
# a 4-bit reader that rounds zero points had 0.78. Float16 weights in exact numerics differ from their source only by
# paging.
BOUNDS: dict[tuple[str, str], tuple[float, float]] = {
    ("fp16", "exact"): (0.99, 0.9999),
    ("fp16", "fast"): (0.95, 0.995),
    ("int8", "exact"): (0.92, 0.99),
    ("int8", "fast"): (0.90, 0.99),
    ("int4", "exact"): (0.70, 0.94),
    ("int4", "fast"): (0.70, 0.94),
    ("given", "exact"): (0.90, 0.99),
    ("given", "fast"): (0.90, 0.99),
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


def check_agreement(figures: Agreement, weights: str, numerics: str) -> None:
    """Raise PackageError when `figures` are below the bound for this kind of package."""
    top1, cosine = BOUNDS[(weights, numerics)]
    if figures.top1 < top1:
        raise PackageError(
            "agreement",
            f"The packed graph agrees with its source on {figures.top1:.3f} of the tokens; {weights} {numerics} "
            f"needs {top1:.3f}.",
            top1,
            figures.top1,
        )
    if figures.cosine_mean < cosine:
        raise PackageError(
            "agreement",
            f"The packed graph's logits have a mean cosine of {figures.cosine_mean:.4f} with its source's; {weights} "
            f"{numerics} needs {cosine:.4f}.",
            cosine,
            figures.cosine_mean,
        )


def _best(logits: Logits) -> Any:
    return np.argpartition(logits, -TOP, axis=1)[:, -TOP:]
