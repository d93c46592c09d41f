"""What concerns the whole board: which sessions there are, resets and their budget, shutdown and exit.

Owns: the sessions, the generation numbers, the reset budget, the end of the process. Must not know: requests.

A reset is never the first answer, its scope is the smallest one proven, the next wider one follows where it failed, and
the board has a budget of them (`core.resets`). A scope that is wider than one session waits until every other session
stands still too, and is ordered once, by the session that faulted.
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.commands import Exit
from calserve.core.config import SchedulerConfig
from calserve.core.events import Load, ResetDone, Shutdown, Unload
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FaultClass, FinishReason, RefusalKind
from calserve.core.recovery import Wish
from calserve.core.resets import Budget, choose_scope, is_down, is_wide
from calserve.core.roster import Roster
from calserve.core.session import Session
from calserve.core.states import GenerationState

G = GenerationState

# Exit codes, for the supervisor of the process (a unit file, a container):
EXIT_DONE = 0  # orderly: every session drained and released
EXIT_UNKNOWN_DMA = 75  # EX_TEMPFAIL: the device may still write our memory; start again
EXIT_FORCED = 76  # the shutdown's deadline and grace passed before the board was released

UNKNOWN_CAUSE = Failure("reset", 0, FaultClass.UNKNOWN)
GRANTED_IN_ORDER = (Wish.GIVE_UP, Wish.RESET_LOST, Wish.RESET, Wish.REBUILD, Wish.FOLLOW, Wish.NOTHING)


class Supervisor:
    """Called only by the engine."""

    def __init__(self, config: SchedulerConfig, outbox: Outbox, job_numbers: Callable[[], int]) -> None:
        self._config = config
        self._out = outbox
        self._job_numbers = job_numbers
        self._generation = 0
        self._budget = Budget(config)
        self._leader: Session | None = None  # whose wide reset waits until every other session stands still
        self.sessions: dict[str, Session] = {}  # in the order of their first Load
        self.shutdown_ns: int | None = None
        self.has_exited = False

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    # --- sessions ---------------------------------------------------------------------------------------

    def load(self, event: Load, now_ns: int) -> None:
        if self.shutdown_ns is not None:
            self._out.count("ignored_loads")
            return
        session = self.sessions.get(event.session)
        if session is None:
            session = Session(
                event.session, self._config, self._out, self._job_numbers, self._next_generation, self._sibling_of
            )
            self.sessions[event.session] = session
        session.load(event, now_ns)

    def _sibling_of(self, session: Session) -> Roster | None:
        """Where those who wait for `session` are served as well; None once nobody is to be kept."""
        if self.shutdown_ns is not None or self.has_exited:
            return None
        same = (session.model, session.package)
        able = [
            each.worker.roster
            for each in self.sessions.values()
            if each is not session and each.state is G.READY and (each.model, each.package) == same
        ]
        return min(able, key=lambda roster: roster.outstanding, default=None)

    def unload(self, event: Unload, now_ns: int) -> None:
        session = self.sessions.get(event.session)
        if session is None:
            self._out.count("stale_events")
        else:
            session.unload(event.deadline_ns, now_ns)

    def of_generation(self, generation: int) -> Session | None:
        for session in self.sessions.values():
            if session.generation == generation:
                return session
        return None

    def route(self, model: str) -> Session | RefusalKind:
        """Where a new request for `model` goes: the ready copy with the least outstanding cost, else one that is
        coming up; otherwise why not."""
        copies = [s for s in self.sessions.values() if s.model == model and s.state is not G.UNLOADED]
        if not copies:
            return RefusalKind.UNKNOWN_MODEL
        if self.shutdown_ns is not None or self.has_exited:
            return RefusalKind.MODEL_DRAINING
        for states in ((G.READY,), (G.VALIDATING, G.CONFIGURING, G.WARMING)):
            able = [s for s in copies if s.state in states and not s.unload_next]
            if able:
                return min(able, key=lambda s: s.worker.roster.outstanding)
        if any(s.is_coming_back for s in copies):
            return RefusalKind.MODEL_RECOVERING
        if any(s.state in (G.DRAINING, G.UNLOADING) for s in copies):
            return RefusalKind.MODEL_DRAINING
        return RefusalKind.MODEL_FAILED

    # --- shutdown ---------------------------------------------------------------------------------------

    def shutdown(self, event: Shutdown, now_ns: int) -> None:
        deadline = event.deadline_ns
        self.shutdown_ns = deadline if self.shutdown_ns is None else min(self.shutdown_ns, deadline)
        for session in self.sessions.values():
            session.unload(self.shutdown_ns, now_ns)

    def exit(self, code: int, reason: str, failure: Failure | None = None) -> None:
        """Every client is told, then the process ends. Only once."""
        if self.has_exited:
            return
        self.has_exited = True
        for session in self.sessions.values():
            worker = session.worker
            worker.turn_valves(admitting=False, submitting=False)
            worker.roster.refuse_waiting(RefusalKind.MODEL_DRAINING if failure is None else RefusalKind.MODEL_FAILED)
            reason_told = FinishReason.SHUTDOWN if failure is None else FinishReason.DEVICE_FAULT
            worker.roster.end_admitted(reason_told, failure)
        self._out.order(Exit(code, reason))

    # --- after every event ------------------------------------------------------------------------------

    def conclude(self, now_ns: int) -> None:
        """Grant wishes, end a shutdown that is through or out of time."""
        if self.has_exited:
            return
        self._grant_wishes(now_ns)
        for session in self.sessions.values():
            if session.state is not G.READY:  # nobody waits for a copy while another could serve
                session.worker.roster.hand_over()
        if self.shutdown_ns is None or self.has_exited:
            return
        if all(is_down(session) for session in self.sessions.values()):
            is_fenced = any(session.is_fenced for session in self.sessions.values())
            self.exit(EXIT_UNKNOWN_DMA if is_fenced else EXIT_DONE, "shut down")
        elif now_ns >= self.shutdown_ns + self._config.overdue_grace_ns:
            on_device = any(s.worker.in_flight or s.is_fenced or s.recovery.lost for s in self.sessions.values())
            self.exit(EXIT_UNKNOWN_DMA if on_device else EXIT_FORCED, "the shutdown ran out of time")

    def next_deadline_ns(self) -> int | None:
        times = [session.next_deadline_ns() for session in self.sessions.values()]
        if self.shutdown_ns is not None:
            times.append(self.shutdown_ns + self._config.overdue_grace_ns)
        return None if self.has_exited else min((t for t in times if t is not None), default=None)

    # --- resets -----------------------------------------------------------------------------------------

    def _grant_wishes(self, now_ns: int) -> None:
        """What no sibling's reset can answer comes first, then what takes siblings along; the order in which sessions
        were loaded decides nothing. After the end of the process nothing is granted."""
        wishing = [session for session in self.sessions.values() if session.recovery.wish is not Wish.NOTHING]
        if not wishing:
            return
        for session in wishing:
            is_in_vain = session.recovery.wish is Wish.REBUILD and not self._may_rebuild(session, now_ns)
            if is_in_vain and not self._is_taken_along(session):
                self._same_trouble_again(session)
        for session in sorted(wishing, key=lambda one: GRANTED_IN_ORDER.index(one.recovery.wish)):
            if not self.has_exited and session.recovery.wish is not Wish.NOTHING:
                self._grant(session, now_ns)

    def _grant(self, session: Session, now_ns: int) -> None:
        """A wish is granted, refused for good, or stands until the siblings are still."""
        recovery = session.recovery
        if recovery.wish is Wish.GIVE_UP:
            recovery.wish = Wish.NOTHING
            self._exit_for(session)
        elif recovery.wish is Wish.RESET_LOST:
            self._grant_reset(session, now_ns)
        elif self._is_taken_along(session):
            return
        elif recovery.wish is Wish.RESET:
            self._grant_reset(session, now_ns)
        else:  # also who stood still for a sibling that is on another way
            session.rebuild(now_ns)

    @staticmethod
    def _same_trouble_again(session: Session) -> None:
        cause = session.failure or UNKNOWN_CAUSE
        if FAULT_RULES[cause.fault].again is Aftermath.RESET:
            session.recovery.want(Wish.RESET)
        else:
            session.same_trouble_again(cause)

    def _is_taken_along(self, session: Session) -> bool:
        """Whether a wide reset of another one is out, or waits for the siblings: this one has no way of its own."""
        leader = self._leader
        if leader is not None and leader.recovery.wish is not Wish.RESET:
            leader = self._leader = None
        if leader is not None:
            return leader is not session
        return any(each.pending == "reset" and is_wide(each.recovery.scope) for each in self.sessions.values())

    def _may_rebuild(self, session: Session, now_ns: int) -> bool:
        """Not for the same trouble again; who comes down is only released."""
        return session.unload_next or not session.recovery.was_rebuilt(now_ns, self._config.reset_window_ns)

    def _grant_reset(self, session: Session, now_ns: int) -> None:
        others = self.sessions.values()
        recovery = session.recovery
        cause = session.failure or UNKNOWN_CAUSE
        # what a job never returned from, or a reset did not end, may be written still
        is_unsafe = recovery.wish is Wish.RESET_LOST or recovery.has_failed_reset
        scope = choose_scope(session, others, self._config)
        has_room = self._budget.has_room(now_ns)
        if scope is None or not has_room:
            if not has_room:
                self._out.count("budget_exhausted")
            session.is_fenced = is_unsafe or recovery.has_failed_release
            if is_unsafe:
                self._give_up(session, cause)
            else:
                session.fail(cause)
            return
        if is_wide(scope):
            self._leader = session
            if not self._others_stand_still(session, cause, now_ns):
                return
            self._leader = None
        self._budget.spend(now_ns)
        session.reset(scope, cause)

    def _others_stand_still(self, leader: Session, cause: Failure, now_ns: int) -> bool:
        """Whether every other session is off the device; those that serve are told to recover along."""
        still = True
        for other in self.sessions.values():
            if other is leader or is_down(other):
                continue
            if other.state is G.READY:
                other.stand_still(cause, now_ns)
            if other.state is not G.RECOVERING or other.pending:
                still = False
        return still

    def reset_done(self, event: ResetDone) -> None:
        session = self.sessions.get(event.session)
        if session is None:
            self._out.count("stale_events")
            return
        if not session.is_answer(event.generation, "reset"):
            return
        if event.failure is not None:
            self._out.count("failed_resets")
            session.reset_failed(event.failure)
            return
        along = [session]
        if is_wide(session.recovery.scope):
            along = [s for s in self.sessions.values() if s is session or self._comes_along(s)]
        for each in along:
            each.come_back()

    @staticmethod
    def _comes_along(session: Session) -> bool:
        """Whether a sibling's reset of everything is the end of its own recovery; of a lost job it is none."""
        return session.state is G.RECOVERING and not session.pending and session.recovery.lost is None

    def _give_up(self, session: Session, cause: Failure) -> None:
        """The device may still write: a new process, or this session stays Failed and its memory fenced."""
        session.fail(cause)
        self._exit_for(session)

    def _exit_for(self, session: Session) -> None:
        cause = session.failure
        if self._config.restart_on_unknown_dma and cause is not None:
            self.exit(EXIT_UNKNOWN_DMA, f"session {session.name}: {cause.stage} {cause.code}", cause)
