"""One server process without its threads: the production steps, each run when its thread would run it.

Owns: what the threads own (inbox, order queue, job queues), and when each wakes. Must not know: clients, what is
right. Life: started on an open device; ends by `core`'s Exit, by an exception of a step, or killed from outside, and
then nothing of it runs any more.

The bodies below stand for those of `executor.executor`: they block, then call a step with what the blocking call
returned. Between two steps anything else of the world may run; that is every interleaving there is, because steps
share nothing but queues and messages that move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import Tick
from calserve.core.outcomes import Failure
from calserve.core.snapshot import SessionView
from calserve.core.supervisor import EXIT_DONE
from calserve.executor.audit import BoardAudit
from calserve.executor.awaiting import Awaited as Answer
from calserve.executor.awaiting import AwaitJob
from calserve.executor.completion import (
    Completed,
    GivenUp,
    NextWait,
    Stray,
    SubmittedJob,
    completion_step,
    first_wait,
    next_wait,
)
from calserve.executor.engine_step import EngineSteps, Message, Ways
from calserve.executor.lifecycle import LifecycleDone, LifecycleOrder, LifecycleSteps
from calserve.executor.messages import Delivery, Ending, Recorder
from calserve.runtime.contract import BoardPackage, LoadOptions
from calserve.runtime.sim import SimBoard, SimDevice
from calserve.simulate.oddities import OddBoard, Oddities
from calserve.simulate.paced import BoardSession, Durations, PacedSession
from calserve.simulate.plan import Pace
from calserve.simulate.world import Wait, World

# How long slow work takes beside the jobs of a warm-up, by order: configuring and resetting take their profile's time.
_LIFECYCLE_NS = 30_000_000

Deliver = Callable[[Many[Delivery | Ending]], None]
_Steps = Generator[AwaitJob, Answer, LifecycleDone]


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """What a process is started with; the first half is the board's, the second who listens."""

    world: World
    device: SimDevice
    config: SchedulerConfig
    options: Mapping[str, LoadOptions]
    open_package: Callable[[str], BoardPackage | Failure]
    pace: Pace
    durations: Durations
    deliver: Deliver
    sessions_changed: Callable[[Many[SessionView]], None]
    ended: Callable[[int, str], None]
    recorders: Many[Recorder] = ()
    oddities: Oddities | None = None
    # full scans of the core's own invariants, every so many turns, and its counts after every other one; 0 for neither
    check_every: int = 0


@dataclass(slots=True)
class _Completion:
    """A completion thread: its queue and the job it waits for."""

    jobs: deque[SubmittedJob] = field(default_factory=deque)
    is_waiting: bool = False
    is_closed: bool = False


class ServerProcess:
    """Invariants: after it ended no step of it runs, whatever was still due."""

    def __init__(self, parts: ProcessParts) -> None:
        self.parts = parts
        self.is_alive = True
        self.board = SimBoard(device=parts.device) if parts.oddities is None else OddBoard(parts.device, parts.oddities)
        self.engine = Engine(parts.config)
        self._inbox: deque[Message] = deque()
        self._orders: deque[LifecycleOrder] = deque()
        self._is_engine_due = False
        self._is_lifecycle_busy = False
        self._unanswered: LifecycleOrder | None = None  # the lifecycle thread is in a call that does not return
        self._timer_ns: int | None = None
        self._delivered_ns = 0  # the event loop is first in, first out
        self._turns = 0
        self._completions: dict[tuple[str, int], _Completion] = {}
        ways = Ways(
            to_completion=self._to_completion,
            open_completion=self._open_completion,
            close_completion=self._close_completion,
            to_lifecycle=self._to_lifecycle,
        )
        self.steps = EngineSteps(
            self.engine,
            self,
            ways,
            self._engine_clock,
            parts.recorders,
            jobs_kept=max(options.max_in_flight for options in parts.options.values()),
            audit=BoardAudit(self.board),
        )
        self._lifecycle = LifecycleSteps(
            self.board,
            parts.open_package,
            parts.options,
            parts.world.now_ns,
            step_timeout_ns=parts.pace.warm_step_ns,
        )

    # --- from outside -----------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Into the inbox, from any thread."""
        if self.is_alive:
            self._inbox.append(message)
            self._wake_engine()

    def kill(self, code: int, reason: str) -> None:
        """The process is gone at once: its threads, its streams, its hold on the board. Device memory stays."""
        if self.is_alive:
            if code == EXIT_DONE:  # else it may end in the middle of a step
                self.steps.check_ports(self._completions)
            self.is_alive = False
            self.parts.world.drop_waits()
            self.board.close()
            self.parts.ended(code, reason)

    def _later(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.parts.world.after(delay_ns, partial(self._if_alive, action))

    def _if_alive(self, action: Callable[[], None]) -> None:
        if self.is_alive:
            action()

    # --- engine thread ----------------------------------------------------------------------------------

    def _engine_clock(self) -> int:
        """Reading it is where the engine thread's own work between two looks at the clock is charged."""
        world = self.parts.world
        world.spend(self.parts.durations.draw(self.parts.pace.prepare))
        return world.now_ns()

    def _wake_engine(self) -> None:
        if not self._is_engine_due:
            self._is_engine_due = True
            self._later(self.parts.durations.draw(self.parts.pace.wake), self._run_engine)

    def _run_engine(self) -> None:
        self._is_engine_due = False
        self._take(self._inbox.popleft() if self._inbox else Tick())
        if not self.is_alive:
            return
        if self._inbox:
            self._wake_engine()
        else:
            self._arm_timer()

    def _take(self, message: Message) -> None:
        self.steps.take(message)
        self._turns += 1
        if not self.parts.check_every:
            return
        if self._turns % self.parts.check_every == 0:
            self.engine.check_invariants()
        else:
            self.engine.check_invariants_light()

    def _arm_timer(self) -> None:
        timeout_ns = self.steps.wait_timeout_ns()
        if timeout_ns is None:
            return
        due_ns = self.parts.world.now_ns() + timeout_ns
        if self._timer_ns is None or due_ns < self._timer_ns:
            self._timer_ns = due_ns
            self._later(timeout_ns, partial(self._on_timer, due_ns))

    def _on_timer(self, due_ns: int) -> None:
        """An earlier timer may have been armed since, or what was due may have gone: then it only looks again."""
        if self._timer_ns != due_ns:
            return
        self._timer_ns = None
        wanted_ns = self.engine.next_deadline_ns()
        if wanted_ns is not None and wanted_ns <= self.parts.world.now_ns():
            self._wake_engine()
        elif not self._is_engine_due:
            self._arm_timer()

    # --- outlet (called by the engine's steps) ----------------------------------------------------------

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        world = self.parts.world
        self._delivered_ns = max(
            self._delivered_ns, world.now_ns() + self.parts.durations.draw(self.parts.pace.deliver)
        )
        world.at(self._delivered_ns, partial(self._if_alive, partial(self.parts.deliver, batch)))

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        self.parts.sessions_changed(sessions)

    def exit(self, code: int, reason: str) -> None:
        """Streams are written to their end, then the process goes."""
        self.parts.world.at(self._delivered_ns, partial(self.kill, code, reason))

    # --- completion threads -----------------------------------------------------------------------------

    def _open_completion(self, session: str, generation: int) -> None:
        self._completions[session, generation] = _Completion()

    def _close_completion(self, session: str, generation: int) -> None:
        self._completions.pop((session, generation)).is_closed = True

    def _to_completion(self, job: SubmittedJob) -> None:
        thread = self._completions[job.spec.session, job.spec.generation]
        thread.jobs.append(job)
        if not thread.is_waiting:
            self._wait_for_next(thread)

    def _wait_for_next(self, thread: _Completion) -> None:
        thread.is_waiting = bool(thread.jobs)
        if thread.jobs:
            job = thread.jobs.popleft()
            self._wait(thread, job, first_wait(job, self.parts.world.now_ns()))

    def _wait(self, thread: _Completion, job: SubmittedJob, wait: NextWait) -> None:
        if wait.pause_ns:
            self._later(wait.pause_ns, partial(self._wait, thread, job, NextWait(wait.timeout_ns)))
            return
        world, session = self.parts.world, cast(BoardSession, job.session)
        until_ns = world.now_ns() + wait.timeout_ns
        wake = partial(self._later_if_alive, partial(self._complete, thread, job, until_ns))
        world.wait(Wait(session, job.ticket, until_ns, wake))

    def _later_if_alive(self, action: Callable[[], None]) -> None:
        if self.is_alive:
            self._later(self.parts.durations.draw(self.parts.pace.d2h), action)

    def _complete(self, thread: _Completion, job: SubmittedJob, until_ns: int) -> None:
        now_ns = self.parts.world.now_ns()
        code, status = job.session.wait(job.ticket, 0)
        was_overdue = job.is_overdue
        outcome = completion_step(job, code, status, now_ns)
        if isinstance(outcome, Stray):
            self._post_sampled(outcome.event)
        elif isinstance(outcome, Completed) or not was_overdue:
            self._post_sampled(outcome)
        again = next_wait(job, outcome, until_ns, now_ns, thread.is_closed)
        if again is not None:
            self._wait(thread, job, again)
            return
        if not isinstance(outcome, Completed):
            self._post_sampled(GivenUp(job))
        self._wait_for_next(thread)

    def _post_sampled(self, message: Message) -> None:
        self._later(self.parts.durations.draw(self.parts.pace.sample), partial(self.post, message))

    # --- lifecycle thread -------------------------------------------------------------------------------

    def _to_lifecycle(self, order: LifecycleOrder) -> None:
        self._orders.append(order)
        if not self._is_lifecycle_busy:
            self._start_order()

    def _start_order(self) -> None:
        self._is_lifecycle_busy = bool(self._orders)
        if self._orders:
            order = self._orders.popleft()
            if self.parts.oddities is not None and self.parts.oddities.shows("order_unanswered"):
                self._unanswered = order
                return
            self._carry_out(order)

    def _carry_out(self, order: LifecycleOrder) -> None:
        steps = self._lifecycle.take(order)
        self._later(self._order_ns(order), lambda: self._go_on(steps, partial(next, steps)))

    def heal(self) -> None:
        """A call that hung returns after all, however late."""
        order, self._unanswered = self._unanswered, None
        if order is not None:
            self._carry_out(order)

    def _order_ns(self, order: LifecycleOrder) -> int:
        timing = self.parts.device.profile.timing
        name = type(order.command).__name__
        engine = self.parts.device.engine
        if name == "Configure" and not self._lifecycle.opening.is_clear and (engine.queue or engine.running):
            return _LIFECYCLE_NS  # a board that is still at work is looked at, and not configured
        return {"Configure": timing.configure_ns, "Reset": timing.reset_ns}.get(name, _LIFECYCLE_NS)

    def _go_on(self, order: _Steps, step: Callable[[], AwaitJob]) -> None:
        try:
            wanted = step()
        except StopIteration as end:
            self.post(self._paced(end.value))
            self._start_order()
            return
        world, session = self.parts.world, cast(BoardSession, wanted.session)
        wake = partial(self._if_alive, partial(self._answer, order, wanted))
        world.wait(Wait(session, wanted.ticket, world.now_ns() + wanted.timeout_ns, wake))

    def _answer(self, order: _Steps, wanted: AwaitJob) -> None:
        """As `executor.awaiting.drive` does, without blocking."""
        try:
            answer = wanted.session.wait(wanted.ticket, 0)
        except Exception as error:
            self._go_on(order, partial(order.throw, error))
        else:
            self._go_on(order, partial(order.send, answer))

    def _paced(self, done: LifecycleDone) -> LifecycleDone:
        if done.session is None:
            return done
        parts = self.parts
        session = PacedSession(cast(BoardSession, done.session), parts.world, parts.pace, parts.durations)
        return replace(done, session=session)
