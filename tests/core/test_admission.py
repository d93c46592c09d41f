"""Who is refused, with the limit and the value given; who waits, and for what."""

from __future__ import annotations

import pytest
from core_rig import MS, Rig, lane_facts, paged_facts, submits

from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.events import Cancel, CancelCause, KvReleased, Load, Submit, Unload
from calserve.core.outcomes import FaultClass


def test_too_long_names_the_context_and_the_sum() -> None:
    rig = Rig(facts=paged_facts(context=256)).up()
    rig.submit("r1", prompt=250, new=7)
    assert rig.refusal("r1") == ("too_long", 256, 257)
    rig.submit("r2", prompt=250, new=6)
    assert "r2" not in rig.finished


def test_a_prompt_that_leaves_no_room_for_a_token_is_too_long_also_without_a_limit() -> None:
    rig = Rig(facts=paged_facts(context=256)).up()
    rig.submit("full", prompt=256, new=None)
    assert rig.refusal("full") == ("too_long", 256, 257)
    rig.submit("over", prompt=300, new=None)
    assert rig.refusal("over") == ("too_long", 256, 301)
    rig.submit("most", prompt=255, new=None)
    assert "most" not in rig.finished


def test_larger_than_the_kv_pool_names_the_pool_and_later_requests_go_on() -> None:
    rig = Rig(facts=paged_facts(units=6, unit_tokens=16, context=256)).up()
    rig.submit("big", prompt=90, new=7)
    assert rig.refusal("big") == ("too_large_for_kv", 96, 97)
    assert len(submits(rig.submit("small", prompt=8))) == 1


def test_without_a_limit_a_small_pool_bounds_the_output() -> None:
    rig = Rig(facts=paged_facts(units=2, unit_tokens=16, context=256)).up()
    rig.submit("r1", prompt=30, new=None)
    rig.done()
    rig.done()
    assert (rig.reason("r1"), rig.finished["r1"].usage.completion_tokens) == ("length", 2)


def test_a_whole_prompt_longer_than_a_row_is_refused_with_the_row() -> None:
    rig = Rig(facts=lane_facts(context=64, row_tokens=32)).up()
    rig.submit("r1", prompt=33, new=2)
    assert rig.refusal("r1") == ("too_long", 32, 33)


def test_a_lone_request_as_large_as_everything_runs_to_its_end() -> None:
    rig = Rig(facts=paged_facts(units=16, unit_tokens=16, context=256)).up()
    rig.submit("r1", prompt=200, new=56)
    while rig.jobs:
        rig.done()
    assert (rig.reason("r1"), rig.finished["r1"].usage.completion_tokens) == ("length", 56)


@pytest.mark.parametrize(("prompt", "new", "given"), [(0, 4, 0), (-3, 4, -3), (4, 0, 0), (4, -1, -1)])
def test_numbers_no_model_takes_are_invalid(prompt: int, new: int, given: int) -> None:
    rig = Rig().up()
    rig.submit("r1", prompt=prompt, new=new)
    assert rig.refusal("r1") == ("invalid", 1, given)
    assert rig.finished["r1"].usage.prompt_tokens == max(0, prompt)


def full(rig: Rig, lanes: int = 4) -> Rig:
    for i in range(lanes):
        rig.submit(f"lane{i}", new=100, prompt=8, tenant="full")
    return rig


def test_queue_full_by_requests() -> None:
    rig = full(Rig(config=SchedulerConfig(max_waiting_requests=2)).up())
    rig.submit("w1")
    rig.submit("w2")
    rig.submit("w3")
    assert rig.refusal("w3") == ("queue_full", 2, 3)
    assert rig.view.waiting_requests == 2


def test_queue_full_by_tokens() -> None:
    rig = full(Rig(config=SchedulerConfig(max_waiting_prompt_tokens=100)).up())
    rig.submit("w1", prompt=60)
    rig.submit("w2", prompt=41)
    assert rig.refusal("w2") == ("queue_tokens_full", 100, 101)
    rig.submit("w3", prompt=40)
    assert rig.view.waiting_prompt_tokens == 100


def test_tenant_queue_full_by_requests_and_by_tokens_leaves_others_alone() -> None:
    policy = TenantPolicy(max_waiting_requests=2, max_waiting_prompt_tokens=50)
    rig = full(Rig(config=SchedulerConfig(tenants={"t": policy})).up())
    rig.submit("w1", prompt=30)
    rig.submit("w2", prompt=21)
    assert rig.refusal("w2") == ("tenant_queue_full", 50, 51)
    rig.submit("w3", prompt=10)
    rig.submit("w4", prompt=1)
    assert rig.refusal("w4") == ("tenant_queue_full", 2, 3)
    rig.submit("w5", prompt=60, tenant="other")
    assert "w5" not in rig.finished


def test_a_full_queue_refuses_ten_thousand_and_keeps_nothing_of_them() -> None:
    rig = full(Rig(config=SchedulerConfig(max_waiting_requests=2), check=False).up())
    for i in range(10_000):
        rig.submit(f"w{i}", tenant=f"tenant{i}")
    roster = rig.engine.supervisor.sessions["s"].worker.roster
    assert (len(roster.requests), len(roster.clock.tenants)) == (6, 3)
    assert len(roster.deadlines) <= 6
    assert rig.counters["finished_refused"] == 9_998


def test_worst_case_is_reserved_so_that_an_admitted_request_never_lacks_room() -> None:
    rig = Rig(facts=paged_facts(units=8, unit_tokens=16)).up()
    rig.submit("r1", prompt=8, new=56)  # 64 tokens, 4 units
    rig.submit("r2", prompt=8, new=57)  # 65 tokens, 5 units
    assert (rig.view.running_requests, rig.view.waiting_reason) == (1, "kv_units")
    assert rig.view.kv_units_held == 1
    rig.submit("r3", prompt=8, new=50)
    assert rig.view.waiting_requests == 2  # nobody overtakes the head for lack of room
    while rig.jobs:
        rig.done()
    assert {rig.reason(name) for name in ("r1", "r2", "r3")} == {"length"}


def test_a_freed_lane_is_filled_in_the_same_call() -> None:
    rig = full(Rig().up())
    rig.submit("next", prompt=8)
    rig.done()
    rig.send(Cancel("lane0", CancelCause.ASKED))
    assert rig.view.waiting_requests == 1
    commands = rig.done()
    assert "next" in [row.request for row in submits(commands)[0].rows]
    assert rig.view.waiting_requests == 0


def test_unknown_model_is_refused() -> None:
    rig = Rig().up()
    rig.submit("r1", model="nobody")
    assert rig.refusal("r1") == ("unknown_model", 0, 0)


def test_a_model_coming_up_is_waited_for_within_the_same_bounds() -> None:
    rig = Rig(config=SchedulerConfig(max_waiting_requests=1))
    order = rig.send(Load("s", "m", "p"))
    rig.submit("r1")
    rig.submit("r2")
    assert rig.refusal("r2") == ("queue_full", 1, 2)
    assert rig.view.waiting_reason == "model"
    commands = rig.lifecycle(order)
    assert [row.request for row in submits(commands)[0].rows] == ["r1"]


def test_a_request_that_waited_for_the_model_and_does_not_fit_it_is_refused_then() -> None:
    rig = Rig()
    order = rig.send(Load("s", "m", "p"))
    rig.submit("big", prompt=300)
    rig.submit("small")
    rig.lifecycle(order)
    assert rig.refusal("big") == ("too_long", 256, 304)
    assert rig.rows == ["small"]


def test_a_draining_model_refuses_new_requests() -> None:
    rig = full(Rig().up())
    rig.send(Unload("s", 100 * MS))
    rig.submit("late")
    assert rig.refusal("late") == ("model_draining", 0, 0)


def test_two_copies_take_the_request_of_least_outstanding_cost() -> None:
    rig = Rig().up("s").up("s2")
    specs = submits(rig.submit("r1", prompt=100))
    specs += submits(rig.submit("r2", prompt=10))
    specs += submits(rig.submit("r3", prompt=10))
    assert [spec.session for spec in specs] == ["s", "s2"]
    waiting = {v.session: v.running_requests for v in rig.engine.snapshot(0).sessions}
    assert waiting == {"s": 1, "s2": 2}


def test_a_draining_copy_sends_new_requests_to_the_other() -> None:
    rig = Rig().up("s").up("s2")
    rig.submit("r1")
    rig.send(Unload("s", 100 * MS))
    assert submits(rig.submit("r2"))[0].session == "s2"


def test_a_board_without_room_is_waited_for_not_polled() -> None:
    rig = Rig().up()
    rig.submit("r1", new=50)
    rig.done()
    rig.submit("r2", prompt=9, new=50)
    rig.done()
    assert rig.rows == ["r1", "r2"]
    commands = rig.unprepared(FaultClass.TRANSIENT, stage="kv")
    assert [row.request for row in submits(commands)[0].rows] == ["r1"]
    assert (rig.view.waiting_requests, rig.view.waiting_reason) == (1, "kv_released")
    for _ in range(5):
        rig.done()
    assert rig.rows == ["r1"]
    rig.send(KvReleased("s"))
    rig.done()
    assert rig.rows == ["r1", "r2"]
    assert [row.first_position for row in rig.spec.rows][1] == 0


def test_a_board_without_room_is_waited_for_until_the_deadline() -> None:
    rig = Rig().up()
    rig.submit("r1", deadline=50 * MS)
    rig.unprepared(FaultClass.TRANSIENT, stage="kv")
    assert rig.engine.next_deadline_ns() == 50 * MS
    rig.tick(50 * MS)
    assert (rig.reason("r1"), rig.jobs) == ("deadline", {})


def test_a_live_name_used_again_changes_nothing_but_a_counter() -> None:
    rig = Rig().up()
    rig.submit("r1")
    assert rig.send(Submit("r1", "t", "m", 8, 4, 0)) == []
    assert (rig.counters["duplicate_submits"], rig.counters["submitted"]) == (1, 1)
    while rig.jobs:
        rig.done()
    assert rig.reason("r1") == "length"
