"""How long a job is waited on: one function, for the threads and for the simulation."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fault_rig import Make, ids_of

from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import JobFailed, JobOverdue
from calserve.core.job import Bank, JobSpec, Task
from calserve.core.outcomes import Failure, FaultClass
from calserve.executor.completion import (
    GIVE_UP_NS,
    PAUSE_NS,
    WAIT_AGAIN_NS,
    Completed,
    GivenUp,
    NextWait,
    Stray,
    SubmittedJob,
    first_wait,
    next_wait,
)
from calserve.executor.executor import BoardExecutor, ExecutorParts, _Completion
from calserve.runtime.contract import JobStatus, LoadOptions, StatusKind, Ticket
from calserve.runtime.sim import SimBoard, VirtualClock

S = 1_000_000_000
SPEC = JobSpec(9, 2, "s", "g", Task.DECODE, Bank.AUTO, 10 * S, ())
STRAY = Stray(JobFailed(1, 1, Failure("status", 20, FaultClass.UNKNOWN)))
OVERDUE = JobOverdue(9, 2)


LEASE = SimpleNamespace(leave=lambda: None)  # what a closing process does with it is not looked at here


def job(session: Any = None, is_overdue: bool = False) -> SubmittedJob:
    return SubmittedJob(SPEC, session, cast(Any, None), Ticket(2, 9, 2), cast(Any, LEASE), [], is_overdue)


def test_first_wait_ends_at_the_execution_deadline_or_at_once() -> None:
    assert first_wait(job(), 4 * S) == NextWait(6 * S)
    assert first_wait(job(), 11 * S) == NextWait(0)


@pytest.mark.parametrize(
    ("outcome", "is_overdue", "until_s", "now_s", "expected"),
    [
        (STRAY, False, 10, 9, NextWait(1 * S)),  # not ten seconds again: a stray moves no deadline
        (STRAY, False, 10, 12, NextWait(0)),
        (STRAY, True, 12, 11, NextWait(WAIT_AGAIN_NS)),
        (OVERDUE, True, 10, 10, NextWait(WAIT_AGAIN_NS)),
        (OVERDUE, True, 10, 1, NextWait(WAIT_AGAIN_NS, PAUSE_NS)),  # said at once: no spinning
    ],
)
def test_next_wait_follows_from_the_outcome_and_the_deadline(
    outcome: Stray | JobOverdue, is_overdue: bool, until_s: int, now_s: int, expected: NextWait
) -> None:
    assert next_wait(job(is_overdue=is_overdue), outcome, until_s * S, now_s * S, is_closed=False) == expected


def test_next_wait_is_none_for_a_job_that_came_home() -> None:
    home = Completed(JobFailed(9, 2, Failure("wait", 18, FaultClass.DEVICE)), job(), 1)
    assert next_wait(job(), home, 10 * S, 5 * S, is_closed=False) is None


def test_job_of_a_session_that_is_gone_is_not_waited_on_for_ever() -> None:
    last = SPEC.execution_deadline_ns + GIVE_UP_NS
    for now, is_closed, is_over in ((last, True, False), (last + 1, True, True), (last + 1, False, False)):
        assert (next_wait(job(is_overdue=True), OVERDUE, now, now, is_closed) is None) is is_over


class Answers:
    """A session whose every wait takes `took_ns` and gives the same answer."""

    def __init__(self, took_ns: int, answer: tuple[int, JobStatus | None]) -> None:
        self.now_ns, self.took_ns, self.answer = 0, took_ns, answer
        self.asked: list[tuple[int, int]] = []

    def wait(self, _ticket: Ticket, timeout_ns: int) -> tuple[int, JobStatus | None]:
        self.asked.append((self.now_ns, timeout_ns))
        self.now_ns += min(self.took_ns, timeout_ns)
        return (13, None) if self.took_ns > timeout_ns else self.answer


def completion_loop(answers: Answers, looks: int) -> tuple[list[Any], list[float]]:
    """The thread's body, run here: what reached the inbox, and how long it slept before each of `looks` waits."""
    board = SimBoard(clock=VirtualClock())
    parts = ExecutorParts(
        board, Engine(SchedulerConfig()), cast(Any, None), cast(Any, None), {"s": LoadOptions((0, 1))},
        lambda: answers.now_ns,
    )  # fmt: skip
    executor = BoardExecutor(parts)
    pauses: list[float] = []

    def wait(timeout: float) -> bool:
        pauses.append(timeout)
        answers.now_ns += round(timeout * S)
        return len(pauses) > looks

    executor._is_closing = cast(Any, SimpleNamespace(wait=wait))
    completion = _Completion()
    completion.is_closed.set()
    completion.jobs.put(job(answers))
    completion.jobs.put(None)
    executor._run_completion(completion)
    board.close()
    return [executor._inbox.get_nowait() for _ in range(executor._inbox.qsize())], pauses


def test_strays_do_not_put_off_the_moment_a_job_counts_as_overdue() -> None:
    answers = Answers(9 * S, (0, JobStatus(Ticket(1, 1, 1), 1, StatusKind.DONE)))
    told, _ = completion_loop(answers, 3)
    assert answers.asked == [(0, 10 * S), (9 * S, S), (10 * S, WAIT_AGAIN_NS)]
    assert told[1] == JobOverdue(9, 2)


def test_board_that_calls_every_wait_a_timeout_at_once_is_asked_ten_times_a_second_and_then_no_more() -> None:
    answers = Answers(0, (13, None))
    told, pauses = completion_loop(answers, 10**6)
    assert pauses[:3] == [0, PAUSE_NS / S, PAUSE_NS / S]
    assert len(answers.asked) <= (SPEC.execution_deadline_ns + GIVE_UP_NS) // PAUSE_NS + 2
    assert told[0] == JobOverdue(9, 2)
    assert isinstance(told[-1], GivenUp)
    assert len(told) == 2


def test_threads_opened_while_the_executor_closes_are_joined_too(make: Make) -> None:
    """The engine still takes what came before the order to end; here that opens a completion thread."""
    rig = make()
    parts = ExecutorParts(
        rig.board, Engine(SchedulerConfig()), cast(Any, None), cast(Any, None), {"s0": LoadOptions((0, 1))},
        time.monotonic_ns,
    )  # fmt: skip
    executor = BoardExecutor(parts)
    take = executor._steps.take

    def opening(message: Any) -> None:
        assert message == "open"
        executor._open_completion("s0", 1)

    executor._steps = cast(Any, SimpleNamespace(take=opening, wait_timeout_ns=lambda: None, leave_unended=lambda: None))
    assert take is not None
    assert ids_of(rig)
    executor.post(cast(Any, "open"))
    executor.start()
    assert executor.close()
    assert [thread.name for thread in executor._threads if thread.is_alive()] == []
    assert ("s0", 1) in executor._completions
