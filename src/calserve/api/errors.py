"""The error table: how every refusal and every bad end is told to a client.

Owns status codes, OpenAI's error object and Retry-After. Must not know where an outcome came from. One table, so that
the same outcome cannot be told in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from calserve.service.terms import Ending, FaultClass, FinishReason, Refusal, RefusalKind


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """retry_after_s: 0 sends no header. sentence: may use {limit} and {given}."""

    status: int
    type: str
    code: str
    sentence: str
    retry_after_s: int = 0


_INVALID = "invalid_request_error"
_LIMIT = "rate_limit_error"
_UNAVAILABLE = "service_unavailable_error"
_SERVER = "server_error"

REFUSALS: Mapping[RefusalKind, ErrorShape] = MappingProxyType(
    {
        RefusalKind.INVALID: ErrorShape(400, _INVALID, "invalid_value", "The request is not valid."),
        RefusalKind.UNKNOWN_MODEL: ErrorShape(404, _INVALID, "model_not_found", "There is no such model here."),
        RefusalKind.TOO_LONG: ErrorShape(
            400,
            _INVALID,
            "context_length_exceeded",
            "The request has {given} tokens, prompt and requested output together; the model takes at most {limit}.",
        ),
        RefusalKind.TOO_LARGE_FOR_KV: ErrorShape(
            400,
            _INVALID,
            "context_length_exceeded",
            "The request has {given} tokens, prompt and requested output together; the server has room for {limit}.",
        ),
        RefusalKind.QUEUE_FULL: ErrorShape(
            429, _LIMIT, "queue_full", "The server is at its limit of {limit} waiting requests.", 1
        ),
        RefusalKind.QUEUE_TOKENS_FULL: ErrorShape(
            429,
            _LIMIT,
            "queue_tokens_full",
            "The server is at its limit of {limit} waiting prompt tokens; this request would make it {given}.",
            1,
        ),
        RefusalKind.TENANT_QUEUE_FULL: ErrorShape(
            429, _LIMIT, "tenant_queue_full", "This tenant is at its limit of {limit}; given {given}.", 1
        ),
        RefusalKind.MODEL_DRAINING: ErrorShape(
            503, _UNAVAILABLE, "model_draining", "The model is being taken out of service.", 5
        ),
        RefusalKind.MODEL_RECOVERING: ErrorShape(
            503, _UNAVAILABLE, "model_recovering", "The model is recovering from a fault.", 5
        ),
        RefusalKind.MODEL_FAILED: ErrorShape(503, _UNAVAILABLE, "model_failed", "The model is out of service.", 30),
    }
)

# The ends that are not an answer. 499 is the web's customary code for a request cancelled by its side; clients do not
# retry it, as they would a 409 or 5xx.
ENDS: Mapping[FinishReason, ErrorShape] = MappingProxyType(
    {
        FinishReason.CANCELLED: ErrorShape(499, "cancelled_error", "cancelled", "The request was cancelled."),
        FinishReason.DEADLINE: ErrorShape(
            504, "timeout_error", "deadline_exceeded", "The request did not finish by its deadline."
        ),
        FinishReason.DEVICE_FAULT: ErrorShape(
            503, _UNAVAILABLE, "device_fault", "A device fault ended the request; it may be sent again.", 5
        ),
        FinishReason.SHUTDOWN: ErrorShape(
            503, _UNAVAILABLE, "shutting_down", "The server is shutting down and could not finish the request.", 5
        ),
        FinishReason.INTERNAL: ErrorShape(500, _SERVER, "internal_error", "The server failed; this is not your fault."),
    }
)

# An end by the request's own fault: its bias, penalties and minimum together bar every token.
NO_TOKEN_LEFT = ErrorShape(
    400, _INVALID, "invalid_value", "The request's settings leave no token to choose; ask for less of them."
)
# The stage of a failure that says so, as `core.retirement` names it.
_SAMPLING = "sampling"

# What the HTTP layer itself refuses.
NOT_FOUND = ErrorShape(404, _INVALID, "not_found", "There is nothing at this path.")
METHOD_NOT_ALLOWED = ErrorShape(405, _INVALID, "method_not_allowed", "This path does not take this method.")
BODY_TOO_LARGE = ErrorShape(413, _INVALID, "body_too_large", "The body may have at most {limit} bytes.")
BODY_TOO_SLOW = ErrorShape(408, _INVALID, "body_timeout", "The body did not arrive within {limit} seconds.")
WRONG_CONTENT_TYPE = ErrorShape(
    415, _INVALID, "unsupported_media_type", "The body must be JSON, sent with 'Content-Type: application/json'."
)
NOT_HTTP = ErrorShape(400, _INVALID, "invalid_http", "This is not a valid HTTP request.")
MODEL_NOT_READY = ErrorShape(503, _UNAVAILABLE, "model_not_ready", "The model is not ready.", 5)
UNKNOWN_REQUEST = ErrorShape(404, _INVALID, "request_not_found", "There is no open request by this id.")
FAULT = ENDS[FinishReason.INTERNAL]


class ErrorObject(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorObject


@dataclass(frozen=True, slots=True)
class ApiError:
    """One error as told: the status line, headers and body of a response, or an event in an open stream."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


def error(shape: ErrorShape, message: str = "", param: str | None = None, limit: int = 0, given: int = 0) -> ApiError:
    """Fill `shape`. `message` replaces its sentence."""
    text = message or shape.sentence.format(limit=limit, given=given)
    body = msgspec.json.encode(ErrorBody(ErrorObject(text, shape.type, param, shape.code)))
    headers = ((b"retry-after", str(shape.retry_after_s).encode()),) if shape.retry_after_s else ()
    return ApiError(shape.status, body, headers)


def invalid(param: str | None, message: str) -> ApiError:
    """A 400 that names the field."""
    return error(REFUSALS[RefusalKind.INVALID], message, param)


def refusal_error(refusal: Refusal, message: str = "", param: str | None = None) -> ApiError:
    return error(REFUSALS[refusal.kind], message, param, refusal.limit, refusal.given)


def ending_error(ending: Ending, prompt_field: str | None = None) -> ApiError | None:
    """The error an ending is told as; None when it is an answer (`stop`, `length`).

    prompt_field: the field to shorten when the request is too long.
    """
    if ending.reason in (FinishReason.STOP, FinishReason.LENGTH):
        return None
    if ending.reason is FinishReason.REFUSED:
        assert ending.refusal is not None, f"{ending.request} was refused without a reason"
        is_prompt = ending.refusal.kind in (RefusalKind.TOO_LONG, RefusalKind.TOO_LARGE_FOR_KV)
        return refusal_error(ending.refusal, param=prompt_field if is_prompt else None)
    return error(NO_TOKEN_LEFT if _is_own_fault(ending) else ENDS[ending.reason])


def _is_own_fault(ending: Ending) -> bool:
    """A board may blame a request too, but then for what this server made of it: only sampling is the client's."""
    failure = ending.failure
    return failure is not None and failure.fault is FaultClass.REQUEST and failure.stage == _SAMPLING
