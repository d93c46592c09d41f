"""Orders that leave the engine, in the order they must be carried out.

`ReleaseLane` commands of one `handle` call come first (what they free may be used by the next job), then
`SubmitJob`, then the rest: the board must not wait for clients. `Emit` delivers what the completion step left
under (job, row) for a request; a delivery no `Emit` names is dropped. `Finish` is the one terminal order of a
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.core.job import JobSpec
from calserve.core.outcomes import Failure, FinishReason, Refusal, Usage


@dataclass(frozen=True, slots=True)
class ReleaseLane:
    """The ledger freed a lane and its units: the device's view of KV follows (`KvMirror.release`)."""

    session: str
    generation: int
    lane: int


@dataclass(frozen=True, slots=True)
class SubmitJob:
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Emit:
    request: str
    job: int
    row: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The request ended. `refusal` only with REFUSED; `failure` only with DEVICE_FAULT or INTERNAL."""

    request: str
    reason: FinishReason
    usage: Usage
    refusal: Refusal | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Validate:
    session: str
    generation: int
    model: str
    package: str


@dataclass(frozen=True, slots=True)
class Configure:
    session: str
    generation: int
    package: str


@dataclass(frozen=True, slots=True)
class Warm:
    session: str
    generation: int


@dataclass(frozen=True, slots=True)
class Release:
    """cause: what made it necessary, where that was a failure; None where it was asked for."""

    session: str
    generation: int
    cause: Failure | None = None


class ResetScope(Enum):
    CCU = "ccu"
    SESSION = "session"
    CONFIGURATION = "configuration"
    CHIP = "chip"
    BOARD = "board"


@dataclass(frozen=True, slots=True)
class Reset:
    session: str
    generation: int
    scope: ResetScope
    cause: Failure


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave the process. 0 after an orderly shutdown; otherwise a documented code for the supervisor."""

    code: int
    reason: str


Command = ReleaseLane | SubmitJob | Emit | Finish | Validate | Configure | Warm | Release | Reset | Exit
