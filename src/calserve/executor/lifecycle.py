"""Lifecycle steps: slow work on a board whose ends are events.

Runs on the lifecycle thread, one order at a time. A session under construction belongs to this ring alone; it
moves to the engine thread with the message that says it is warm, and comes back with the order that ends it.

A step never waits for a job: it is a generator that says what it wants waited for (`AwaitJob`) and is sent what `wait`
returned. Who drives it waits: the lifecycle thread, or a simulation at a time of its own choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from calserve.core.commands import Configure, Release, Reset, Validate, Warm
from calserve.core.events import BoardAnomaly, Configured, Event, JobFailed, Released, ResetDone, Validated, Warmed
from calserve.core.outcomes import BoardNote, Failure, FaultClass
from calserve.executor.awaiting import Awaited, AwaitJob, drive
from calserve.executor.clock import Clock
from calserve.executor.facts import session_facts
from calserve.executor.opening import clear_board
from calserve.executor.warmup import STEP_TIMEOUT_NS, WarmTimes, warm_session
from calserve.runtime.checks import check_contract
from calserve.runtime.contract import Board, BoardPackage, GraphContract, LoadOptions, Session
from calserve.runtime.errors import CalCode, failure

__all__ = ["AwaitJob", "LifecycleDone", "LifecycleOrder", "LifecycleSteps", "OpenPackage", "drive"]

OpenPackage = Callable[[str], BoardPackage | Failure]
Order = Validate | Configure | Warm | Release | Reset


@dataclass(frozen=True, slots=True)
class LifecycleOrder:
    """A command of `core`, with the session it ends when it ends one."""

    command: Order
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class LifecycleDone:
    """The end of an order. `session` moves to the engine thread when it is ready to be used.

    aside: facts that came up on the way, for `core` to have before `event`: completions of older generations during a
        warm-up, and what an earlier process had left on the board.
    """

    event: Event
    session: Session | None = None
    aside: tuple[Event, ...] = ()


@dataclass(slots=True)
class LifecycleSteps:
    """One board's slow work. options: per session name, from the composition root."""

    board: Board
    open_package: OpenPackage
    options: Mapping[str, LoadOptions]
    clock: Clock
    packages: dict[str, BoardPackage] = field(default_factory=dict)  # by hash
    loaded: dict[str, BoardPackage] = field(default_factory=dict)  # by session
    building: dict[str, Session] = field(default_factory=dict)
    step_timeout_ns: int = STEP_TIMEOUT_NS  # of a warm-up's step
    is_cleared: bool = False  # nothing of an earlier process is on the board

    def take(self, order: LifecycleOrder) -> Generator[AwaitJob, Awaited, LifecycleDone]:
        """One order to its end; only a warm-up has jobs to wait for. Not started, it has done nothing."""
        command = order.command
        match command:
            case Validate():
                return LifecycleDone(self._validate(command))
            case Configure():
                return self._open_and_configure(command)
            case Warm():
                return (yield from self._warm(command))
            case Release():
                return LifecycleDone(self._release(command, order.session))
            case Reset():
                return LifecycleDone(self._reset(command, order.session))

    def _validate(self, command: Validate) -> Validated:
        opened = self.open_package(command.package)
        if isinstance(opened, Failure):
            return Validated(command.session, command.generation, opened)
        wrong = _graphs_complaint(opened.graphs)
        if wrong:
            return Validated(command.session, command.generation, _refused("validate", wrong))
        self.packages[command.package] = opened
        return Validated(command.session, command.generation)

    def _open_and_configure(self, command: Configure) -> LifecycleDone:
        if self.is_cleared:
            return LifecycleDone(self._configure(command))
        opening = clear_board(self.board)
        name, generation = command.session, command.generation
        aside = (BoardAnomaly(name, generation, opening.told),) if opening.told else ()
        if opening.failure is not None:
            return LifecycleDone(Configured(name, generation, None, opening.failure), aside=aside)
        self.is_cleared = True
        return LifecycleDone(self._configure(command), aside=aside)

    def _configure(self, command: Configure) -> Configured:
        name, generation = command.session, command.generation
        options = self.options[name]
        code, session = self.board.configure(self.packages[command.package], options, name, generation)
        if session is None:
            return Configured(name, generation, None, failure("configure", code, self.board.health().detail))
        wrong = _graphs_complaint(tuple(session.graphs.values()))
        if wrong:
            session.close()  # nothing was submitted to it, and `core` counts it as never configured
            return Configured(name, generation, None, _refused("configure", wrong))
        self.building[name] = session
        self.loaded[name] = self.packages[command.package]
        return Configured(name, generation, session_facts(self.board, session, options.max_in_flight))

    def _warm(self, command: Warm) -> Generator[AwaitJob, Awaited, LifecycleDone]:
        name, generation = command.session, command.generation
        session = self.building[name]
        strays: list[JobFailed] = []
        outcome = yield from warm_session(
            session, self.loaded[name], generation, WarmTimes(self.clock, self.step_timeout_ns), strays
        )
        if isinstance(outcome, Failure):
            return LifecycleDone(Warmed(name, generation, (), outcome), aside=tuple(strays))
        del self.building[name]
        return LifecycleDone(Warmed(name, generation, outcome), session, tuple(strays))

    def _release(self, command: Release, session: Session | None) -> Released:
        code = self._close(command.session, session)
        fault = failure("release", code) if code else None
        return Released(command.session, command.generation, fault)

    def _reset(self, command: Reset, session: Session | None) -> ResetDone:
        before = self._note()
        code = self.board.reset(command.scope, command.session)
        code = code or self._close(command.session, session)
        fault = failure("reset", code) if code else None
        return ResetDone(command.session, command.generation, fault, before, self._note())

    def _note(self) -> BoardNote:
        """How the board stands now, for the record of a reset."""
        health = self.board.health()
        return BoardNote(tuple(sorted(self.board.describe().versions.items())), health.ok, health.detail)

    def _close(self, name: str, session: Session | None) -> int:
        session = session or self.building.pop(name, None)
        return session.close() if session is not None else 0


def _graphs_complaint(graphs: Many[GraphContract]) -> str:
    """The first graph that cannot be used, or a name that two of them have: exact names only (seed 003, 10.2)."""
    names = [graph.name for graph in graphs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"two graphs are named {twice}"
    return next((wrong for graph in graphs if (wrong := check_contract(graph))), "")


def _refused(stage: str, detail: str) -> Failure:
    return Failure(stage, int(CalCode.INVALID_CALBIN), FaultClass.ARTIFACT, detail)
