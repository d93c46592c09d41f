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
from dataclasses import dataclass
from functools import partial

from calserve.core.engine import Engine
from calserve.core.events import Tick
from calserve.executor.audit import BoardAudit
from calserve.executor.awaiting import drive
from calserve.executor.clock import Clock
from calserve.executor.completion import Completed, Stray, SubmittedJob, completion_step
from calserve.executor.engine_step import EngineSteps, Message, Ways
from calserve.executor.lifecycle import LifecycleOrder, LifecycleSteps, OpenPackage
from calserve.executor.messages import Outlet, Recorder
from calserve.runtime.contract import Board, LoadOptions

_log = logging.getLogger(__name__)

# Exit code when an invariant breaks: sysexits' EX_SOFTWARE.
EXIT_BROKEN_INVARIANT = 70
# How long an overdue job is waited on between two looks; nothing depends on its value.
_WAIT_AGAIN_NS = 1_000_000_000


JobQueue = queue.SimpleQueue[SubmittedJob | None]


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
        self._jobs: dict[tuple[str, int], JobQueue] = {}  # by (session, generation); the engine thread's
        self._threads: list[threading.Thread] = []
        self._is_closing = threading.Event()
        self._steps = EngineSteps(
            parts.engine,
            parts.outlet,
            Ways(
                to_completion=lambda job: self._jobs[job.spec.session, job.spec.generation].put(job),
                open_completion=self._open_completion,
                close_completion=lambda name, generation: self._jobs.pop((name, generation)).put(None),
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
        self._start_thread("engine", self._run_engine)
        self._start_thread("lifecycle", self._run_lifecycle)

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
        for thread in self._threads:  # the engine's first: nothing is handed to the others after it
            thread.join(max(0.0, ends - time.monotonic()))
            for jobs in tuple(self._jobs.values()):
                jobs.put(None)
        return not any(thread.is_alive() for thread in self._threads)

    def _start_thread(self, name: str, body: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _open_completion(self, name: str, generation: int) -> None:
        jobs: JobQueue = queue.SimpleQueue()
        self._jobs[name, generation] = jobs
        self._start_thread(f"completion-{name}-{generation}", partial(self._run_completion, jobs))

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

    def _run_completion(self, jobs: JobQueue) -> None:
        clock = self._parts.clock
        while (job := jobs.get()) is not None:
            timeout = max(0, job.spec.execution_deadline_ns - clock())
            while not self._is_closing.is_set():
                code, status = job.session.wait(job.ticket, timeout)
                was_overdue = job.is_overdue
                outcome = completion_step(job, code, status, clock())
                if isinstance(outcome, Completed):
                    self._inbox.put(outcome)
                    break
                if isinstance(outcome, Stray):
                    self._inbox.put(outcome.event)
                    continue
                if not was_overdue:
                    self._inbox.put(outcome)
                timeout = _WAIT_AGAIN_NS

    def _run_lifecycle(self) -> None:
        while (order := self._orders.get()) is not None:
            self._inbox.put(drive(self._lifecycle.take(order)))
