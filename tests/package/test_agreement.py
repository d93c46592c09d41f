"""The figures of an agreement, worked out by hand, and each bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calserve.package import PackageError
from calserve.package.pack import Agreement, agreement
from calserve.package.pack.agreement import BOUNDS, check_agreement

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


# (top-1, top-5 overlap, max absolute, max relative, smallest cosine, mean cosine) as SmolLM2-135M measured them.
MEASURED = {
    ("fp16", "exact"): (1.0, 0.9989, 0.0165, 0.0008, 0.999998, 0.99999993),
    ("fp16", "fast"): (0.9688, 0.9779, 1.5253, 0.0733, 0.985054, 0.999767),
    ("int8", "exact"): (0.9632, 0.9620, 1.7448, 0.0801, 0.989360, 0.999048),
    ("int8", "fast"): (0.9603, 0.9507, 1.9984, 0.0912, 0.983096, 0.998805),
    ("int4", "exact"): (0.8187, 0.8085, 11.0676, 0.4398, 0.602809, 0.973893),
    ("int4", "fast"): (0.8215, 0.8034, 11.9282, 0.4557, 0.583106, 0.972676),
}
BROKEN = (0.745, 0.7473, 18.8629, 0.9390, -0.068570, 0.882223)  # a reader that rounds zero points
KINDS = [(weights, numerics) for weights in ("fp16", "int8", "int4", "given") for numerics in ("exact", "fast")]
BAD_FIGURES = {
    "top1": (0.69, "top-1 agreement", "at least"),
    "top5_overlap": (0.64, "top-5 overlap", "at least"),
    "abs_max": (24.1, "max absolute difference", "at most"),
    "rel_max": (0.81, "max relative difference", "at most"),
    "cosine_min": (0.19, "smallest cosine", "at least"),
    "cosine_mean": (0.93, "mean cosine", "at least"),
}


def test_check_agreement_has_a_bound_for_every_kind_of_package() -> None:
    assert list(BOUNDS) == KINDS


@pytest.mark.parametrize("kind", MEASURED)
def test_check_agreement_takes_what_was_measured(kind: tuple[str, str]) -> None:
    check_agreement(Agreement(353, *MEASURED[kind]), *kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("figure", BAD_FIGURES)
def test_check_agreement_holds_every_figure_and_names_it(kind: tuple[str, str], figure: str) -> None:
    """Of a graph that agrees whole but for one figure, which is worse than the loosest bound of all."""
    value, words, side = BAD_FIGURES[figure]
    whole = Agreement(100, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0)
    check_agreement(whole, *kind)
    with pytest.raises(PackageError) as caught:
        check_agreement(replace(whole, **{figure: value}), *kind)
    bound = getattr(BOUNDS[kind], figure)
    assert (caught.value.fault.limit, caught.value.fault.given) == (str(bound), str(value))
    assert str(caught.value).startswith(f"The packed graph's {words} with its source is {value}")
    assert f"{kind[0]} {kind[1]} needs {side} {bound}" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("figure", BAD_FIGURES)
def test_check_agreement_takes_what_is_at_the_bound(kind: tuple[str, str], figure: str) -> None:
    whole = Agreement(100, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0)
    check_agreement(replace(whole, **{figure: getattr(BOUNDS[kind], figure)}), *kind)


@pytest.mark.parametrize("figure", BAD_FIGURES)
def test_check_agreement_of_no_number_is_refused(figure: str) -> None:
    whole = Agreement(100, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0)
    with pytest.raises(PackageError):
        check_agreement(replace(whole, **{figure: float("nan")}), "int4", "fast")


def test_check_agreement_of_weights_as_given_names_them_and_their_own_bound() -> None:
    figures = Agreement(100, 0.93, 1.0, 0.0, 0.0, 1.0, 1.0)
    check_agreement(figures, "given", "fast", is_wide=True)
    with pytest.raises(PackageError, match=r"given fast needs at least 0\.900"):
        check_agreement(replace(figures, top1=0.89), "given", "fast", is_wide=True)


def test_check_agreement_of_wide_weights_as_given_in_exact_numerics_is_as_strict_as_fp16() -> None:
    figures = Agreement(100, 0.93, 1.0, 0.0, 0.0, 1.0, 1.0)
    check_agreement(figures, "given", "exact")
    with pytest.raises(PackageError, match=r"given exact of sixteen bits or more needs at least 0\.990"):
        check_agreement(figures, "given", "exact", is_wide=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[0] != "int4"])
def test_check_agreement_refuses_the_four_bit_reader(kind: tuple[str, str]) -> None:
    with pytest.raises(PackageError):
        check_agreement(Agreement(353, *BROKEN), *kind)
    for at, name in enumerate(BOUNDS[kind]._fields):  # by any one of its figures
        whole = Agreement(100, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0)
        with pytest.raises(PackageError):
            check_agreement(replace(whole, **{name: BROKEN[at]}), *kind)
