"""Who runs, in which job, and when (seed 002, sections 5 to 9 and 17.1), through the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from core_rig import EVERYTHING, MS, Rig, lane_facts, paged_facts, submits

from calserve.core.board import SessionFacts
from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.events import Cancel, CancelCause, JobSubmitted
from calserve.core.job import Bank, LogitsWanted, Task
from calserve.core.outcomes import FaultClass, RowEnd
from calserve.core.plan import budget_beside
from calserve.core.shape import Shape, shape_of

ALTERNATING = EVERYTHING - {"mixed_batch"}
GONE = CancelCause.CLIENT_GONE


def decoding(rig: Rig, count: int, new: int = 50, prompt: int = 4) -> Rig:
    """`count` requests r0.. past their prefill, all in one decode job."""
    for i in range(count):
        rig.submit(f"r{i}", prompt=prompt, new=new)
    while rig.spec.task is not Task.DECODE or len(rig.spec.rows) < count:
        rig.done()
    return rig


# --- the life of a request ------------------------------------------------------------------------------


def test_request_prefill_then_decodes_then_length_with_exact_usage() -> None:
    rig = Rig().up()
    (prefill,) = submits(rig.submit("r1", prompt=20, new=3))
    (row,) = prefill.rows
    assert (prefill.task, row.first_position, row.token_count, row.kv_units) == (Task.PREFILL, 0, 20, (0, 1))
    (decode,) = submits(rig.done())
    assert (decode.task, decode.rows[0].first_position, decode.rows[0].token_count) == (Task.DECODE, 20, 1)
    rig.done()
    assert rig.spec.rows[0].first_position == 21
    rig.done()
    end = rig.finished["r1"]
    assert (end.reason.value, end.usage.prompt_tokens, end.usage.completion_tokens) == ("length", 20, 3)
    assert [(e.request, e.job, e.row) for e in rig.emitted] == [("r1", 1, 0), ("r1", 2, 0), ("r1", 3, 0)]
    assert (rig.view.lanes_by_state["free"], rig.view.kv_units_held, rig.view.kv_units_reserved) == (4, 0, 0)


def test_request_of_one_new_token_ends_with_its_prefill() -> None:
    rig = Rig().up()
    rig.submit("r1", prompt=5, new=1)
    rig.done()
    assert (rig.reason("r1"), rig.finished["r1"].usage.completion_tokens, rig.jobs) == ("length", 1, {})


@pytest.mark.parametrize("end", [RowEnd.EOS, RowEnd.STOP_TOKEN, RowEnd.STOP_STRING, RowEnd.GRAMMAR])
def test_request_a_stop_ends_as_stop_also_on_its_last_token(end: RowEnd) -> None:
    rig = Rig().up()
    rig.submit("r1", new=2)
    rig.done()
    rig.done(ends={"r1": end})
    assert (rig.reason("r1"), rig.finished["r1"].usage.completion_tokens) == ("stop", 2)


def test_request_without_a_limit_runs_to_the_end_of_the_context() -> None:
    rig = Rig(facts=paged_facts(context=24)).up()
    rig.submit("r1", prompt=20, new=None)
    for _ in range(4):
        rig.done()
    assert (rig.reason("r1"), rig.finished["r1"].usage.completion_tokens) == ("length", 4)


def test_submits_stand_before_emits_and_ends_and_freed_lanes_before_all() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("r1", new=1)
    rig.submit("r2")
    kinds = [type(command).__name__ for command in rig.done()]
    assert kinds == ["ReleaseLane", "SubmitJob", "Emit", "Finish"]


# --- rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_ready_rows_up_to_one_more_than_the_batch_take_the_lowest_lanes(count: int) -> None:
    rig = Rig().up()
    for i in range(count):
        rig.submit(f"r{i}", prompt=4, new=50)
    for _ in range(3):
        if rig.jobs:
            rig.done()
    running = min(count, 4)
    assert rig.view.running_requests == running
    assert rig.view.waiting_requests == count - running
    if count:
        assert rig.rows == [f"r{i}" for i in range(running)]
        assert [row.lane for row in rig.spec.rows] == list(range(running))


def test_rows_a_cancelled_request_is_in_no_further_job() -> None:
    rig = decoding(Rig().up(), 3)
    rig.send(Cancel("r1", GONE))
    rig.done()
    assert rig.rows == ["r0", "r2"]
    assert "r1" not in {emit.request for emit in rig.emitted if emit.job == rig.spec.job - 1}


def test_rows_an_expired_request_is_in_no_further_job() -> None:
    rig = Rig().up()
    rig.submit("r0", new=50)
    rig.submit("r1", new=50, deadline=100 * MS)
    while len(rig.spec.rows) < 2 or rig.spec.task is not Task.DECODE:
        rig.done()
    rig.tick(100 * MS)
    rig.done()
    assert (rig.rows, rig.reason("r1")) == (["r0"], "deadline")


def test_rows_of_an_old_generation_are_in_no_job_of_the_new() -> None:
    rig = decoding(Rig().up(), 2)
    rig.lifecycle(rig.failed(FaultClass.DEVICE))
    rig.submit("new")
    assert rig.rows == ["new"]
    assert rig.spec.generation == 2
    assert (rig.reason("r0"), rig.reason("r1")) == ("device_fault", "device_fault")


def test_fixed_rows_the_profile_covers_the_highest_active_lane() -> None:
    rig = decoding(Rig(facts=lane_facts(profiles=(1, 2, 4))).up(), 4)
    assert (rig.spec.graph, [row.lane for row in rig.spec.rows]) == ("decode_b4", [0, 1, 2, 3])
    for name in ("r0", "r1", "r2"):
        rig.send(Cancel(name, GONE))
    rig.done()
    assert (rig.spec.graph, [row.lane for row in rig.spec.rows]) == ("decode_b4", [3])
    rig.submit("low", prompt=4)
    while rig.spec.task is not Task.PREFILL:
        rig.done()
    assert rig.spec.rows[0].lane == 0


def test_fixed_rows_the_lane_s_unit_is_the_lane() -> None:
    rig = decoding(Rig(facts=lane_facts()).up(), 3)
    assert [(row.lane, row.kv_units) for row in rig.spec.rows] == [(0, (0,)), (1, (1,)), (2, (2,))]


# --- prefill beside decode ------------------------------------------------------------------------------


def test_mixed_prefill_rides_with_every_decode_within_the_token_budget() -> None:
    rig = decoding(Rig(config=SchedulerConfig(prefill_chunk_tokens=16)).up(), 2)
    rig.submit("new", prompt=40, new=4)
    rig.done()
    seen = []
    for _ in range(4):
        seen.append([(row.request, row.token_count, row.logits) for row in rig.spec.rows])
        rig.done()
    last, none = LogitsWanted.LAST, LogitsWanted.NONE
    decodes = [("r0", 1, last), ("r1", 1, last)]
    assert seen[0] == [*decodes, ("new", 16, none)]
    assert seen[1] == [*decodes, ("new", 16, none)]
    assert seen[2] == [*decodes, ("new", 8, last)]
    assert [row[0] for row in seen[3]] == ["r0", "r1", "new"]


def test_mixed_several_short_prompts_share_one_job() -> None:
    rig = decoding(Rig(config=SchedulerConfig(prefill_chunk_tokens=16)).up(), 2)
    for name, prompt in (("a", 12), ("b", 12)):
        rig.submit(name, prompt=prompt)
    rig.done()
    rows = [(row.request, row.token_count) for row in rig.spec.rows]
    assert rows == [("r0", 1), ("r1", 1), ("a", 12), ("b", 4)]


@pytest.mark.parametrize(("prompts", "tokens"), [([15, 15, 15], 45), ([16, 16, 16], 48), ([16, 16, 17], 16)])
def test_mixed_burst_that_one_longer_step_starts_whole_is_started_whole(prompts: list[int], tokens: int) -> None:
    """One row decodes and three prompts wait: three chunks may ride at once, if that is all there is."""
    rig = decoding(Rig(config=SchedulerConfig(prefill_chunk_tokens=16)).up(), 1)
    for i, prompt in enumerate(prompts):
        rig.submit(f"p{i}", prompt=prompt)
    rig.done()
    assert sum(row.token_count for row in rig.spec.rows if row.request.startswith("p")) == tokens


def test_mixed_chunk_never_grows_past_its_bound_nor_under_a_stream_of_long_prompts() -> None:
    shape = shape_of(SchedulerConfig(prefill_chunk_tokens=16), paged_facts())
    assert isinstance(shape, Shape)
    assert budget_beside(shape, 1, 16, 128) == 128
    assert budget_beside(shape, 1, 16, 129) == 16
    assert budget_beside(shape, 8, 7, 16) == 16
    assert budget_beside(shape, 4, 8, 32) == 32


def test_no_decode_running_the_budget_is_the_whole_job() -> None:
    rig = Rig(config=SchedulerConfig(prefill_chunk_tokens=16), facts=paged_facts(job_tokens=64)).up()
    (spec,) = submits(rig.submit("r1", prompt=100))
    assert spec.rows[0].token_count == 64


def test_progress_counts_real_tokens_at_every_chunk_boundary() -> None:
    for prompt in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129):
        rig = decoding(Rig(config=SchedulerConfig(prefill_chunk_tokens=16)).up(), 1, new=100)
        rig.submit("new", prompt=prompt, new=2)
        counted = 0
        while "new" not in rig.finished:
            counted += sum(row.token_count for row in rig.spec.rows if row.request == "new")
            rig.done()
        assert counted == prompt + 1
        assert rig.finished["new"].usage.prompt_tokens == prompt


def test_alternating_at_most_one_prefill_between_two_decodes() -> None:
    rig = decoding(Rig(facts=paged_facts(proven=ALTERNATING)).up(), 1)
    for i in range(3):
        rig.submit(f"new{i}", prompt=60)
    tasks = []
    for _ in range(60):
        tasks.append(rig.spec.task)
        rig.done()
        if len(rig.finished) == 3:
            break
    pairs = list(pairwise(tasks))
    assert (Task.PREFILL, Task.PREFILL) not in pairs
    assert tasks.count(Task.PREFILL) >= 3
    assert set(rig.finished) == {"new0", "new1", "new2"}


def test_a_long_prefill_keeps_its_share_under_constant_decode_and_short_prefills() -> None:
    config = SchedulerConfig(short_prefill_max_tokens=8, medium_prefill_max_tokens=16, prefill_chunk_tokens=8)
    facts = paged_facts(lanes=8, units=512, context=1024, proven=ALTERNATING)
    rig = decoding(Rig(config=config, facts=facts).up(), 2, new=900)
    rig.submit("long", prompt=400, new=2)
    jobs, chunks, shorts = 0, 0, 0
    while "long" not in rig.finished and jobs < 2000:
        if rig.view.queues[1].depth == 0:
            shorts += 1
            rig.submit(f"s{shorts}", prompt=4, new=1)
        chunks += any(row.request == "long" for row in rig.spec.rows) and rig.spec.task is Task.PREFILL
        jobs += 1
        rig.done()
    assert "long" in rig.finished
    # decode:short:long = 8:4:1, so of 13 turns one is its own; decodes in between add at most one per prefill
    assert jobs <= 50 * (13 + 5) + 20
    assert chunks >= 50  # 400 tokens in chunks of at most 8; it also takes what a short one's turn leaves


def test_the_gap_between_a_request_s_tokens_is_bounded_by_one_prefill_step() -> None:
    rig = decoding(Rig(facts=paged_facts(proven=ALTERNATING)).up(), 1, new=200)
    gap, gaps = 0, []
    for i in range(80):
        rig.submit(f"p{i}", prompt=60, new=1)
        if "r0" in rig.rows:
            gaps.append(gap)
            gap = 0
        else:
            gap += 1
        rig.done()
    assert max(gaps) == 1


def test_all_lanes_full_and_one_prefill_waiting_decodes_go_on() -> None:
    rig = decoding(Rig(facts=paged_facts(lanes=4, units=64)).up(), 4, new=200)
    rig.submit("fifth", prompt=200, new=50)
    before = len(rig.emitted)
    for _ in range(10):
        rig.done()
    assert len(rig.emitted) == before + 40
    assert (rig.view.waiting_requests, rig.view.waiting_reason) == (1, "lanes")


def test_without_incremental_prefill_a_prompt_goes_whole() -> None:
    rig = decoding(Rig(facts=lane_facts()).up(), 1)
    rig.submit("new", prompt=60)
    seen: list[int] = []
    while "new" not in rig.finished:
        seen += [row.token_count for row in rig.spec.rows if row.request == "new" and row.first_position == 0]
        rig.done()
    assert seen == [60]


# --- batching window ------------------------------------------------------------------------------------


def windowed(**config: int) -> Rig:
    return Rig(config=SchedulerConfig(batching_window_ns=5 * MS, **config)).up()


def test_window_open_waits_and_its_end_always_sends() -> None:
    rig = windowed()
    assert submits(rig.at(10 * MS).submit("r1")) == []
    assert rig.engine.next_deadline_ns() == 15 * MS
    assert submits(rig.tick(14 * MS)) == []
    assert [row.request for row in submits(rig.tick(15 * MS))[0].rows] == ["r1"]


def test_window_whose_end_passes_while_the_board_takes_a_job_is_no_idle_board_and_its_tick_sends() -> None:
    """That a job was taken plans nothing, so between it and the tick that is due the window is over and still there."""
    config = SchedulerConfig(batching_window_ns=5 * MS, max_in_flight=2)
    rig = Rig(config, paged_facts(max_in_flight=2, proven=EVERYTHING | {"concurrent_jobs"})).up()
    rig.submit("a")
    assert len(submits(rig.tick(5 * MS))) == 1
    rig.at(6 * MS).submit("b")
    rig.at(12 * MS).send(JobSubmitted(1, 1))
    assert rig.engine.next_deadline_ns() == 11 * MS
    assert [[row.request for row in spec.rows] for spec in submits(rig.tick(12 * MS))] == [["b"]]


def test_window_a_full_batch_goes_at_once() -> None:
    rig = windowed()
    rig.at(10 * MS)
    for name in ("r1", "r2", "r3"):
        assert submits(rig.submit(name)) == []
    assert len(submits(rig.submit("r4"))[0].rows) == 4


def test_window_later_arrivals_do_not_move_its_end() -> None:
    rig = windowed()
    rig.at(10 * MS).submit("r1")
    rig.at(14 * MS).submit("r2")
    assert rig.engine.next_deadline_ns() == 15 * MS
    assert len(submits(rig.tick(15 * MS))[0].rows) == 2


def test_window_never_waits_past_what_the_earliest_deadline_leaves() -> None:
    rig = windowed()
    # one lane steps in 10 ms: at 12 ms is the last chance for a deadline at 22 ms
    rig.at(10 * MS).submit("r1", deadline=22 * MS)
    assert rig.engine.next_deadline_ns() == 12 * MS
    assert len(submits(rig.tick(12 * MS))) == 1


def test_window_of_a_cancelled_row_leaves_no_timer_behind() -> None:
    rig = windowed()
    rig.at(10 * MS).submit("r1")
    rig.send(Cancel("r1", GONE))
    assert rig.engine.next_deadline_ns() is None
    assert submits(rig.at(30 * MS).submit("r2")) == []
    assert rig.engine.next_deadline_ns() == 35 * MS


def test_window_is_not_opened_again_between_the_steps_of_a_lone_answer() -> None:
    rig = windowed()
    rig.at(10 * MS).submit("r1", new=5)
    rig.tick(15 * MS)
    for step in range(4):
        assert len(submits(rig.at((30 + 10 * step) * MS).done())) == 1
    rig.at(80 * MS).done()
    assert (rig.reason("r1"), rig.engine.next_deadline_ns()) == ("length", None)


def test_window_a_beginner_beside_a_running_answer_goes_at_its_next_step() -> None:
    rig = windowed()
    rig.at(10 * MS).submit("r1", new=9)
    rig.tick(15 * MS)
    assert submits(rig.at(20 * MS).submit("r2")) == []
    rig.at(30 * MS).done()
    assert rig.rows == ["r1", "r2"]


def test_window_is_not_opened_between_the_chunks_of_a_prompt() -> None:
    rig = windowed()
    rig.at(10 * MS).submit("r1", prompt=100)
    rig.tick(15 * MS)
    assert rig.spec.rows[0].token_count == 64
    assert len(submits(rig.at(50 * MS).done())) == 1


def test_window_that_nobody_could_join_is_not_waited_for() -> None:
    facts = paged_facts(units=16)  # 16 units of 16 tokens: one request to the end of the context takes them all
    rig = Rig(config=SchedulerConfig(batching_window_ns=5 * MS), facts=facts).up()
    assert len(submits(rig.at(10 * MS).submit("r1", new=None))) == 1


def test_window_beside_a_job_in_flight_waits_for_its_rows_to_join() -> None:
    facts = paged_facts(lanes=2, max_in_flight=2, proven=EVERYTHING | {"concurrent_jobs"})
    rig = Rig(config=SchedulerConfig(batching_window_ns=5 * MS, max_in_flight=2), facts=facts).up()
    rig.submit("a", new=9)
    rig.tick(5 * MS)
    assert submits(rig.at(6 * MS).submit("b")) == []
    rig.at(8 * MS).done()
    assert rig.rows == ["a", "b"]


# --- jobs in flight -------------------------------------------------------------------------------------


def two_jobs(**changes: bool) -> Rig:
    proven = EVERYTHING | {"concurrent_jobs"}
    config = SchedulerConfig(max_in_flight=2, **changes)
    return Rig(config=config, facts=paged_facts(max_in_flight=2, proven=proven)).up()


def test_one_in_flight_nothing_is_submitted_before_the_job_came_back() -> None:
    rig = Rig().up()
    rig.submit("r1")
    assert submits(rig.submit("r2")) == []
    assert len(submits(rig.done())) == 1


def test_two_in_flight_carry_different_lanes_in_alternating_banks() -> None:
    rig = two_jobs(fixed_engine=True)
    rig.submit("r1")
    rig.submit("r2")
    rig.submit("r3")
    first, second = rig.jobs.values()
    assert (first.bank, second.bank) == (Bank.PING, Bank.PONG)
    assert not {row.lane for row in first.rows} & {row.lane for row in second.rows}
    (third,) = submits(rig.done(first.job))
    assert third.bank is Bank.PING


def test_two_in_flight_without_a_fixed_engine_leave_the_bank_to_the_board() -> None:
    rig = two_jobs()
    rig.submit("r1")
    rig.submit("r2")
    assert {spec.bank for spec in rig.jobs.values()} == {Bank.AUTO}


def test_two_asked_one_offered_is_one() -> None:
    proven = EVERYTHING | {"concurrent_jobs"}
    rig = Rig(config=SchedulerConfig(max_in_flight=2), facts=paged_facts(max_in_flight=1, proven=proven)).up()
    rig.submit("r1")
    assert submits(rig.submit("r2")) == []


def test_execution_deadline_is_the_expected_time_times_the_factor_with_a_floor() -> None:
    config = SchedulerConfig(execution_deadline_factor=20, execution_deadline_floor_ns=50 * MS)
    rig = Rig(config=config).at(1000).up()
    rig.submit("r1", prompt=8)
    assert rig.spec.execution_deadline_ns == 1000 + 20 * 9 * MS  # 5 ms + 8 x 0.5 ms
    floor = Rig(config=SchedulerConfig()).up()
    floor.submit("r1", prompt=8)
    assert floor.spec.execution_deadline_ns == 10_000_000_000


# --- tenants --------------------------------------------------------------------------------------------


def run_tenants(weights: dict[str, int], rounds: int, facts: SessionFacts | None = None) -> Counter[str]:
    """Every tenant always has three requests waiting; who was served how many tokens of cost."""
    policies = {name: TenantPolicy(weight=weight) for name, weight in weights.items()}
    rig = Rig(config=SchedulerConfig(tenants=policies, tenant_lane_share_percent=100), facts=facts or paged_facts())
    rig.up()
    served: Counter[str] = Counter()
    number = 0
    owner: dict[str, str] = {}
    for _ in range(rounds):
        waiting = Counter(owner[r] for r in owner if r not in rig.finished)
        for name in weights:
            while waiting[name] < 7:
                number += 1
                owner[f"q{number}"] = name
                rig.submit(f"q{number}", prompt=8, new=4, tenant=name)
                waiting[name] += 1
        before = set(rig.finished)
        rig.done()
        for request in set(rig.finished) - before:
            served[owner[request]] += 8 + 4 * 4
    return served


def test_tenants_backlogged_get_their_weighted_share_within_one_request_each() -> None:
    served = run_tenants({"a": 1, "b": 3}, rounds=400)
    # service per weight may differ by one largest request of each, plus those still in lanes
    cost, lanes = 24, 4
    assert abs(served["a"] / 1 - served["b"] / 3) <= cost / 1 + cost / 3 + lanes * cost


def test_tenants_of_equal_weight_get_equal_service() -> None:
    served = run_tenants({"a": 1, "b": 1, "c": 1}, rounds=400)
    assert max(served.values()) - min(served.values()) <= 2 * 24 + 4 * 24


def test_an_idle_tenant_hoards_no_credit() -> None:
    rig = Rig(facts=paged_facts(lanes=1)).up()
    rig.submit("idle0", tenant="idle", new=1)
    rig.done()
    for i in range(20):
        rig.submit(f"busy{i}", tenant="busy", new=1)
        rig.done()
    for i in range(4):
        rig.submit(f"busy_late{i}", tenant="busy", new=1)
        rig.submit(f"idle_late{i}", tenant="idle", new=1)
    order = []
    for _ in range(8):
        order += rig.rows
        rig.done()
    # after twenty turns of the other, the idle one still takes turns with it
    assert {name.rstrip("0123456789") for name in order[:3]} == {"busy_late", "idle_late"}
    assert order[:8].count("idle_late0") == 1


def test_one_huge_prompt_does_not_delay_the_others_beyond_their_share() -> None:
    config = SchedulerConfig(prefill_chunk_tokens=16, long_prefill_weight=1)
    rig = Rig(config=config, facts=paged_facts(lanes=4, units=256, context=1024)).up()
    rig.submit("huge", prompt=900, new=4, tenant="whale")
    rig.submit("small", prompt=8, new=4, tenant="minnow")
    jobs = 0
    while "small" not in rig.finished:
        jobs += 1
        rig.done()
    assert jobs <= 6
    assert "huge" not in rig.finished


def test_lane_cap_a_tenant_holds_half_the_lanes_while_another_waits() -> None:
    rig = Rig().up()
    for i in range(6):
        rig.submit(f"big{i}", tenant="big", new=50)
    assert rig.view.running_requests == 4  # nobody else: all lanes
    for i in range(2):
        rig.submit(f"small{i}", tenant="small", new=50)
    for name in ("big0", "big1"):
        rig.send(Cancel(name, GONE))
    for _ in range(4):
        rig.done()
    tenants = Counter(row.request.rstrip("0123456789") for row in rig.spec.rows)
    assert tenants == {"big": 2, "small": 2}


def test_lane_cap_yields_when_nobody_else_is_ready() -> None:
    rig = Rig().up()
    for i in range(4):
        rig.submit(f"big{i}", tenant="big", new=50)
    for _ in range(3):
        rig.done()
    assert len(rig.spec.rows) == 4


def test_tenant_active_limit_holds_only_that_tenant() -> None:
    config = SchedulerConfig(tenants={"one": TenantPolicy(max_active_requests=1)})
    rig = Rig(config=config).up()
    for i in range(3):
        rig.submit(f"one{i}", tenant="one", new=20)
    assert (rig.view.running_requests, rig.view.waiting_reason) == (1, "tenant_active_limit")
    rig.submit("other", tenant="other", new=20)
    assert rig.view.running_requests == 2


def test_long_prefills_are_capped_and_short_ones_pass_them() -> None:
    config = SchedulerConfig(short_prefill_max_tokens=8, medium_prefill_max_tokens=16)
    rig = Rig(config=config).up()
    rig.submit("long1", prompt=100)
    rig.submit("long2", prompt=100)
    assert (rig.view.running_requests, rig.view.waiting_reason) == (1, "long_prefill_limit")
    rig.submit("short", prompt=4)
    assert rig.view.running_requests == 2
    while rig.view.waiting_requests:
        rig.done()
    assert "long2" in rig.rows or rig.view.running_requests >= 2


def test_window_with_fewer_lanes_than_rows_is_full_when_the_lanes_are() -> None:
    facts = replace(paged_facts(lanes=4), lanes=2)
    rig = Rig(config=SchedulerConfig(batching_window_ns=5 * MS), facts=facts).up()
    assert submits(rig.submit("r1")) == []
    assert len(submits(rig.submit("r2"))) == 1


def test_mixed_a_whole_prompt_too_big_to_ride_takes_its_own_turn() -> None:
    proven = EVERYTHING - {"incremental_prefill"}
    rig = decoding(Rig(facts=paged_facts(proven=proven, job_tokens=64)).up(), 2)
    rig.submit("big", prompt=63, new=1)
    tasks = []
    while "big" not in rig.finished:
        rig.done()
        tasks.append(rig.spec.task)
    assert tasks.count(Task.PREFILL) == 1
    assert Task.MIXED not in tasks


def test_prefill_graph_is_the_shortest_that_takes_the_prompt() -> None:
    facts = lane_facts(row_tokens=64)
    short = replace(facts.graphs[-1], name="prefill_16", max_row_tokens=16, max_job_tokens=16)
    rig = Rig(facts=replace(facts, graphs=(*facts.graphs, short))).up()
    rig.submit("a", prompt=16, new=1)
    assert rig.spec.graph == "prefill_16"
    rig.done()
    rig.submit("b", prompt=17, new=1)
    assert rig.spec.graph == "prefill"
