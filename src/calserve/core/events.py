"""Facts that reach the engine. Frozen, printable, replayable: the record of a run is these, with their times.

A job event names the generation it belongs to; an event of a generation that is gone changes nothing and is
counted. A failure rides on the event whose success it replaces (`failure=None` means it succeeded).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.core.board import SessionFacts, StepTime
from calserve.core.outcomes import BoardNote, Failure, RowEnd


@dataclass(frozen=True, slots=True)
class Submit:
    """A parsed, tokenized request arrives.

    model: the alias asked for. deadline_ns: absolute, on the engine's clock, or None for the configured default.
    max_new_tokens: None reserves to the end of the context. arrived_ns: when the server read it. is_whole: the client
    sees nothing before the end, so that whatever was delivered for it may still be thrown away.
    """

    request: str
    tenant: str
    model: str
    prompt_tokens: int
    max_new_tokens: int | None
    arrived_ns: int
    deadline_ns: int | None = None
    is_whole: bool = False


class CancelCause(Enum):
    """Why nobody wants the answer any more. Each is counted (`cancels_<cause>`); what follows is the same."""

    CLIENT_GONE = "client_gone"
    ASKED = "asked"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Cancel:
    request: str
    cause: CancelCause


@dataclass(frozen=True, slots=True)
class ClientStalled:
    """A reader stopped reading and its bounded buffer is full: a cancel whose cause is STALLED."""

    request: str


@dataclass(frozen=True, slots=True)
class RowResult:
    """What the completion step saw in one row, in the order of the job's rows.

    end: NONE goes on. text_tokens: tokens sampled for the client in this step (0 for a chunk without logits).
    """

    end: RowEnd
    text_tokens: int


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The board took the job. idle_ns: how long the session's board part had nothing to do before it, 0 if unknown."""

    job: int
    generation: int
    idle_ns: int = 0


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """The job never reached the device: its rows' KV is untouched and may be rolled back."""

    job: int
    generation: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class JobDone:
    """Code and status were both good and every output was checked. `rows` follows the spec's row order.

    device_ns: what the board worked on it, H2D to D2H without waiting in between; 0 where it does not say.
    """

    job: int
    generation: int
    rows: tuple[RowResult, ...]
    device_ns: int = 0


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job came back bad after submit: what it wrote to KV is unknown.

    has_ended: whether the board said that this very job is over. Where it did not (an error code without a status,
    another job's completion) the device may still write: it counts as one that never returned.
    """

    job: int
    generation: int
    failure: Failure
    has_ended: bool = True


@dataclass(frozen=True, slots=True)
class JobOverdue:
    """`wait` timed out; the job is still owned by the device and is waited on again."""

    job: int
    generation: int


@dataclass(frozen=True, slots=True)
class KvReleased:
    """The board reports that KV can be allocated again after it said it could not."""

    session: str


@dataclass(frozen=True, slots=True)
class Load:
    """Bring `package` (its hash) up on `session`, answering to `model`."""

    session: str
    model: str
    package: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Drain by `deadline_ns` (absolute), then release."""

    session: str
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop admission at once, drain every session by `deadline_ns`, then Exit(0)."""

    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Validated:
    session: str
    generation: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """facts: where it succeeded. proven: where it did not, the board's proven capabilities: a reset may be wanted."""

    session: str
    generation: int
    facts: SessionFacts | None = None
    failure: Failure | None = None
    proven: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Warmed:
    """Goldens passed and step times were measured (or one of them failed)."""

    session: str
    generation: int
    step_times: tuple[StepTime, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Released:
    session: str
    generation: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ResetDone:
    """before, after: how the board stood around the reset, for its record."""

    session: str
    generation: int
    failure: Failure | None = None
    before: BoardNote | None = None
    after: BoardNote | None = None


@dataclass(frozen=True, slots=True)
class BoardAnomaly:
    """The board's own account does not add up (its job counters do not close): two jobs at once are in doubt.

    before, after: how the board stood around the reset that an earlier process's jobs made necessary, if one did.
    is_kv: what does not add up is KV: the board kept a lane that was released, so room that we count is not there.
    """

    session: str
    generation: int
    detail: str
    before: BoardNote | None = None
    after: BoardNote | None = None
    is_kv: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and `next_deadline_ns()` was reached."""


Event = (
    Submit
    | Cancel
    | ClientStalled
    | JobSubmitted
    | PrepareFailed
    | JobDone
    | JobFailed
    | JobOverdue
    | KvReleased
    | Load
    | Unload
    | Shutdown
    | Validated
    | Configured
    | Warmed
    | Released
    | ResetDone
    | BoardAnomaly
    | Tick
)
