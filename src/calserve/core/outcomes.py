"""Ends and refusals as values, each with the limit and the value given.

`Refusal` is why a request was never started; `FinishReason` is how an accepted one ended. The API turns both
into status codes with one table; nothing here knows HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RowEnd(Enum):
    """What the completion step saw at the end of a row. `core` alone decides what follows from it."""

    NONE = "none"
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    GRAMMAR = "grammar"
    UNUSABLE = "unusable"  # the request's own settings left no token to choose
    ERROR = "error"  # the output itself is wrong: the generation is suspect


class FinishReason(Enum):
    """The one terminal fact of a request."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REFUSED = "refused"
    DEVICE_FAULT = "device_fault"
    SHUTDOWN = "shutdown"
    INTERNAL = "internal"


class RefusalKind(Enum):
    """Why a request was not accepted (seed 002, section 5.2)."""

    INVALID = "invalid"  # the request itself is wrong
    UNKNOWN_MODEL = "unknown_model"
    TOO_LONG = "too_long"  # prompt + output beyond the context
    TOO_LARGE_FOR_KV = "too_large_for_kv"  # would not fit an empty board
    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    MODEL_DRAINING = "model_draining"
    MODEL_RECOVERING = "model_recovering"
    MODEL_FAILED = "model_failed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal with the number that was exceeded. `limit` and `given` are 0 where no number is involved."""

    kind: RefusalKind
    limit: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request used, for the client. `completion_tokens` counts tokens generated, the ending one included."""

    prompt_tokens: int
    completion_tokens: int


class FaultClass(Enum):
    """Class of a runtime failure (seed 003, section 8); what it does to job, admission and generation follows."""

    REQUEST = "request"
    LIFECYCLE = "lifecycle"
    ARTIFACT = "artifact"
    COMPATIBILITY = "compatibility"
    TRANSIENT = "transient"
    DEVICE = "device"
    PROGRAMMING = "programming"
    UNKNOWN = "unknown"


# the stage of a PrepareFailed that says the board could not allocate KV yet: wait for KvReleased, do not poll
KV_STAGE = "kv"
# the stage of a PrepareFailed whose queue deadline passed: the host was late, the board refused nothing
QUEUE_STAGE = "queue"
# the stage of a Warmed whose job never came back: the device may write on, whatever the code says
LOST_STAGE = "lost"
# the stage of a JobFailed whose status, not its code, was wrong: bad, or another job's or generation's
STATUS_STAGE = "status"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure as recorded: the stage it happened in, the board's raw code, its class, one sentence."""

    stage: str
    code: int
    fault: FaultClass
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BoardNote:
    """How a board stood at one moment, for the record: its versions (name, value) and its health in one sentence."""

    versions: tuple[tuple[str, str], ...]
    is_healthy: bool
    health: str = ""
