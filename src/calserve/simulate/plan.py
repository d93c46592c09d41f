"""What one run is: everything that is drawn from its seed, as data that can be written down and read back.

Owns: the eras of a run, their board, configuration, faults and traffic, and how a seed gives them. Must not know: how
any of it is carried out. Life: `draw_plan` makes it from a seed, or a record gives it back; then it is only read.

Each purpose has a random stream of its own, named by a text, so that leaving one thing out moves nothing else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
# seeds are written into file names and sqlite columns of those who keep them
SEED_MAX = 2**63 - 1
# The longest run there is, in virtual hours: a leap year.
HOURS_MAX = 24 * 366


def stream(seed: int, purpose: str) -> random.Random:
    """A random stream of its own. A text seed is hashed by `random` itself, so PYTHONHASHSEED cannot move it."""
    return random.Random(f"{seed}/{purpose}")


@dataclass(frozen=True, slots=True)
class BoardPlan:
    """The simulated board of an era. base: the name of a profile that ships, or of the run's own. cut:
    abilities taken from it, by capability name; assumes: abilities it is given, as only a proof may.

    sessions: one on each chip, or one over both. is_served: the package is the one a server of this board serves, and
    the profile is left as it is.
    """

    base: str = "assumed-lanes"
    context: int = 256
    profiles: tuple[int, ...] = (1, 4, 8)
    sessions: int = 2
    cut: tuple[str, ...] = ()
    tile: int = 1
    dtype: str = "float32"
    assumes: tuple[str, ...] = ()
    is_served: bool = False


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The configuration of an era's server, in the scheduler's own units. has_tenant_limits: tenants have their own."""

    max_in_flight: int = 1
    fixed_engine: bool = False
    max_waiting_requests: int = 40
    max_waiting_prompt_tokens: int = 4096
    batching_window_ns: int = 0
    prefill_chunk_tokens: int = 64
    restart_on_unknown_dma: bool = True
    max_resets: int = 4
    reset_window_ns: int = 120 * SECOND
    execution_deadline_floor_ns: int = 2 * SECOND
    overdue_grace_ns: int = SECOND
    queue_deadline_ns: int = 5 * SECOND
    recovery_drain_ns: int = 3 * SECOND
    deadline_default_ns: int = 60 * SECOND
    tenant_lane_share_percent: int = 50
    lifecycle_deadline_ns: int = 40 * SECOND
    has_tenant_limits: bool = False


@dataclass(frozen=True, slots=True)
class ListedFault:
    """One fault at a visit of its point, counted from 1; see `runtime.sim.faults.Fault`."""

    point: str
    at_visit: int
    times: int = 1
    value: int = 0


@dataclass(frozen=True, slots=True)
class FaultsPlan:
    """Fault points that may fire in the safety phase; each has its own stream. late_ns: of a late completion.

    listed: instead of drawn ones, exactly these. mean_gap: jobs between two firings of a point, on average. after_ns:
    before that nothing fires, and no visit counts.
    """

    points: tuple[str, ...] = ()
    listed: tuple[ListedFault, ...] = ()
    mean_gap: int = 400
    late_ns: int = 5 * SECOND
    after_ns: int = 0


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Open-loop arrivals in bursts: clients never wait for one another.

    burst_gap_ns, burst_size: means; a burst comes within burst_ns. storm_gap_ns: how often more arrives at once than
    the queues take. habits: what clients do beside reading to the end.
    """

    burst_gap_ns: int = 25 * SECOND
    burst_size: int = 60
    burst_ns: int = SECOND // 10
    storm_gap_ns: int = 30 * MINUTE
    storm_size: int = 130
    mean_output: int = 18
    habits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the host's steps take: (shortest, longest) in ns. hiccup: one step in so many takes this long."""

    wake: tuple[int, int] = (2_000, 120_000)
    prepare: tuple[int, int] = (5_000, 100_000)
    submit: tuple[int, int] = (5_000, 80_000)
    d2h: tuple[int, int] = (20_000, 400_000)
    sample: tuple[int, int] = (50_000, 900_000)
    deliver: tuple[int, int] = (10_000, 300_000)
    warm_step_ns: int = 2 * SECOND  # the longest a step of a warm-up may take
    hiccup_every: int = 3_000
    hiccup_ns: int = 40_000_000


@dataclass(frozen=True, slots=True)
class Era:
    """One server configuration on one board: faults first (safety), then none (liveness), then an orderly end.

    keeps_device: the board and its memory are the last era's. Times are after the era's start. crashes_ns: the process
    is killed. replace_at_ns: another build is loaded over the one that serves. bad_load_at_ns: a bad one is.
    unload_at_ns: a session is unloaded. oddities: see `oddities`; odd_rate: how much more often they show than usual.
    """

    number: int
    safety_ns: int
    liveness_ns: int
    board: BoardPlan
    server: ServerPlan
    faults: FaultsPlan
    traffic: TrafficPlan
    pace: Pace
    keeps_device: bool = False
    crashes_ns: tuple[int, ...] = ()
    replace_at_ns: tuple[int, ...] = ()
    bad_load_at_ns: tuple[int, ...] = ()
    unload_at_ns: tuple[int, ...] = ()
    oddities: tuple[str, ...] = ()
    odd_rate: float = 1.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """profile: the text of a board profile of one's own, which eras name; "" where all of them ship."""

    seed: int
    eras: tuple[Era, ...] = field(default_factory=tuple)
    profile: str = ""

    @property
    def duration_ns(self) -> int:
        return sum(era.safety_ns + era.liveness_ns for era in self.eras)


HABITS = (
    "cancel_early",
    "cancel_midway",
    "cancel_twice",
    "cancel_unknown",
    "stall",
    "short_deadline",
    "past_deadline",
    "too_long",
    "unknown_model",
    "to_the_context",
    "no_length",
    "sampled",
    "stop_tokens",
    "stop_strings",
    "logprobs",
    "duplicate_name",
    "whole_answer",
)
# Faults that only two jobs in flight can show.
PAIRS = ("completion_swapped",)
_POINTS = (
    "submit_busy", "submit_unavailable", "submit_unsupported", "wait_timeout", "code_with_status",
    "status_ccu_exception", "logits_nan", "output_short", "job_never_completes", "completion_late",
    "completion_double", "completion_swapped", "device_lost",
    "allocate_fails", "map_fails", "slice_fails", "csr_fails", "buffer_reset_fails", "kv_cannot_allocate",
    "kv_apply_fails", "configure_fails", "reset_fails", "counters_wrong", "undo_lost", "logits_inf",
    "completion_misnamed",
)  # fmt: skip
# What a board tells that no fault of the device explains: see `oddities`, which has a line for each.
_ODDITIES = (
    "status_missing", "status_older", "release_refused", "output_mistyped", "output_flat", "output_few_rows",
    "output_padded", "times_missing", "buffers_foreign", "graphs_odd", "order_unanswered", "session_missing",
    "session_with_code", "configure_raises", "buffers_missing", "ticket_missing", "ticket_with_code", "submit_raises",
    "wait_raises",
)  # fmt: skip
_ODD_SHARE = 0.12
_OPERATOR_SHARE = 0.06
_STRAGGLER_SHARE = 0.06
_STRAGGLER_NS = 200 * SECOND  # beyond its deadline and what a job of a session that is gone is waited for (120 s)
# Share of the points that are active in one era: few at a time make each other's consequences readable.
ACTIVE_SHARE = 0.35
_MINUTES_A_SHORT_ERA = 4
# Where every prefill is of one length, a warm-up cannot tell what a token costs.
_SHORTEST_CONTEXT = 32


def draw_plan(seed: int, duration_ns: int) -> RunPlan:
    """The run of a seed: eras of about an hour, or one short one where there is less time than that."""
    count = max(1, round(duration_ns / HOUR))
    return RunPlan(seed, tuple(_draw_era(seed, number, duration_ns // count, count) for number in range(count)))


def _draw_era(seed: int, number: int, length_ns: int, count: int) -> Era:
    r = stream(seed, f"era/{number}")
    # longer than a recovery that is under way when the faults heal; a board of the specification configures in 20 s
    liveness_ns = max(length_ns // 8, (120 if _is_slow(stream(seed, f"board/{number // 3}")) else 65) * SECOND)
    safety_ns = max(length_ns - liveness_ns, 20 * SECOND)
    board = _draw_board(stream(seed, f"board/{number // 3}"))
    server = _draw_server(r, board)
    is_long = length_ns > _MINUTES_A_SHORT_ERA * 2 * MINUTE
    crashes = tuple(sorted(r.randrange(safety_ns) for _ in range(r.choice((0, 0, 1, 2) if is_long else (0, 0, 0, 1)))))
    w = stream(seed, f"whole/{number}")
    points = tuple(p for p in _POINTS if r.random() < ACTIVE_SHARE and (p not in PAIRS or server.max_in_flight > 1))
    traffic = TrafficPlan(
        burst_gap_ns=25 * SECOND if is_long else 14 * SECOND,
        burst_size=r.choice((56, 60, 64)) if is_long else r.choice((44, 56, 68)),
        burst_ns=r.choice((SECOND // 50, SECOND // 5)),
        storm_gap_ns=20 * MINUTE if is_long else MINUTE,
        # a habit that came later has a stream of its own: the eras of a seed stay what they were
        habits=tuple(h for h in HABITS if (w if h == "whole_answer" else r).random() < 0.8),
    )
    x = stream(seed, f"oddities/{number}")
    server = replace(server, has_tenant_limits=x.random() < 0.25)
    unloads = x.choice((0, 0, 1, 2)) if is_long else x.choice((0, 0, 0, 1))
    era = Era(
        number=number,
        safety_ns=safety_ns,
        liveness_ns=liveness_ns,
        board=board,
        server=server,
        faults=FaultsPlan(points, mean_gap=r.choice((2000, 6000)) if is_long else r.choice((300, 1200))),
        traffic=traffic,
        pace=Pace(),
        keeps_device=number % 3 != 0,
        crashes_ns=crashes,
        replace_at_ns=tuple(sorted(r.randrange(safety_ns) for _ in range(r.choice((0, 1, 1, 2))))),
        bad_load_at_ns=tuple(sorted(r.randrange(safety_ns) for _ in range(r.choice((0, 1, 2))))),
        unload_at_ns=tuple(sorted(x.randrange(safety_ns) for _ in range(unloads))),
        oddities=tuple(name for name in _ODDITIES if x.random() < _ODD_SHARE),
        odd_rate=1.0 if is_long else 8.0,
    )
    if x.random() < _OPERATOR_SHARE:
        return _with_operator(era, x)
    s = stream(seed, f"straggler/{number}")
    return _with_straggler(era, s) if s.random() < _STRAGGLER_SHARE and _may_straggle(era) else era


def _with_operator(era: Era, r: random.Random) -> Era:
    """Nothing is wrong with the board, and somebody tries one package after another on it."""

    def times(count: int) -> tuple[int, ...]:
        return tuple(sorted(r.randrange(era.safety_ns) for _ in range(count)))

    return replace(
        era,
        faults=replace(era.faults, points=()),
        oddities=(),
        replace_at_ns=times(4),
        bad_load_at_ns=times(24),
        unload_at_ns=times(4),
    )


def _with_straggler(era: Era, r: random.Random) -> Era:
    """One job comes home later than anybody waits for it, and nothing else is wrong."""
    late = ListedFault("completion_late", r.randrange(400, 1200), value=_STRAGGLER_NS)
    return replace(
        era, faults=FaultsPlan(listed=(late,)), oddities=(), crashes_ns=(), bad_load_at_ns=(), unload_at_ns=()
    )


def _may_straggle(era: Era) -> bool:
    """Whether there is time for it, and a reset is known to stop its writes: elsewhere no process can begin on the
    board until it is home."""
    return era.safety_ns > 2 * MINUTE and era.board.base != "calculet-2chip" and "chip_reset" not in era.board.cut


def _is_slow(r: random.Random) -> bool:
    return _draw_board(r).base == "calculet-2chip"


def _draw_board(r: random.Random) -> BoardPlan:
    kind = r.random()
    if kind < 0.07:  # the board of the specification: one sequence at a time over both chips
        return BoardPlan("calculet-2chip", context=256, profiles=(1,), sessions=1, tile=16, dtype="bfloat16")
    cut = tuple(
        name
        for name, chance in (
            ("chip_reset", 0.3), ("session_reset", 0.3), ("incremental_prefill", 0.25), ("concurrent_jobs", 0.4),
            ("resident_profiles", 0.2),
        )
        if r.random() < chance
    )  # fmt: skip
    sessions = 1 if r.random() < 0.25 else 2
    profiles = r.choice(((1, 4, 8), (1, 4, 8), (1, 8), (1, 8), (1, 4)))
    is_tiled = r.random() < 0.3
    return BoardPlan(
        "assumed-lanes",
        context=r.choice((192, 256, 384) * 4 + (_SHORTEST_CONTEXT,)),
        profiles=profiles,
        sessions=sessions,
        cut=cut,
        assumes=() if "concurrent_jobs" in cut else ("concurrent_jobs",),  # as though this board had a proof of it
        tile=r.choice((16, 24)) if is_tiled else 1,
        dtype="bfloat16" if is_tiled or r.random() < 0.3 else "float32",
    )


def _draw_server(r: random.Random, board: BoardPlan) -> ServerPlan:
    can_two = board.base != "calculet-2chip" and "concurrent_jobs" not in board.cut
    return ServerPlan(
        max_in_flight=2 if can_two and r.random() < 0.7 else 1,
        fixed_engine=can_two and r.random() < 0.5,
        queue_deadline_ns=r.choice((5 * SECOND, 30_000_000)),
        batching_window_ns=r.choice((0, 0, 2_000_000)),
        restart_on_unknown_dma=r.random() < 0.7,
        max_resets=r.choice((2, 4, 8)),
        max_waiting_requests=r.choice((32, 48)),
        tenant_lane_share_percent=r.choice((50, 100)),
    )
