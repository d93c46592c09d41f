"""Whether what one client got is what it may get.

Owns the rules: which ends each kind of client may see, and that text is right, whole or cut. Must not know sockets.
A pure function of the arrival, the result and the expected answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.simulate.wall.cases import Expected
from calserve.simulate.wall.schedule import Arrival, Kind


class End(Enum):
    """The one way an exchange ended, as the client saw it."""

    ANSWERED = "answered"  # a whole answer, or a stream with [DONE]
    TOLD = "told"  # a stream that ended with an error event, after text or before
    REFUSED = "refused"  # a status other than 200
    LEFT = "left"  # the client closed the connection
    CUT = "cut"  # the stream stopped without an end
    UNANSWERED = "unanswered"  # the connection closed without a byte
    UNREACHABLE = "unreachable"  # no connection: the server was not there
    ENDLESS = "endless"  # no end came within the client's patience


@dataclass(slots=True)
class Result:
    """What a client got. code: of the error object, in a stream or not. marks: terminal marks seen ([DONE] or an error
    event). finishes: chunks with a finish_reason. tokens: of the usage; -1 when none came."""

    end: End
    status: int = 0
    code: str = ""
    text: str = ""
    finish: str = ""
    finishes: int = 0
    marks: int = 0
    tokens: int = -1
    retry_after: bool = False


# Codes that tell of a device or a process, not of the request; each may be sent again.
FAULT_CODES = frozenset({"device_fault", "model_recovering", "model_draining", "model_failed", "shutting_down"})
# What a job that fails before submit is told as: a mistake of this server's, unless somebody made the board refuse.
INTERNAL_CODE = "internal_error"
BUSY_CODES = frozenset({"queue_full", "queue_tokens_full", "tenant_queue_full"})


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else is known of the time of an exchange.

    server_changed: the process ended or was started meanwhile; only then may nothing be heard of a request.
    has_faults: the board is made to fail; only then may the server say that it failed.
    """

    server_changed: bool = False
    has_faults: bool = False


def judge(arrival: Arrival, result: Result, expected: Expected | None, around: Circumstances) -> str:
    """One sentence of what is wrong; "" when nothing is. expected: None for a bad request."""
    if result.end is End.ENDLESS:
        return "no end came"
    if result.end in (End.UNREACHABLE, End.UNANSWERED):
        return "" if around.server_changed else f"{result.end.value} although the server ran on"
    if result.marks > 1 or result.finishes > 1:
        return f"{result.marks} ends and {result.finishes} finish reasons in one stream"
    if arrival.kind is Kind.BAD:
        return _judge_bad(result)
    assert expected is not None, "only a bad request has no right answer"
    if not expected.is_whole and result.text.startswith(expected.text):
        expected = Expected(
            result.text, result.finish, result.tokens // arrival.choices
        )  # all that is known of it is right
    if result.end is End.ANSWERED:
        return _judge_answer(arrival, result, expected)
    if not expected.text.startswith(result.text):
        return f"the text {result.text[-40:]!r} is not the beginning of the right one"
    if result.end is End.LEFT:
        return ""
    if result.end is End.CUT:
        return "" if arrival.kind is Kind.STALL else "the stream was cut without an end"
    return _judge_error(arrival, result, around)


def _judge_bad(result: Result) -> str:
    if result.end is End.REFUSED and (400 <= result.status < 500 or result.code in FAULT_CODES):
        return "" if result.code else f"status {result.status} without an error object"
    return f"a bad request got {result.status} {result.end.value}"


def _judge_answer(arrival: Arrival, result: Result, expected: Expected) -> str:
    if result.text != expected.text:
        return f"the answer {result.text[:40]!r}... is not {expected.text[:40]!r}..."
    if result.finish != expected.finish:
        return f"finish_reason is {result.finish!r}, not {expected.finish!r}"
    tokens = expected.tokens * arrival.choices
    if result.tokens not in (-1, tokens):
        return f"usage counts {result.tokens} tokens, not {tokens}"
    if arrival.is_streaming and (result.marks, result.finishes) != (1, 1):
        return f"{result.marks} ends and {result.finishes} finish reasons in a whole stream"
    return ""


def _judge_error(arrival: Arrival, result: Result, around: Circumstances) -> str:
    code = result.code
    if code == "cancelled":
        return "" if arrival.kind is Kind.DELETE else "cancelled, which nobody asked for"
    if code == "deadline_exceeded" or (code == INTERNAL_CODE and around.has_faults):
        return ""
    if code not in FAULT_CODES and code not in BUSY_CODES:
        return f"ended with {result.status} {code or 'and no error object'}"
    if result.end is End.REFUSED and not result.retry_after:
        return f"{result.status} {code} without Retry-After"
    return ""
