"""Lifecycle steps: slow work on a board whose ends are events.

Runs on the lifecycle thread, one order at a time. A session under construction belongs to this ring alone; it
moves to the engine thread with the message that says it is warm, and comes back with the order that ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from calserve.core.commands import Configure, Release, Reset, Validate, Warm
from calserve.core.events import Configured, Event, Released, ResetDone, Validated, Warmed
from calserve.core.outcomes import Failure
from calserve.executor.clock import Clock
from calserve.executor.facts import session_facts
from calserve.executor.warmup import warm_session
from calserve.runtime.contract import Board, BoardPackage, LoadOptions, Session
from calserve.runtime.errors import failure

OpenPackage = Callable[[str], BoardPackage | Failure]
Order = Validate | Configure | Warm | Release | Reset


@dataclass(frozen=True, slots=True)
class LifecycleOrder:
    """A command of `core`, with the session it ends when it ends one."""

    command: Order
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class LifecycleDone:
    """The end of an order. `session` moves to the engine thread when it is ready to be used."""

    event: Event
    session: Session | None = None


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

    def take(self, order: LifecycleOrder) -> LifecycleDone:
        command = order.command
        match command:
            case Validate():
                return LifecycleDone(self._validate(command))
            case Configure():
                return LifecycleDone(self._configure(command))
            case Warm():
                return self._warm(command)
            case Release():
                return LifecycleDone(self._release(command, order.session))
            case Reset():
                return LifecycleDone(self._reset(command, order.session))

    def _validate(self, command: Validate) -> Validated:
        opened = self.open_package(command.package)
        if isinstance(opened, Failure):
            return Validated(command.session, command.generation, opened)
        self.packages[command.package] = opened
        return Validated(command.session, command.generation)

    def _configure(self, command: Configure) -> Configured:
        name, generation = command.session, command.generation
        options = self.options[name]
        code, session = self.board.configure(self.packages[command.package], options, name, generation)
        if session is None:
            return Configured(name, generation, None, failure("configure", code, self.board.health().detail))
        self.building[name] = session
        self.loaded[name] = self.packages[command.package]
        return Configured(name, generation, session_facts(self.board, session, options.max_in_flight))

    def _warm(self, command: Warm) -> LifecycleDone:
        name, generation = command.session, command.generation
        session = self.building[name]
        outcome = warm_session(session, self.loaded[name], generation, self.clock)
        if isinstance(outcome, Failure):
            return LifecycleDone(Warmed(name, generation, (), outcome))
        del self.building[name]
        return LifecycleDone(Warmed(name, generation, outcome), session)

    def _release(self, command: Release, session: Session | None) -> Released:
        code = self._close(command.session, session)
        fault = failure("release", code) if code else None
        return Released(command.session, command.generation, fault)

    def _reset(self, command: Reset, session: Session | None) -> ResetDone:
        code = self.board.reset(command.scope, command.session)
        code = code or self._close(command.session, session)
        fault = failure("reset", code) if code else None
        return ResetDone(command.session, command.generation, fault)

    def _close(self, name: str, session: Session | None) -> int:
        session = session or self.building.pop(name, None)
        return session.close() if session is not None else 0
