"""The choosers alone: which rows, which profile, how long a chunk."""

from __future__ import annotations

import pytest
from core_rig import MS, lane_facts, paged_facts

from calserve.core.board import SessionFacts
from calserve.core.config import SchedulerConfig
from calserve.core.fairness import FairClock
from calserve.core.kv import Lane
from calserve.core.plan import MAX_PASSED_OVER, Policy, choose_decode_rows, choose_profile, chunk_length, plan_job
from calserve.core.queues import ReadySets, Turns
from calserve.core.request import Request, prefill_queue
from calserve.core.shape import Shape, shape_of

CLOCK = FairClock(SchedulerConfig())
POLICY = Policy(lane_cap=100, step=0)


def ready(
    number: int, deadline: int = 100, finish: int = 0, tenant: str = "t", lane: int | None = None, at: int = 0
) -> Request:
    """A request ready to decode: prompt of 4 in KV."""
    row = Request(f"r{number}", CLOCK.tenant(tenant), number, 4, 8, 0, deadline, prefill_queue(SchedulerConfig(), 4))
    row.lane = Lane(number if lane is None else lane, committed=4)
    row.virtual_finish, row.ready_at_step, row.max_new_tokens = finish, at, 8
    return row


def names(rows: list[Request]) -> list[str]:
    return [row.name for row in rows]


def shape(facts: SessionFacts, **config: object) -> Shape:
    made = shape_of(SchedulerConfig(**config), facts)  # type: ignore[arg-type]
    assert isinstance(made, Shape), made
    return made


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_decode_rows_up_to_one_more_than_the_batch_fill_it_and_no_more(count: int) -> None:
    rows = choose_decode_rows([ready(i) for i in range(count)], 4, POLICY)
    assert names(rows) == [f"r{i}" for i in range(min(count, 4))]


def test_decode_rows_earliest_deadline_goes_first_then_virtual_finish_then_arrival() -> None:
    rows = [ready(0, 300, 1), ready(1, 200, 9), ready(2, 200, 5), ready(3, 100, 9), ready(4, 200, 5)]
    assert names(choose_decode_rows(rows, 4, POLICY)) == ["r3", "r2", "r4", "r1"]


def test_decode_rows_a_tenant_at_its_cap_yields_to_others() -> None:
    rows = [ready(i, deadline=10 + i, tenant="big") for i in range(4)] + [ready(9, deadline=999, tenant="small")]
    assert names(choose_decode_rows(rows, 4, Policy(lane_cap=2, step=0))) == ["r0", "r1", "r9", "r2"]


def test_decode_rows_the_cap_does_not_leave_rows_empty() -> None:
    rows = [ready(i, tenant="big") for i in range(6)]
    assert len(choose_decode_rows(rows, 4, Policy(lane_cap=2, step=0))) == 4


def test_decode_rows_one_passed_over_goes_ahead_of_earlier_deadlines() -> None:
    rows = [ready(i, deadline=1, at=MAX_PASSED_OVER) for i in range(4)] + [ready(9, deadline=99, at=0)]
    before = Policy(lane_cap=9, step=MAX_PASSED_OVER - 1)
    after = Policy(lane_cap=9, step=MAX_PASSED_OVER)
    assert "r9" not in names(choose_decode_rows(rows, 4, before))
    assert names(choose_decode_rows(rows, 4, after))[0] == "r9"


# b1 8 ms, b4 12 ms, b8 14 ms, b16 20 ms: cheapest per useful row, worked out by hand
@pytest.mark.parametrize(
    ("count", "profile"),
    [(1, 1), (2, 4), (3, 4), (4, 4), (5, 8), (6, 8), (8, 8), (9, 8), (11, 8), (12, 16), (16, 16)],
)
def test_profile_is_the_cheapest_measured_time_per_useful_row(count: int, profile: int) -> None:
    # per row: b4 at 4 is 3.0; b8 at 8 is 1.75; b16 at 11 is 1.82, at 12 is 1.67
    table = shape(_free_profiles())
    rows = [ready(i) for i in range(count)]
    assert choose_profile(rows, table, POLICY).batch == profile


def _free_profiles() -> SessionFacts:
    from dataclasses import replace

    from calserve.core.board import RowBinding

    facts = lane_facts(profiles=(1, 4, 8, 16), lanes=16, decode_ms=(8, 12, 14, 20))
    return replace(facts, graphs=tuple(replace(g, row_binding=RowBinding.FREE) for g in facts.graphs))


def test_profile_with_fixed_rows_counts_only_lanes_it_reaches() -> None:
    table = shape(lane_facts(profiles=(1, 4, 8), lanes=8, decode_ms=(8, 12, 14)))
    assert choose_profile([ready(0, lane=0), ready(1, lane=6)], table, POLICY).batch == 8  # 14/2 < 8/1
    assert choose_profile([ready(i, lane=i) for i in (0, 1, 2, 3, 6)], table, POLICY).batch == 8  # 14/5 < 12/4
    expensive = shape(lane_facts(profiles=(1, 4, 8), lanes=8, decode_ms=(8, 12, 30)))
    assert choose_profile([ready(i, lane=i) for i in (0, 1, 2, 3, 6)], expensive, POLICY).batch == 4


def test_profile_with_fixed_rows_must_reach_a_lane_that_was_passed_over() -> None:
    table = shape(lane_facts(profiles=(1, 4, 8), lanes=8, decode_ms=(8, 12, 30)))
    policy = Policy(lane_cap=9, step=MAX_PASSED_OVER)
    rows = [ready(i, lane=i, at=MAX_PASSED_OVER) for i in range(4)] + [ready(6, lane=6, at=0)]
    assert choose_profile(rows, table, policy).batch == 8


def test_profile_without_measurements_is_the_smallest_that_holds_every_row() -> None:
    from dataclasses import replace

    table = shape(replace(lane_facts(profiles=(1, 4, 8), lanes=8), step_times=()))
    assert [choose_profile([ready(i, lane=i) for i in range(n)], table, POLICY).batch for n in (1, 2, 4, 5, 8)] == [
        1, 4, 4, 8, 8,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("remaining", "room", "taken"),
    [
        (1, 8, 1),  # a whole prompt of one token is allowed
        (7, 8, 7),
        (8, 8, 8),
        (9, 8, 7),  # 8 would leave one token
        (10, 8, 8),
        (16, 8, 8),
        (17, 8, 8),
        (3, 2, 0),  # 2 leaves 1, 1 is too short
        (100, 1, 0),
        (4, 3, 2),
    ],
)
def test_chunk_neither_the_chunk_nor_the_rest_is_below_two(remaining: int, room: int, taken: int) -> None:
    assert chunk_length(remaining, room, 2) == taken


@pytest.mark.parametrize("length", range(1, 70))
@pytest.mark.parametrize("min_chunk", [1, 2, 4])
def test_chunks_of_any_prompt_add_up_and_respect_the_minimum(length: int, min_chunk: int) -> None:
    room, left, chunks = 16, length, []
    while left:
        chunks.append(chunk_length(left, room, min_chunk))
        assert 0 < chunks[-1] <= room
        left -= chunks[-1]
    assert sum(chunks) == length
    assert len(chunks) == 1 or min(chunks) >= min_chunk


def test_plan_nothing_ready_is_no_job() -> None:
    assert plan_job(ReadySets(), Turns(SchedulerConfig()), shape(paged_facts()), POLICY) is None


def test_plan_whole_prompt_beside_decodes_goes_once_over_the_budget_where_it_may_not_be_cut() -> None:
    proven = frozenset({"batch_lanes", "mixed_batch"})
    table = shape(paged_facts(proven=proven, job_tokens=64), prefill_chunk_tokens=8)
    sets = ReadySets()
    sets.add_decode(ready(0))
    for number, prompt in ((1, 20), (2, 20)):
        row = Request(f"r{number}", CLOCK.tenant("t"), number, prompt, 8, 0, 100, prefill_queue(SchedulerConfig(), 4))
        row.lane = Lane(number)
        sets.add_prefill(row)
    plan = plan_job(sets, Turns(SchedulerConfig()), table, POLICY)
    assert plan is not None
    assert [(row.request.name, row.token_count) for row in plan.rows] == [("r0", 1), ("r1", 20)]


def test_expected_time_of_a_mixed_job_is_decode_plus_tokens() -> None:
    table = shape(paged_facts())  # decode: 1 lane 10 ms, up to 4 lanes 20 ms; prefill 5 ms + 0.5 ms a token
    graph = table.decode[0]
    assert table.expected_ns(graph, 1, 0) == 10 * MS
    assert table.expected_ns(graph, 3, 0) == 20 * MS
    assert table.expected_ns(graph, 1, 8) == 14 * MS
    assert table.expected_ns(graph, 0, 8) == 9 * MS
