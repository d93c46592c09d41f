"""Lifecycle steps: slow work on a board whose ends are events.

Runs on the lifecycle thread, one order at a time. A session under construction belongs to this ring alone; it
moves to the engine thread with the message that says it is warm, and comes back with the order that ends it.

A step never waits for a job: it is a generator that says what it wants waited for (`AwaitJob`) and is sent what `wait`
returned. Who drives it waits: the lifecycle thread, or a simulation at a time of its own choosing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from calserve.core.commands import Configure, Release, Reset, ResetScope, Validate, Warm
from calserve.core.events import BoardAnomaly, Configured, Event, Released, ResetDone, Validated, Warmed
from calserve.core.outcomes import Failure, FaultClass
from calserve.executor.awaiting import Awaited, AwaitJob, drive
from calserve.executor.clock import Clock
from calserve.executor.ending import REACHES_ALL, STOPS_WRITES
from calserve.executor.facts import proven_by, session_facts
from calserve.executor.opening import BoardOpening, note_of
from calserve.executor.warmup import STEP_TIMEOUT_NS, WarmAside, WarmTimes, warm_session
from calserve.runtime.checks import check_contract
from calserve.runtime.contract import Board, BoardPackage, GraphContract, HostBuffers, LoadOptions, Session
from calserve.runtime.errors import CalCode, failure, meaning

__all__ = ["AwaitJob", "LifecycleDone", "LifecycleOrder", "LifecycleSteps", "OpenPackage", "drive"]

_log = logging.getLogger(__name__)

OpenPackage = Callable[[str], BoardPackage | Failure]
Order = Validate | Configure | Warm | Release | Reset


@dataclass(frozen=True, slots=True)
class LifecycleOrder:
    """A command of `core`, with the sessions it ends: the one it names, or with a reset of the board every one."""

    command: Order
    sessions: tuple[Session, ...] = ()


@dataclass(frozen=True, slots=True)
class LifecycleDone:
    """The end of an order. `session` moves to the engine thread when it is ready to be used.

    aside: facts that came up on the way, for `core` to have before `event`: completions of older generations during a
        warm-up, and what an earlier process had left on the board.
    scope: what was reset, where the order was a reset.
    """

    event: Event
    session: Session | None = None
    aside: tuple[Event, ...] = ()
    scope: ResetScope | None = None


@dataclass(slots=True)
class LifecycleSteps:
    """One board's slow work. options: per session name, from the composition root."""

    board: Board
    open_package: OpenPackage
    options: Mapping[str, LoadOptions]
    clock: Clock
    packages: dict[str, BoardPackage] = field(default_factory=dict)  # by session: validated last
    loaded: dict[str, BoardPackage] = field(default_factory=dict)  # by session
    building: dict[str, Session] = field(default_factory=dict)
    step_timeout_ns: int = STEP_TIMEOUT_NS  # of a warm-up's step
    unended: dict[str, list[HostBuffers]] = field(default_factory=dict)  # by session: a warm-up's job may write them
    opening: BoardOpening = field(init=False)

    def __post_init__(self) -> None:
        self.opening = BoardOpening(self.board)

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
                return LifecycleDone(self._release(command, order.sessions))
            case Reset():
                return LifecycleDone(self._reset(command, order.sessions), scope=command.scope)

    def _validate(self, command: Validate) -> Validated:
        try:
            opened = self.open_package(command.package)
        except Exception as error:
            opened = _stopped("validate", FaultClass.ARTIFACT, error)
        if isinstance(opened, Failure):
            return Validated(command.session, command.generation, opened)
        wrong = _graphs_complaint(opened.graphs)
        if wrong:
            return Validated(command.session, command.generation, _refused("validate", wrong))
        self.packages[command.session] = opened
        return Validated(command.session, command.generation)

    def _open_and_configure(self, command: Configure) -> LifecycleDone:
        if self.opening.is_clear:
            return LifecycleDone(self._configure(command))
        name, generation = command.session, command.generation
        found = self.opening.look(self.clock())
        aside = (BoardAnomaly(name, generation, found.told, found.before, found.after),) if found.told else ()
        if found.failure is not None:
            return LifecycleDone(Configured(name, generation, None, found.failure), aside=aside)
        return LifecycleDone(self._configure(command), aside=aside)

    def _configure(self, command: Configure) -> Configured:
        """A failure here leaves what the board holds unknown only where the board contradicts itself or breaks off."""
        try:
            made = self._make(command)
        except Exception as error:
            made = _stopped("configure", FaultClass.UNKNOWN, error)
        name, generation = command.session, command.generation
        if isinstance(made, Failure):
            return Configured(name, generation, None, made, proven_by(self.board))
        self.building[name] = made
        self.loaded[name] = self.packages[name]
        return Configured(name, generation, session_facts(self.board, made, self.options[name].max_in_flight))

    def _make(self, command: Configure) -> Session | Failure:
        name = command.session
        package, options = self.packages[name], self.options[name]
        code, session = self.board.configure(package, options, name, command.generation)
        if session is None:
            if code == CalCode.SUCCESS:
                return Failure("configure", code, FaultClass.UNKNOWN, "success without a session")
            return failure("configure", code, self.board.health().detail)
        if code:
            session.close()
            return Failure("configure", code, FaultClass.UNKNOWN, f"a session, and yet: {meaning(code).name}")
        wrong = _graphs_complaint(tuple(session.graphs.values()))
        if wrong:
            session.close()  # nothing was submitted to it, and `core` counts it as never configured
            return _refused("configure", wrong)
        return session

    def _warm(self, command: Warm) -> Generator[AwaitJob, Awaited, LifecycleDone]:
        name, generation = command.session, command.generation
        session, aside = self.building[name], WarmAside()
        times = WarmTimes(self.clock, self.step_timeout_ns)
        outcome = yield from warm_session(session, self.loaded[name], generation, times, aside)
        if aside.unended:
            self.unended.setdefault(name, []).extend(aside.unended)
        if isinstance(outcome, Failure):
            return LifecycleDone(Warmed(name, generation, (), outcome), aside=tuple(aside.strays))
        del self.building[name]
        return LifecycleDone(Warmed(name, generation, outcome), session, tuple(aside.strays))

    def _release(self, command: Release, sessions: Many[Session]) -> Released:
        code = self._close((command.session,), sessions)
        fault = failure("release", code) if code else None
        return Released(command.session, command.generation, fault)

    def _reset(self, command: Reset, sessions: Many[Session]) -> ResetDone:
        before = note_of(self.board)
        is_for_all = command.scope in REACHES_ALL
        code = self.board.reset(command.scope, None if is_for_all else command.session)
        code = code or self._close(tuple(self.building) if is_for_all else (command.session,), sessions)
        if not code and command.scope in STOPS_WRITES:
            for name in tuple(self.unended) if is_for_all else (command.session,):
                self.unended.pop(name, None)
        fault = failure("reset", code) if code else None
        return ResetDone(command.session, command.generation, fault, before, note_of(self.board))

    def _close(self, names: Many[str], sessions: Many[Session]) -> int:
        """Close `sessions`, and what was being built under `names`; the first code that is not 0."""
        codes = [session.close() for session in sessions]
        for name in names:
            if name in self.building:
                codes.append(self.building[name].close())
                if not codes[-1]:
                    del self.building[name]
        return next((code for code in codes if code), 0)


def _stopped(stage: str, fault: FaultClass, error: Exception) -> Failure:
    """A step broke off: its cause is the package or the board, not an invariant of ours."""
    _log.error("the order to %s stopped", stage, exc_info=error)
    return Failure(stage, 0, fault, f"{type(error).__name__}: {error}")


def _graphs_complaint(graphs: Many[GraphContract]) -> str:
    """The first graph that cannot be used, or a name that two of them have: exact names only (seed 003, 10.2)."""
    names = [graph.name for graph in graphs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"two graphs are named {twice}"
    return next((wrong for graph in graphs if (wrong := check_contract(graph))), "")


def _refused(stage: str, detail: str) -> Failure:
    return Failure(stage, int(CalCode.INVALID_CALBIN), FaultClass.ARTIFACT, detail)
