"""When two rows of logits count as one result. Expected distances by hand."""

from __future__ import annotations

import numpy as np
import pytest

from calserve.accept.conform.agree import Agreement, distance


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_distance_is_over_the_spread_and_not_over_what_all_logits_share() -> None:
    """Mean 101, so the spread is |(-1, 1)| = sqrt(2); the difference is |(0, 1)| = 1."""
    assert distance(row(100, 102), row(100, 103)) == pytest.approx(1 / 2**0.5)


def test_distance_of_flat_logits_is_whether_they_are_equal() -> None:
    assert distance(row(5, 5), row(5, 5)) == 0
    assert distance(row(5, 5), row(5, 6)) == 1


def test_exact_agreement_is_of_bits() -> None:
    agree = Agreement(0.0, 0.0)
    assert agree.check("a", row(1, 2), row(1, 2))
    assert not agree.check("b", row(1, 2), row(1, np.nextafter(np.float32(2), np.float32(3))))
    assert (agree.compared, agree.differing) == (2, 1)
    assert agree.first.startswith("b: logits differ by up to")


def test_fast_agreement_lets_a_near_tie_fall_either_way_and_not_a_clear_lead() -> None:
    agree = Agreement(0.9, 0.5)
    assert agree.check("tie", row(1.0, 1.1, -3), row(1.1, 1.0, -3))
    assert not agree.check("lead", row(1.0, 2.0, -3), row(2.0, 1.0, -3))
    assert "best token 0, not 1, which led by 1.000" in agree.first


def test_fast_agreement_beyond_the_distance_is_none_whatever_the_best_token() -> None:
    agree = Agreement(0.1, 0.5)
    assert not agree.check("far", row(0, 4, 0), row(2, 4, -2))
    assert "distance" in agree.first


def test_tokens_are_compared_one_by_one_and_only_where_numerics_are_exact() -> None:
    exact, fast = Agreement(0.0, 0.0), Agreement(0.1, 0.5)
    assert not exact.check_tokens("text", [1, 2, 3], [1, 9, 3])
    assert "token 1 is 9, not 2" in exact.first
    assert fast.check_tokens("text", [1, 2, 3], [1, 9, 3])
    assert fast.compared == 0
