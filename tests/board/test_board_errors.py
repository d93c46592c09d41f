"""The table of codes against seed 003, section 8, copied here by hand."""

from __future__ import annotations

import pytest

from calserve.core.faults import FAULT_RULES, AdmissionEffect, JobEffect, Recovery
from calserve.core.outcomes import Failure, FaultClass
from calserve.runtime.errors import CODES, CalCode, classify, failure, meaning

F, J, A, R = FaultClass, JobEffect, AdmissionEffect, Recovery
# class: codes, and the seed's columns "current job", "new admission", "automatic action"
SEED = {
    F.REQUEST: ((1, 14, 21, 22), J.FAIL, A.GO_ON, R.RECORD),
    F.LIFECYCLE: ((2, 7, 16), J.FAIL, A.PAUSE, R.DRAIN_AND_CHECK),
    F.ARTIFACT: ((4, 5, 10, 11, 12, 19), J.FAIL, A.REFUSE_GENERATION, R.ROLL_BACK),
    F.COMPATIBILITY: ((8, 9, 23), J.FAIL, A.STOP, R.HUMAN),
    F.TRANSIENT: ((13, 17), J.FAIL_OR_REQUEUE, A.REDUCE, R.BACK_OFF),
    F.DEVICE: ((18, 24, 25, 28), J.FAIL, A.STOP_AT_ONCE, R.QUARANTINE_AND_RESET),
    F.PROGRAMMING: ((27, 29), J.FAIL, A.FEATURE_OFF, R.FIX_CODE),
    # 15 and 20 by the seed; what it does not name, in the table or beyond it, counts as the same
    F.UNKNOWN: ((3, 6, 15, 20, 26, 30, 99, -1, 12345), J.FAIL, A.PAUSE, R.TREAT_AS_POLLUTED),
}
ROWS = [(code, kind, *columns) for kind, (codes, *columns) in SEED.items() for code in codes]


@pytest.mark.parametrize(("code", "kind", "job", "admission", "recovery"), ROWS, ids=str)
def test_meaning_every_code_has_the_columns_of_its_row(
    code: int, kind: FaultClass, job: JobEffect, admission: AdmissionEffect, recovery: Recovery
) -> None:
    found = meaning(code)
    assert (classify(code), found.fault) == (kind, kind)
    assert found.rule is not None
    assert (found.rule.job, found.rule.admission, found.rule.recovery) == (job, admission, recovery)


def test_codes_zero_to_twenty_nine_all_stand_in_the_table() -> None:
    assert sorted(CODES) == list(range(30))
    assert {code for codes, *_ in SEED.values() for code in codes if 0 < code < 30} == set(range(1, 30))
    assert {int(code) for code in CalCode} == set(range(30)) - {3, 6, 26}


def test_rules_stand_for_every_class_once() -> None:
    assert set(FAULT_RULES) == set(FaultClass) == set(SEED)


def test_meaning_of_success_has_no_class_and_no_rule() -> None:
    assert (meaning(0).fault, meaning(0).rule) == (None, None)


def test_classify_success_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        classify(0)


def test_failure_without_detail_takes_the_name_of_its_code() -> None:
    assert failure("wait", 13) == Failure("wait", 13, FaultClass.TRANSIENT, "timeout")
    assert failure("csr", 4, "no such name").detail == "no such name"
