"""Turns, the waiting line and fair virtual time, each alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.deadlines import SLACK, Deadlines
from calserve.core.fairness import SCALE, FairClock
from calserve.core.queues import Turns, WaitingLine
from calserve.core.request import Queue, Request, prefill_queue
from calserve.core.states import RequestEvent

ALL = [Queue.DECODE, Queue.SHORT, Queue.MEDIUM, Queue.LONG]


def request(clock: FairClock, name: str, prompt: int = 8, tenant: str = "t", deadline: int = 100) -> Request:
    queue = prefill_queue(SchedulerConfig(), prompt)
    return Request(name, clock.tenant(tenant), int(name[1:]), prompt, 4, 0, deadline, queue)


def test_turns_all_eligible_gives_8_4_2_1() -> None:
    turns = Turns(SchedulerConfig())
    picks = Counter(turns.pick(ALL) for _ in range(150))
    assert picks == {Queue.DECODE: 80, Queue.SHORT: 40, Queue.MEDIUM: 20, Queue.LONG: 10}


def test_turns_long_never_waits_longer_than_its_share() -> None:
    turns = Turns(SchedulerConfig())
    picks = [turns.pick(ALL) for _ in range(300)]
    at = [i for i, queue in enumerate(picks) if queue is Queue.LONG]
    gaps = [b - a for a, b in pairwise(at)]
    assert max(gaps) <= 15  # 8+4+2+1


def test_turns_one_eligible_takes_every_pick_and_owes_nothing_later() -> None:
    turns = Turns(SchedulerConfig())
    for _ in range(100):
        assert turns.pick([Queue.LONG]) is Queue.LONG
    picks = Counter(turns.pick([Queue.DECODE, Queue.LONG]) for _ in range(90))
    assert picks == {Queue.DECODE: 80, Queue.LONG: 10}


def test_prefill_queue_boundaries_are_the_seeds() -> None:
    lengths = (1, 512, 513, 4096, 4097)
    queues = [prefill_queue(SchedulerConfig(), n).value for n in lengths]
    assert queues == ["short", "short", "medium", "medium", "long"]


def test_line_long_prompts_stand_apart_and_counts_follow() -> None:
    clock, line = FairClock(SchedulerConfig()), WaitingLine()
    rows = [request(clock, "r1", 5000), request(clock, "r2", 10), request(clock, "r3", 20)]
    for row in rows:
        line.add(row)
    assert [r.name for r in line.heads()] == ["r1", "r2"]
    assert (line.requests, line.prompt_tokens, rows[0].tenant.waiting) == (3, 5030, 3)
    line.remove(rows[1])
    line.add(rows[1], in_front=True)
    assert [r.name for r in line.heads()] == ["r1", "r2"]
    for row in rows:
        line.remove(row)
    assert (line.requests, line.prompt_tokens, list(line), rows[0].tenant.waiting_tokens) == (0, 0, [], 0)


def test_virtual_finish_is_max_of_tenant_and_global_plus_cost_over_weight() -> None:
    clock = FairClock(SchedulerConfig(tenants={"b": TenantPolicy(weight=4)}))
    a, b = clock.tenant("a"), clock.tenant("b")
    assert clock.charge(a, 100) == 100 * SCALE
    assert clock.charge(b, 100) == 25 * SCALE
    assert clock.charge(a, 10) == 110 * SCALE
    assert clock.virtual == 100 * SCALE  # the start of the last one admitted


def test_an_idle_tenant_starts_at_the_global_time_not_at_its_old_one() -> None:
    clock = FairClock(SchedulerConfig())
    busy, idle = clock.tenant("busy"), clock.tenant("idle")
    clock.charge(idle, 1)
    for _ in range(50):
        clock.charge(busy, 100)
    clock.join(idle)
    start, _ = clock.tags(idle, 100)
    assert start == clock.virtual == 4900 * SCALE


def test_a_tenant_with_somebody_waiting_is_not_moved_to_the_global_time() -> None:
    """What was charged in advance and given back must not be lost: the global time runs ahead by it."""
    clock = FairClock(SchedulerConfig())
    early = clock.tenant("early")
    early.waiting = 1
    for _ in range(3):
        clock.charge(early, 100)
    for _ in range(3):
        clock.settle(early, charged=100, spent=10)
    clock.join(early)
    assert (clock.virtual, early.virtual) == (200 * SCALE, 30 * SCALE)


def test_settlement_refunds_what_was_not_spent_and_charges_what_was_more() -> None:
    clock = FairClock(SchedulerConfig(tenants={"a": TenantPolicy(weight=2)}))
    a = clock.tenant("a")
    clock.charge(a, 100)
    clock.settle(a, charged=100, spent=40)
    assert a.virtual == 20 * SCALE
    clock.settle(a, charged=40, spent=60)
    assert a.virtual == 30 * SCALE


def test_deadlines_a_storm_of_cancels_does_not_grow_the_heap() -> None:
    clock, deadlines = FairClock(SchedulerConfig()), Deadlines()
    survivor = request(clock, "r0", deadline=10_000)
    deadlines.add(survivor)
    for i in range(1, 5000):
        row = request(clock, f"r{i}", deadline=9_000 + i)
        deadlines.add(row)
        row.move(RequestEvent.CANCEL)
        deadlines.drop()
    assert len(deadlines) <= 2 + SLACK
    assert deadlines.next_ns() == 10_000
    assert deadlines.pop_expired(9_999) is None
    assert deadlines.pop_expired(10_000) is survivor
