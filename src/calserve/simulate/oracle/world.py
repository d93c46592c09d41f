"""What the oracle is told before a run: the public configuration. And what a client asked, in its own words.

Must not know: how a server obeys any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SECOND = 1_000_000_000
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One submit, as the client means it.

    model: the alias asked for. prompt: token ids. max_new_tokens: as resolved, also where none was asked for.
    min_tokens: eos and stop ids are barred, and stop strings not looked for, below this many outputs. seed: None
    where the server draws its own; the tokens are then only checked against each other. eos_ids are barred below
    min_tokens also with ignore_eos, but do not end the answer then. deadline_ns: absolute. is_whole: it reads nothing
    before the end, and then all at once.
    """

    name: str
    tenant: str
    model: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    min_tokens: int
    temperature: float
    seed: int | None
    stop_token_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    ignore_eos: bool
    deadline_ns: int
    submitted_ns: int
    stop_strings: tuple[str, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """The run's public configuration. A bound of 0 means "not checked" unless it says otherwise.

    models: alias -> name of the simulated model its tokens follow. sessions: session -> alias it serves.
    vocab, context: of the profile, tokens. lanes_per_session. max_in_flight: jobs proven at once on a session.
    text_of: the text of a token that does not end an answer; None leaves text (and stop strings) unchecked.
    """

    models: Mapping[str, str]
    sessions: Mapping[str, str]
    vocab: int
    context: int
    lanes_per_session: int
    max_in_flight: int = 1
    text_of: Callable[[int], str] | None = None

    # unit i is lane i, and a row names exactly its own
    lane_is_unit: bool = True
    # a job that failed leaves the lanes of its other rows usable (proven on this board)
    lane_fault_isolation: bool = False
    # jobs a dead process left on the device count as writing until they retire or a reset stops them
    judges_earlier_processes: bool = True
    # whatever goes wrong shows as a fact of the device, so a session that recovers without any is wrong itself
    is_trouble_visible: bool = False
    # jobs named up to here are the server's own (warm-up), their tokens nobody's
    last_own_job: int = 0

    # decode jobs of its session that may leave out a row in the middle of its answer: the scheduler's four, and those
    # that go in before it hears of the row's last
    passed_over_bound: int = 8

    # longest time the host may need between two of its own steps, a hiccup included
    host_slack_ns: int = SECOND
    # longest time between a decision of the server and the client (or the oracle) hearing of it
    told_slack_ns: int = SECOND
    # longest time after a cancel until its end is heard
    cancel_slack_ns: int = SECOND
    # longest time after a deadline until the end is heard
    deadline_slack_ns: int = SECOND
    # how long beginners may be held for company; added to the idle time a session may have
    batching_window_ns: int = 0
    # longest pause after a transient refusal of the board; an idle session is excused so long after one
    backoff_bound_ns: int = 2 * SECOND

    # from DRAINING to whatever follows it
    drain_bound_ns: int = 0
    # from RECOVERING to READY, FAILED or UNLOADED
    recovery_bound_ns: int = 0
    # from VALIDATING or CONFIGURING to READY or FAILED, and of UNLOADING
    load_bound_ns: int = 0

    # from a submit to its end or to its session's, in a session that is READY and stays so
    job_bound_ns: int = 0

    # limits a refusal may name: over a session's line, over one tenant's part of it (0: no such limit)
    max_waiting_requests: int = 0
    max_waiting_prompt_tokens: int = 0
    tenant_max_waiting_requests: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    tenant_max_waiting_prompt_tokens: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    # tokens of KV an empty session has; 0: as many as lanes and context make
    kv_tokens: int = 0

    # fairness (I9): see `fairness`. A tenant without a weight has 1
    tenant_weights: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    is_fairness_checked: bool = True
    # requests of a tenant with lanes at once, where it has a limit of its own
    tenant_max_active: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    decode_cost_weight: int = 4
    tenant_lane_share_percent: int = 50
    # prompts beyond this stand in a line of their own with a limit of their own, and are not judged
    medium_prefill_max_tokens: int = 4096
    # compiled rows by graph name: what unused rows cost the tenants of a job; unknown graphs cost nothing more
    graph_rows: Mapping[str, int] = field(default_factory=lambda: _NOTHING)

    # exit codes with which a process ends after telling every client; any other is a crash
    told_exit_codes: frozenset[int] = frozenset({0, 75, 76})

    @property
    def lane_cap(self) -> int:
        """Lanes one tenant may hold while others have work."""
        return max(1, self.lanes_per_session * self.tenant_lane_share_percent // 100)
