"""What the engine shows of itself when asked: frozen counts for health, metrics and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calserve.core.outcomes import Failure
from calserve.core.states import GenerationState


@dataclass(frozen=True, slots=True)
class QueueView:
    """queue: decode, short, medium or long. oldest_wait_ns is 0 when the queue is empty."""

    queue: str
    depth: int
    oldest_wait_ns: int


@dataclass(frozen=True, slots=True)
class SessionView:
    session: str
    model: str
    package: str
    generation: int
    state: GenerationState
    waiting_requests: int  # not yet admitted
    waiting_prompt_tokens: int
    running_requests: int  # admitted, not terminal
    jobs_in_flight: int
    oldest_job_submitted_ns: int | None  # for liveness: against the expected step time
    lanes_total: int
    lanes_by_state: Mapping[str, int]
    kv_units_total: int
    kv_units_held: int
    kv_units_reserved: int
    context_tokens: int  # longest prompt + output an empty session takes; 0 until configured
    queues: tuple[QueueView, ...]
    waiting_reason: str  # why the head of the line is not admitted; "" when nobody waits
    failure: Failure | None = None  # why it is Failed, or what it recovers from
    oldest_job_deadline_ns: int | None = None  # that job's execution deadline, which follows from its expected time
    # free, held, quarantined (holder gone, a job may still write) and unknown: together they are `kv_units_total`
    kv_units_by_state: Mapping[str, int] = field(default_factory=dict)
    max_in_flight: int = 0  # jobs allowed at once now; 0 while nothing serves
    downgrade_reason: str = ""  # why it is one where more is proven (`core.concurrency.Doubt`)
    features_off: tuple[str, ...] = ()  # what the board turned out not to support, in this generation
    refused_package: str = ""  # the one that was refused last, since an operator loaded one


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    sessions: tuple[SessionView, ...]
    counters: Mapping[str, int]  # submitted, finished_<reason>, stale_completions, resets, ...
