"""1,000 requests on OS threads with delays, cancels, deadlines and a shutdown (seed 002, section 17.3)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness import prompt
from threaded_rig import PATIENCE_S, Threaded, fast_profile, threaded_rig

from calserve.core.commands import Command
from calserve.core.config import SchedulerConfig
from calserve.core.events import Cancel, CancelCause, Event, JobDone, JobFailed, Shutdown
from calserve.core.outcomes import FinishReason
from calserve.runtime.contract import Code, JobStatus, KvMirror, Session, Ticket
from calserve.runtime.sim import SimBoard, WallClock, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

REQUESTS, SUBMITTERS = 1000, 8
DELAY_MAX_S = 0.003


@dataclass(slots=True)
class CheckedKv:
    """The device's view of KV, that is released by whoever holds it and once."""

    inner: KvMirror
    held: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    released: int = 0

    def can_allocate(self, units: int) -> bool:
        return self.inner.can_allocate(units)

    def apply(self, lane: int, units: tuple[int, ...], length: int) -> Code:
        code = self.inner.apply(lane, units, length)
        if code == 0:
            self.held.add(lane)
        return code

    def release(self, lane: int) -> Code:
        if lane not in self.held:
            self.wrong.append(f"lane {lane} was released and not held")
        self.held.discard(lane)
        self.released += 1
        return self.inner.release(lane)


class DelayedSession:
    """A session whose `wait` returns late by a time drawn from a seed, and that counts how each ticket ended."""

    def __init__(self, inner: Session, seed: int) -> None:
        self._inner = inner
        self._chance = random.Random(seed)
        self._never = threading.Event()
        self.kv = CheckedKv(inner.kv)
        self.delivered: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        answer = self._inner.wait(ticket, timeout_ns)
        self._never.wait(self._chance.random() * DELAY_MAX_S)
        if answer[0] == 0:
            self.delivered[ticket.number] += 1
        return answer


class DelayedBoard(SimBoard):
    """Hands out delayed sessions."""

    def __init__(self, seed: int) -> None:
        super().__init__(fast_profile(), clock=WallClock())
        self.seed = seed
        self.sessions: list[DelayedSession] = []

    def configure(self, *given: Any) -> Any:
        code, session = super().configure(*given)
        if session is not None:
            session = DelayedSession(session, self.seed)  # type: ignore[assignment]
            self.sessions.append(session)  # type: ignore[arg-type]
        return code, session


class Ends:
    """How often each job came home, as the record has it."""

    def __init__(self) -> None:
        self.jobs: Counter[int] = Counter()

    def __call__(self, now_ns: int, event: Event, commands: Many[Command]) -> None:
        if isinstance(event, JobDone | JobFailed):
            self.jobs[event.job] += 1


def submit_share(threads: Threaded, first: int, seed: int, prompts: Mapping[str, tuple[list[int], int]]) -> None:
    """One submitter's requests; some are cancelled, once or twice, some have hardly any time."""
    chance = random.Random(f"{seed}/{first}")
    pause = threading.Event()
    for i in range(first, REQUESTS, SUBMITTERS):
        name = f"r{i}"
        ids, count = prompts[name]
        hurried = chance.random() < 0.1
        deadline = time.monotonic_ns() + chance.randrange(1, 200) * 1_000_000 if hurried else None
        threads.submit(name, ids, count, deadline)
        while chance.random() < 0.2:
            gone = f"r{chance.randrange(first, i + 1)}"
            threads.executor.post(Cancel(gone, CancelCause.CLIENT_GONE))
        pause.wait(chance.random() * 2 * DELAY_MAX_S)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 2])
def test_1000_requests_with_delays_cancels_deadlines_and_a_shutdown_end_once_each(in_flight: int) -> None:
    seed, package = 17_003, sim_package(fast_profile())
    chance = random.Random(seed)
    prompts = {
        f"r{i}": (prompt(package, chance.randrange(1, 40), salt=i), chance.randrange(1, 12)) for i in range(REQUESTS)
    }
    board, ends = DelayedBoard(seed), Ends()
    config = SchedulerConfig(max_waiting_requests=REQUESTS, max_in_flight=in_flight)
    with threaded_rig(board, package, config, (ends,)) as threads:
        submitters = [
            threading.Thread(target=submit_share, args=(threads, first, seed, prompts)) for first in range(SUBMITTERS)
        ]
        for submitter in submitters:
            submitter.start()
        threads.wait_endings(REQUESTS // 2)
        threads.executor.post(Shutdown(time.monotonic_ns() + 20 * 10**9))
        threads.wait_endings(REQUESTS - REQUESTS // 2)
        for submitter in submitters:
            submitter.join(PATIENCE_S)
        assert threads.outlet.exited.wait(PATIENCE_S)
        assert threads.executor.close()
    told = threads.outlet.told
    assert len(told) == REQUESTS
    assert Counter(got.terminals for got in told.values()) == {1: REQUESTS}
    assert not threads.outlet.ended.acquire(blocking=False)
    reasons = Counter(got.ending.reason for got in told.values() if got.ending is not None)
    assert set(reasons) <= {FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.REFUSED}
    assert min(reasons[reason] for reason in (FinishReason.LENGTH, FinishReason.CANCELLED)) > 20
    assert reasons[FinishReason.REFUSED] > 0, "the shutdown must come in the middle"
    for name, got in told.items():
        ids, count = prompts[name]
        right = greedy_tokens(ids, count, vocab=package.vocab_size)
        assert got.tokens == right[: len(got.tokens)], name
        assert got.ending is not None
        assert got.ending.reason is not FinishReason.LENGTH or got.tokens == right, name
    (session,) = board.sessions
    assert set(ends.jobs.values()) == {1}
    assert set(session.delivered.values()) == {1}
    assert session.kv.wrong == []
    assert session.kv.held == set()
    assert [code for code, _ in threads.outlet.exits] == [0]
