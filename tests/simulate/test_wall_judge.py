"""What each kind of client may get, and what it may not."""

from __future__ import annotations

import pytest

from calserve.simulate.wall.cases import Case, Expected
from calserve.simulate.wall.judge import Circumstances, End, Result, judge
from calserve.simulate.wall.schedule import Arrival, Kind

RIGHT = Expected("abcdef", "length", 6)
QUIET, FAULTS, RESTARTED = Circumstances(), Circumstances(has_faults=True), Circumstances(server_changed=True)


def arrival(kind: Kind) -> Arrival:
    return Arrival(1, 0.0, kind, Case((1, 2), 6))


def answered(text: str = "abcdef", **changes: object) -> Result:
    values = {"status": 200, "text": text, "finish": "length", "tokens": 6, "marks": 1, "finishes": 1}
    return Result(End.ANSWERED, **(values | changes))  # type: ignore[arg-type]


def told(code: str, text: str = "abc") -> Result:
    return Result(End.TOLD, 200, code, text, marks=1)


def refused(status: int, code: str, retry_after: bool = True) -> Result:
    return Result(End.REFUSED, status, code, retry_after=retry_after)


@pytest.mark.parametrize(
    ("kind", "result", "around"),
    [
        (Kind.STREAM, answered(), QUIET),
        (Kind.WHOLE, answered(marks=0, finishes=0), QUIET),
        (Kind.STALL, answered(tokens=24), QUIET),
        (Kind.DELETE, told("cancelled"), QUIET),
        (Kind.DELETE, answered(), QUIET),
        (Kind.LEAVE_STREAM, Result(End.LEFT, 200, text="abc"), QUIET),
        (Kind.LEAVE_WHOLE, Result(End.LEFT), QUIET),
        (Kind.STALL, Result(End.CUT, 200, text="ab"), QUIET),
        (Kind.STREAM, told("deadline_exceeded", ""), QUIET),
        (Kind.STREAM, told("device_fault"), QUIET),
        (Kind.WHOLE, refused(429, "queue_full"), QUIET),
        (Kind.WHOLE, refused(503, "model_recovering"), QUIET),
        (Kind.WHOLE, refused(504, "deadline_exceeded", retry_after=False), QUIET),
        (Kind.WHOLE, refused(500, "internal_error", retry_after=False), FAULTS),
        (Kind.BAD, refused(400, "invalid_value", retry_after=False), QUIET),
        (Kind.BAD, refused(503, "model_failed"), QUIET),
        (Kind.WHOLE, Result(End.UNREACHABLE), RESTARTED),
        (Kind.WHOLE, Result(End.UNANSWERED), RESTARTED),
    ],
)
def test_judge_end_that_may_be_is_not_wrong(kind: Kind, result: Result, around: Circumstances) -> None:
    assert judge(arrival(kind), result, None if kind is Kind.BAD else RIGHT, around) == ""


@pytest.mark.parametrize(
    ("kind", "result", "around", "word"),
    [
        (Kind.STREAM, answered("abcdeX"), QUIET, "abcdeX"),
        (Kind.STREAM, answered("abc"), QUIET, "is not"),
        (Kind.STREAM, answered(finish="stop"), QUIET, "finish_reason"),
        (Kind.STREAM, answered(tokens=5), QUIET, "usage"),
        (Kind.STALL, answered(tokens=6), QUIET, "not 24"),
        (Kind.STREAM, answered(marks=2), QUIET, "2 ends"),
        (Kind.STREAM, answered(finishes=2), QUIET, "2 finish"),
        (Kind.STREAM, answered(finishes=0), QUIET, "0 finish"),
        (Kind.STREAM, Result(End.TOLD, 200, "cancelled", "ab", marks=2), QUIET, "2 ends"),
        (Kind.STREAM, told("device_fault", "abX"), QUIET, "beginning"),
        (Kind.LEAVE_STREAM, Result(End.LEFT, 200, text="Xbc"), QUIET, "beginning"),
        (Kind.STALL, Result(End.CUT, 200, text="bc"), QUIET, "beginning"),
        (Kind.STREAM, Result(End.CUT, 200, text="ab"), RESTARTED, "cut"),
        (Kind.STREAM, told("cancelled"), QUIET, "nobody asked"),
        (Kind.WHOLE, refused(500, "internal_error"), QUIET, "internal_error"),
        (Kind.WHOLE, refused(503, "device_fault", retry_after=False), QUIET, "Retry-After"),
        (Kind.WHOLE, refused(400, "invalid_value"), FAULTS, "invalid_value"),
        (Kind.WHOLE, refused(502, ""), FAULTS, "no error object"),
        (Kind.WHOLE, Result(End.ENDLESS), RESTARTED, "no end"),
        (Kind.WHOLE, Result(End.UNANSWERED), QUIET, "ran on"),
        (Kind.WHOLE, Result(End.UNREACHABLE), FAULTS, "ran on"),
        (Kind.BAD, answered(), QUIET, "bad request"),
        (Kind.BAD, refused(500, "internal_error"), FAULTS, "bad request"),
        (Kind.BAD, refused(400, ""), QUIET, "error object"),
    ],
)
def test_judge_end_that_may_not_be_says_why(kind: Kind, result: Result, around: Circumstances, word: str) -> None:
    assert word in judge(arrival(kind), result, None if kind is Kind.BAD else RIGHT, around)


def test_judge_answer_known_only_in_part_must_begin_with_it_or_be_its_beginning() -> None:
    known = Expected("abc", "", -1, is_whole=False)
    assert judge(arrival(Kind.OVERDUE), answered("abcdef"), known, QUIET) == ""
    assert judge(arrival(Kind.OVERDUE), told("deadline_exceeded", "ab"), known, QUIET) == ""
    assert "X" in judge(arrival(Kind.OVERDUE), answered("aXc"), known, QUIET)
    assert "beginning" in judge(arrival(Kind.OVERDUE), told("deadline_exceeded", "aX"), known, QUIET)
