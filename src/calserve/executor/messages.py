"""What moves between threads. A message has one owner at a time: who puts it in a queue has let go of it.

Into the engine's inbox: `Submission`, any core `Event`, `Completed` (a retired job coming back with its lease
and sequences), `Inspect`. Out of the engine: `Delivery` and `Ending`, in batches, through an `Outlet`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from calserve.core.commands import Command
from calserve.core.events import Event, Submit
from calserve.core.outcomes import Failure, FinishReason, Refusal, Usage
from calserve.core.snapshot import EngineSnapshot, SessionView
from calserve.sampling.sampler import Choice

if TYPE_CHECKING:
    from calserve.executor.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Submission:
    """A new request: the counts for `core`, the contents for the executor."""

    event: Submit
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Inspect:
    """Asks for a snapshot; `reply` is called once on the engine thread and must not block."""

    reply: Callable[[EngineSnapshot], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Text for one request from one row of one job, with the ids that were sampled.

    choices: of the tokens whose text has left by now, only when log-probabilities were asked for. offsets: parallel,
    the character of the request's output text at which each of these tokens' text begins.
    is_anew: the answer starts over with this one, after its KV was lost: what was delivered of it before does not count
    any more. Only where the request's client sees nothing before the end (`Submit.is_whole`).
    """

    request: str
    text: str
    tokens: tuple[int, ...]
    choices: tuple[Choice, ...] = ()
    offsets: tuple[int, ...] = ()
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """The one terminal message of a request."""

    request: str
    reason: FinishReason
    usage: Usage
    refusal: Refusal | None = None
    failure: Failure | None = None


class Outlet(Protocol):
    """Where results go. Called on the engine thread; returns at once (the service hops to its event loop)."""

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        """In order. Per request: any number of Delivery, then exactly one Ending."""

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        """A session's lifecycle state changed."""

    def exit(self, code: int, reason: str) -> None:
        """`core` ordered the process to end."""


class Recorder(Protocol):
    """A subscriber of the record: every event with the commands it caused. On the engine thread; must be quick."""

    def __call__(self, now_ns: int, event: Event, commands: Many[Command]) -> None: ...
