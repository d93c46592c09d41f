"""The table of codes against seed 003, section 8, copied here by hand."""

from __future__ import annotations

import pytest

from calserve.core.outcomes import Failure, FaultClass
from calserve.runtime.errors import (
    CODES,
    AdmissionEffect,
    CalCode,
    JobEffect,
    Recovery,
    classify,
    failure,
    meaning,
)

SEED = {
    FaultClass.REQUEST: (1, 14, 21, 22),
    FaultClass.LIFECYCLE: (2, 7, 16),
    FaultClass.ARTIFACT: (4, 5, 10, 11, 12, 19),
    FaultClass.COMPATIBILITY: (8, 9, 23),
    FaultClass.TRANSIENT: (13, 17),
    FaultClass.DEVICE: (18, 24, 25, 28),
    FaultClass.PROGRAMMING: (27, 29),
    FaultClass.UNKNOWN: (3, 6, 15, 20, 26, 30, 99, -1),
}


@pytest.mark.parametrize(("fault", "codes"), SEED.items(), ids=str)
def test_classify_every_code_of_a_group_is_its_class(fault: FaultClass, codes: tuple[int, ...]) -> None:
    assert {classify(code) for code in codes} == {fault}


def test_codes_zero_to_twenty_nine_all_stand_in_the_table() -> None:
    assert sorted(CODES) == list(range(30))
    assert {int(code) for code in CalCode} == set(range(30)) - {3, 6, 26}


def test_meaning_effects_follow_the_class() -> None:
    assert meaning(28).recovery is Recovery.QUARANTINE_AND_RESET
    assert meaning(28).admission is AdmissionEffect.STOP_AT_ONCE
    assert meaning(17).job is JobEffect.FAIL_OR_REQUEUE
    assert meaning(17).recovery is Recovery.BACK_OFF
    assert meaning(19).admission is AdmissionEffect.REFUSE_GENERATION
    assert meaning(26).recovery is Recovery.TREAT_AS_POLLUTED
    assert meaning(12345).recovery is Recovery.TREAT_AS_POLLUTED


def test_classify_success_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        classify(0)


def test_failure_without_detail_takes_the_name_of_its_code() -> None:
    assert failure("wait", 13) == Failure("wait", 13, FaultClass.TRANSIENT, "timeout")
    assert failure("csr", 4, "no such name").detail == "no such name"
