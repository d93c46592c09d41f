"""The figures of an agreement, worked out by hand, and each bound."""

from __future__ import annotations

import numpy as np
import pytest

from calserve.package import PackageError
from calserve.package.pack import Agreement, agreement
from calserve.package.pack.agreement import check_agreement

REFERENCE = np.array([[6, 5, 4, 3, 2, 1, 0, 0], [0, 0, 1, 2, 3, 4, 5, 10]], np.float32)


def test_agreement_of_equal_logits_is_whole() -> None:
    figures = agreement(REFERENCE, REFERENCE)
    assert (figures.tokens, figures.top1, figures.top5_overlap) == (2, 1.0, 1.0)
    assert (figures.abs_max, figures.rel_max) == (0.0, 0.0)
    assert figures.cosine_min == pytest.approx(1.0)


def test_agreement_counts_by_hand() -> None:
    packed = REFERENCE.copy()
    packed[0] = [5, 6, 4, 3, 0, 1, 2, 0]  # another best; token 6 (2.0) replaces token 4 among the best five
    figures = agreement(packed, REFERENCE)
    assert figures.top1 == 0.5
    assert figures.top5_overlap == pytest.approx((4 / 5 + 1) / 2)
    assert figures.abs_max == 2.0
    assert figures.rel_max == pytest.approx(2 / 6)
    cosine = (30 + 30 + 16 + 9 + 0 + 1 + 0) / 91
    assert figures.cosine_min == pytest.approx(cosine)
    assert figures.cosine_mean == pytest.approx((cosine + 1) / 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_agreement_of_broken_logits_is_none(bad: float) -> None:
    packed = REFERENCE.copy()
    packed[1, 3] = bad
    assert agreement(packed, REFERENCE).top1 == 0.0
    with pytest.raises(PackageError):
        check_agreement(agreement(packed, REFERENCE), "int8", "fast")


@pytest.mark.parametrize(
    ("weights", "numerics", "top1", "cosine"),
    [
        ("fp16", "exact", 0.99, 0.9999),
        ("fp16", "fast", 0.95, 0.995),
        ("int8", "exact", 0.92, 0.99),
        ("int8", "fast", 0.90, 0.99),
        ("int4", "exact", 0.70, 0.94),
        ("int4", "fast", 0.70, 0.94),
        ("given", "exact", 0.90, 0.99),
        ("given", "fast", 0.90, 0.99),
    ],
)
def test_check_agreement_holds_each_bound(weights: str, numerics: str, top1: float, cosine: float) -> None:
    def figures(at: float, angle: float) -> Agreement:
        return Agreement(100, at, 1.0, 0.0, 0.0, angle, angle)

    check_agreement(figures(top1, cosine), weights, numerics)
    with pytest.raises(PackageError):
        check_agreement(figures(top1 - 0.001, cosine), weights, numerics)
    with pytest.raises(PackageError):
        check_agreement(figures(top1, cosine - 0.00001), weights, numerics)


def test_check_agreement_refuses_the_four_bit_reader() -> None:
    """A reader that rounds zero points measured top-1 0.781 and a smallest cosine of -0.38."""
    with pytest.raises(PackageError):
        check_agreement(Agreement(353, 0.781, 0.7, 20.0, 1.0, -0.38, 0.99), "int8", "fast")
