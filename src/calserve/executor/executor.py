"""Threads around the steps of one board.

Owns the inbox, the order queue, one job queue per session, and the threads that block on them. A thread body
decides nothing: it blocks, then calls a step with what the blocking call returned.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

from calserve.core.engine import Engine
from calserve.core.events import Tick
from calserve.executor.audit import BoardAudit
from calserve.executor.awaiting import drive
from calserve.executor.clock import Clock
from calserve.executor.completion import (
    Completed,
    GivenUp,
    Stray,
    SubmittedJob,
    completion_step,
    first_wait,
    next_wait,
)
from calserve.executor.engine_step import EngineSteps, Message, Ways
from calserve.executor.lifecycle import LifecycleOrder, LifecycleSteps, OpenPackage
from calserve.executor.messages import Outlet, Recorder
from calserve.runtime.contract import Board, LoadOptions

_log = logging.getLogger(__name__)

# Exit code when an invariant breaks: sysexits' EX_SOFTWARE.
EXIT_BROKEN_INVARIANT = 70


@dataclass(frozen=True, slots=True)
class _Completion:
    """What a completion thread is told by: its jobs, None for its end, and whether its session is gone."""

    jobs: queue.SimpleQueue[SubmittedJob | None] = field(default_factory=queue.SimpleQueue)
    is_closed: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """What one board's executor is made of; put together by the composition root."""

    board: Board
    engine: Engine
    outlet: Outlet
    open_package: OpenPackage
    options: Mapping[str, LoadOptions]  # by session name
    clock: Clock
    recorders: Many[Recorder] = ()


class BoardExecutor:
    """One board's threads. `post` may be called from any thread; everything else from the one that made it."""

    def __init__(self, parts: ExecutorParts) -> None:
        self._parts = parts
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[LifecycleOrder | None] = queue.SimpleQueue()
        self._completions: dict[tuple[str, int], _Completion] = {}  # by (session, generation); the engine thread's
        self._threads: list[threading.Thread] = []  # the engine's too, from its start on
        self._engine_thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._steps = EngineSteps(
            parts.engine,
            parts.outlet,
            Ways(
                to_completion=lambda job: self._completions[job.spec.session, job.spec.generation].jobs.put(job),
                open_completion=self._open_completion,
                close_completion=self._close_completion,
                to_lifecycle=self._orders.put,
            ),
            parts.clock,
            parts.recorders,
            jobs_kept=max(options.max_in_flight for options in parts.options.values()),
            audit=BoardAudit(parts.board),
        )
        self._lifecycle = LifecycleSteps(parts.board, parts.open_package, parts.options, parts.clock)

    def start(self) -> None:
        """Start every thread. Daemons: a job that never completes must not keep a process that was told to end."""
        self._start_thread("lifecycle", self._run_lifecycle)
        self._engine_thread = self._start_thread("engine", self._run_engine)

    def post(self, message: Message) -> None:
        """Put a message in the engine's inbox. Never blocks; what was put is no longer the caller's."""
        self._inbox.put(message)

    def buffer_counts(self) -> tuple[int, int]:
        """Sets of host buffers leased and quarantined now. From any thread: it reads what the engine thread counts."""
        counts = self._steps.buffer_counts()
        return counts.leased, counts.quarantined

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the threads; True when all of them ended. Sessions are core's to release before this.

        False when one is held by a board that does not answer: the process can then only be left, not unwound.
        """
        self._is_closing.set()
        self._orders.put(None)
        self._inbox.put(None)
        ends = time.monotonic() + timeout_s
        if self._engine_thread is not None:  # first: it alone starts others, and hands work to them
            self._engine_thread.join(max(0.0, ends - time.monotonic()))
        for completion in tuple(self._completions.values()):
            completion.jobs.put(None)
        threads = tuple(self._threads)
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        self._leave_unended()
        return True

    def _leave_unended(self) -> None:
        """Memory of jobs that were never called over, and of those whose end nobody took from the inbox any more."""
        self._steps.leave_unended()
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Completed | GivenUp):
                message.job.lease.leave()

    def _start_thread(self, name: str, body: Callable[[], None]) -> threading.Thread:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _open_completion(self, name: str, generation: int) -> None:
        completion = self._completions[name, generation] = _Completion()
        self._start_thread(f"completion-{name}-{generation}", partial(self._run_completion, completion))

    def _close_completion(self, name: str, generation: int) -> None:
        completion = self._completions.pop((name, generation))
        completion.is_closed.set()
        completion.jobs.put(None)

    def _guard(self, body: Callable[[], None]) -> None:
        """A broken invariant on any thread ends the process's service, loudly: nothing goes on half-true."""
        try:
            body()
        except Exception:
            _log.critical("%s thread stopped", threading.current_thread().name, exc_info=True)
            self._parts.outlet.exit(EXIT_BROKEN_INVARIANT, "an internal invariant broke; see the log")

    def _run_engine(self) -> None:
        steps = self._steps
        while True:
            timeout = steps.wait_timeout_ns()
            message: Message | None
            try:
                message = self._inbox.get(timeout=None if timeout is None else timeout / 1e9)
            except queue.Empty:
                message = Tick()
            if message is None:
                return
            steps.take(message)

    def _run_completion(self, completion: _Completion) -> None:
        clock = self._parts.clock
        while (job := completion.jobs.get()) is not None:
            wait = first_wait(job, clock())
            # A closing process waits for nobody; what is in flight then stays with the board.
            while not self._is_closing.wait(wait.pause_ns / 1e9):
                until = clock() + wait.timeout_ns
                code, status = job.session.wait(job.ticket, wait.timeout_ns)
                was_overdue, now = job.is_overdue, clock()
                outcome = completion_step(job, code, status, now)
                if isinstance(outcome, Stray):
                    self._inbox.put(outcome.event)
                elif isinstance(outcome, Completed) or not was_overdue:
                    self._inbox.put(outcome)
                again = next_wait(job, outcome, until, now, completion.is_closed.is_set())
                if again is None:
                    if not isinstance(outcome, Completed):
                        self._inbox.put(GivenUp(job))
                    break
                wait = again
            else:
                job.lease.leave()

    def _run_lifecycle(self) -> None:
        while (order := self._orders.get()) is not None:
            self._inbox.put(drive(self._lifecycle.take(order)))
