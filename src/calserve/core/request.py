"""One request, as counts.

Owns: what a request asked for, its state, how far it is, and what it has cost. Must not know: tokens, text,
queues, jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.core.config import SchedulerConfig
from calserve.core.events import Submit
from calserve.core.fairness import Tenant
from calserve.core.kv import Lane
from calserve.core.outcomes import Usage
from calserve.core.states import REQUEST_STEPS, TERMINAL, RequestEvent, RequestState, step


class Queue(Enum):
    """The four queues (seed 002, section 6)."""

    DECODE = "decode"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    __hash__ = object.__hash__  # singletons; see states


PREFILL_QUEUES = (Queue.SHORT, Queue.MEDIUM, Queue.LONG)
WAITING = (RequestState.WAITING_MODEL, RequestState.WAITING_ADMISSION)


def prefill_queue(config: SchedulerConfig, prompt_tokens: int) -> Queue:
    if prompt_tokens <= config.short_prefill_max_tokens:
        return Queue.SHORT
    return Queue.MEDIUM if prompt_tokens <= config.medium_prefill_max_tokens else Queue.LONG


@dataclass(slots=True, eq=False)
class Request:
    """Invariants: lane and generation are set exactly while admitted; generated <= max_new_tokens."""

    name: str
    tenant: Tenant
    ordinal: int  # arrival order in its session: the last tie-break everywhere
    prompt_tokens: int
    asked_new_tokens: int | None
    arrived_ns: int
    deadline_ns: int
    queue: Queue  # by prompt length, for its life
    model: str = ""  # the alias asked for
    state: RequestState = RequestState.NEW
    max_new_tokens: int = 0  # known once the model's context is
    generation: int = 0
    lane: Lane | None = None
    generated: int = 0
    is_whole: bool = False  # the client sees nothing before the end
    deliveries: int = 0  # Emit orders since it began, or began anew
    restarted: bool = False
    is_long_prefill: bool = False  # counts against the cap on long prefills
    cost: int = 0  # charged at admission
    spent: int = 0  # what the board really did for it
    virtual_finish: int = 0
    ready_since_ns: int = 0
    ready_at_step: int = 0  # decode jobs started when it became ready: how often it was passed over

    def move(self, event: RequestEvent) -> None:
        self.state = step(REQUEST_STEPS, self.state, event)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_waiting(self) -> bool:
        """In line, without a lane."""
        return self.state in WAITING

    @property
    def is_seen(self) -> bool:
        """Whether the client has something of the answer, which could not be taken back."""
        return self.deliveries > 0 and not self.is_whole

    @property
    def total_tokens(self) -> int:
        """Worst case in KV: prompt and every token it may generate."""
        return self.prompt_tokens + self.max_new_tokens

    @property
    def committed(self) -> int:
        return self.lane.committed if self.lane is not None else 0

    @property
    def remaining_prompt(self) -> int:
        return self.prompt_tokens - self.committed

    @property
    def order(self) -> tuple[int, int, int]:
        """Earliest deadline, then virtual finish, then arrival (seed 002, section 7.2)."""
        return self.deadline_ns, self.virtual_finish, self.ordinal

    def estimated_cost(self, decode_cost_weight: int) -> int:
        """Cost charged in advance, in prompt-token units (seed 002, section 5.3)."""
        return self.prompt_tokens + decode_cost_weight * self.max_new_tokens

    @property
    def as_submitted(self) -> Submit:
        """The fact it came from, its deadline settled."""
        return Submit(
            self.name,
            self.tenant.name,
            self.model,
            self.prompt_tokens,
            self.asked_new_tokens,
            self.arrived_ns,
            self.deadline_ns,
            self.is_whole,
        )

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.generated)
