"""The runs in which mutants are to show: short, with few kinds of trouble at a time, and the same code's unpatched.

Owns: scenarios by name; each is a plan but for its seed. Must not know: mutants. A plan is put together here and not
drawn, so that what the soak draws may change without moving any of them.
"""

from __future__ import annotations

from dataclasses import replace

from calserve.simulate.plan import (
    HABITS,
    SECOND,
    BoardPlan,
    Era,
    FaultsPlan,
    ListedFault,
    Pace,
    RunPlan,
    ServerPlan,
    TrafficPlan,
)

MS = SECOND // 1000
WARM_JOBS = 86  # of a session with graphs of 1, 4 and 8 rows

# Bursts with pauses between: a board that stands idle beside work is then seen to.
CALM = Era(
    number=0,
    safety_ns=28 * SECOND,
    liveness_ns=8 * SECOND,
    board=BoardPlan(),
    server=ServerPlan(),
    faults=FaultsPlan(),
    traffic=TrafficPlan(
        burst_gap_ns=4 * SECOND,
        burst_size=12,
        burst_ns=SECOND // 5,
        storm_gap_ns=20 * SECOND,
        storm_size=60,
        habits=HABITS,
    ),
    pace=Pace(),
)
# The budget is not what is looked at: with few resets most of a run would be spent Failed.
SERVER = ServerPlan(max_resets=1000)
PAIRS = replace(
    CALM, board=BoardPlan(assumes=("concurrent_jobs",)), server=replace(SERVER, max_in_flight=2)
)  # fmt: skip
# Late jobs are given up soon, so that they outlive the generation they were of.
HASTY = replace(
    SERVER, execution_deadline_floor_ns=500 * MS, overdue_grace_ns=200 * MS, recovery_drain_ns=500 * MS
)  # fmt: skip


def _faulty(era: Era, *points: str, mean_gap: int = 250, late_ns: int = 5 * SECOND) -> Era:
    """mean_gap: jobs; a warm-up is some 90 of them, and few sessions should end in theirs."""
    return replace(era, server=replace(era.server, max_resets=1000), faults=FaultsPlan(points, (), mean_gap, late_ns))


def _own_trouble() -> FaultsPlan:
    """Job after job that is over with code 14, which is its own trouble: its generation goes on."""
    return FaultsPlan(listed=tuple(ListedFault("code_with_status", at) for at in range(200, 2000, 30)))


def _first_jobs() -> FaultsPlan:
    """The first job of each generation fails, after a warm-up of so many jobs."""
    return FaultsPlan(listed=tuple(ListedFault("status_ccu_exception", (WARM_JOBS + 1) * n) for n in range(1, 12)))


def _in_the_middle() -> FaultsPlan:
    """In each generation a job fails when the first answers are some 30 tokens long."""
    return FaultsPlan(
        listed=tuple(ListedFault("status_ccu_exception", at) for at in range(WARM_JOBS + 34, 6000, WARM_JOBS + 34))
    )


def _crowded(board: BoardPlan, lane_share: int, burst_size: int, mean_output: int = 8) -> Era:
    """More requests at a time than there are lanes, by far, and nobody refused."""
    server = ServerPlan(
        max_waiting_requests=400, max_waiting_prompt_tokens=60_000, tenant_lane_share_percent=lane_share
    )
    traffic = TrafficPlan(
        burst_gap_ns=5 * SECOND, burst_size=burst_size, storm_gap_ns=1000 * SECOND, mean_output=mean_output
    )
    return replace(CALM, board=board, server=server, traffic=traffic)


SCENARIOS = {
    "calm": CALM,
    "one_session": replace(CALM, board=BoardPlan(sessions=1)),
    "specified": replace(CALM, board=BoardPlan("calculet-2chip", profiles=(1,), sessions=1)),
    "pairs": PAIRS,
    "cancels": replace(PAIRS, traffic=replace(CALM.traffic, mean_output=30)),
    "own_trouble": replace(CALM, faults=_own_trouble()),
    "exceptions": _faulty(CALM, "status_ccu_exception"),
    # nobody goes to a sibling, so that who starts over does it here
    "exceptions_alone": replace(
        CALM,
        board=BoardPlan(sessions=1),
        server=SERVER,
        faults=_in_the_middle(),
        traffic=replace(CALM.traffic, mean_output=30),
    ),
    "exceptions_in_pairs": _faulty(PAIRS, "status_ccu_exception"),
    "again": replace(CALM, board=BoardPlan(sessions=1), server=SERVER, faults=_first_jobs()),
    "not_finite": _faulty(CALM, "logits_nan"),
    "short": _faulty(CALM, "output_short"),
    "twice": _faulty(PAIRS, "completion_double"),
    "strays": replace(_faulty(CALM, "completion_late", late_ns=7 * SECOND), server=HASTY),
    "busy": _faulty(CALM, "submit_busy", mean_gap=60),
    "contradictions": replace(
        CALM, server=SERVER, oddities=("ticket_missing", "ticket_with_code", "submit_raises"), odd_rate=30.0
    ),
    "lost": replace(
        _faulty(CALM, "job_never_completes"), server=HASTY, pace=Pace(warm_step_ns=100 * MS)
    ),
    "late": replace(_faulty(CALM, "completion_late", mean_gap=150, late_ns=9 * SECOND), server=HASTY),
    # the other session is at work when the process goes
    "lost_for_good": replace(
        _faulty(CALM, "job_never_completes", mean_gap=150),
        server=replace(HASTY, max_resets=0),
        traffic=replace(CALM.traffic, burst_gap_ns=SECOND // 2, mean_output=30),
    ),
    "killed": replace(
        _faulty(CALM, "completion_late", mean_gap=20, late_ns=9 * SECOND),
        crashes_ns=(9 * SECOND, 18 * SECOND, 27 * SECOND),
        server=replace(HASTY, execution_deadline_floor_ns=20 * SECOND),
    ),
    # requests of much the same size, and few lanes: the bound of a tenant's share is of the largest ones and the lanes
    "tenants": _crowded(BoardPlan(context=64, profiles=(1, 4), sessions=1), 100, burst_size=150),
    # every burst is over before the next
    "tenants_by_turns": _crowded(BoardPlan(context=64, profiles=(1,), sessions=1), 100, burst_size=100),
    "tenants_with_caps": _crowded(BoardPlan(context=64, sessions=1), 50, burst_size=200, mean_output=20),
}  # fmt: skip


def plan_of(scenario: str, seed: int) -> RunPlan:
    return RunPlan(seed, (SCENARIOS[scenario],))
