"""The buffer pool alone: what makes two sets the same, how many there are, and what never comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from calserve.core.job import Bank, Task
from calserve.core.outcomes import Failure, FaultClass
from calserve.core.states import BufferEvent, BufferState, IllegalTransition
from calserve.executor.pool import QUARANTINE_LIMIT, BufferCounts, BufferPool, Lease, PoolKey
from calserve.runtime.sim import PROFILES
from calserve.runtime.sim.package import decode_graph

GRAPH = decode_graph(PROFILES["assumed-lanes"], 4)
KEY = PoolKey(1, "g", Task.DECODE, Bank.AUTO, 4)


@dataclass(eq=False)
class Buffers:
    """Arrays of the contract, and the codes of cleaning them."""

    undo: int = 0
    scrub: int = 0
    done: list[str] = field(default_factory=list)

    def host(self, name: str) -> np.ndarray[Any, Any]:
        tensor = {**GRAPH.inputs, **GRAPH.outputs}[name]
        return np.zeros(tensor.shape, tensor.dtype)

    def undo_slices(self) -> int:
        self.done.append("undo")
        return self.undo

    def reset(self) -> int:
        self.done.append("reset")
        return self.scrub


@dataclass
class Session:
    """Hands out buffers until `code` says no."""

    code: int = 0
    made: list[Buffers] = field(default_factory=list)
    graphs: dict[str, object] = field(default_factory=lambda: {"g": GRAPH, "h": GRAPH})

    def allocate(self, graph: str, bank: Bank) -> tuple[int, Buffers | None]:
        if self.code:
            return self.code, None
        self.made.append(Buffers())
        return 0, self.made[-1]


def pool_of(limit: int = 1) -> tuple[BufferPool, Session]:
    session = Session()
    return BufferPool(session, limit), session  # type: ignore[arg-type]


def taken(pool: BufferPool, key: PoolKey = KEY) -> Lease:
    lease = pool.take(key)
    assert isinstance(lease, Lease), lease
    return lease


def refused(pool: BufferPool, key: PoolKey = KEY) -> Failure:
    failure = pool.take(key)
    assert isinstance(failure, Failure)
    assert failure.stage == "buffers"
    return failure


def test_pool_gives_the_same_set_again_for_the_same_key_and_cleans_it_between() -> None:
    pool, session = pool_of()
    lease = taken(pool)
    assert pool.give_back(lease) == 0
    assert session.made[0].done == ["undo", "reset"]
    assert taken(pool) is lease
    assert len(session.made) == 1


@pytest.mark.parametrize(
    "other",
    [{"generation": 2}, {"graph": "h"}, {"task": Task.PREFILL}, {"bank": Bank.PONG}, {"profile": 8}],
    ids=lambda field: next(iter(field)),
)
def test_pool_set_of_another_key_is_another_set(other: dict[str, Any]) -> None:
    pool, session = pool_of()
    pool.give_back(taken(pool))
    taken(pool, replace(KEY, **other))
    assert len(session.made) == 2


def test_pool_with_all_sets_of_a_key_in_use_is_busy() -> None:
    pool, _ = pool_of(limit=2)
    first, _ = taken(pool), taken(pool)
    failure = refused(pool)
    assert (failure.code, failure.fault) == (17, FaultClass.TRANSIENT)
    pool.give_back(first)
    assert taken(pool) is first


def test_pool_counts_every_set_once_wherever_it_is() -> None:
    pool, session = pool_of(limit=3)
    ready, out, bad = taken(pool), taken(pool), taken(pool)
    assert pool.counts() == BufferCounts(3, 3, 0)
    pool.give_back(ready)
    session.made[2].scrub = 4
    assert pool.give_back(bad) == 4
    assert pool.counts() == BufferCounts(allocated=3, leased=1, quarantined=1)
    out.step(BufferEvent.SUBMIT)
    pool.quarantine(out)
    assert pool.counts() == BufferCounts(allocated=3, leased=0, quarantined=2)
    assert (bad.state, out.state) == (BufferState.QUARANTINED, BufferState.QUARANTINED)


@pytest.mark.parametrize("at", ["undo", "scrub"])
def test_pool_set_that_cannot_be_cleaned_makes_room_for_a_new_one_and_never_returns(at: str) -> None:
    pool, session = pool_of()
    lease = taken(pool)
    setattr(session.made[0], at, 24)
    assert pool.give_back(lease) == 24
    assert session.made[0].done == (["undo"] if at == "undo" else ["undo", "reset"])
    fresh = taken(pool)
    assert fresh.buffers is not lease.buffers


def test_pool_that_lost_too_many_sets_asks_for_a_new_generation() -> None:
    pool, session = pool_of()
    for made in range(QUARANTINE_LIMIT + 1):
        lease = taken(pool)
        session.made[made].scrub = 4
        pool.give_back(lease)
    failure = refused(pool)
    assert (failure.code, failure.fault) == (24, FaultClass.DEVICE)


def test_pool_set_given_back_twice_or_while_submitted_stops_loudly_and_is_not_touched() -> None:
    pool, session = pool_of()
    lease = taken(pool)
    lease.step(BufferEvent.SUBMIT)
    with pytest.raises(IllegalTransition):
        pool.give_back(lease)
    assert session.made[0].done == []
    assert pool.counts() == BufferCounts(1, 1, 0)
    lease.step(BufferEvent.RETIRE)
    pool.give_back(lease)
    with pytest.raises(IllegalTransition):
        pool.give_back(lease)
    assert session.made[0].done == ["undo", "reset"]
    assert pool.counts() == BufferCounts(1, 0, 0)


def test_pool_tells_the_boards_own_code_when_it_allocates_nothing() -> None:
    pool, session = pool_of()
    session.code = 1
    assert (refused(pool).code, pool.counts()) == (1, BufferCounts())
