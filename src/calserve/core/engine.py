"""The engine: facts in, orders out. The only writer of everything in `core`.

Owns: the sessions (through the supervisor), which request lives where, the counters. Must not know: clocks,
threads, tokens, boards. Life: events at rising times go into `handle`, its commands are carried out in order,
and when `next_deadline_ns` comes a Tick goes in. The same events at the same times give the same commands.
"""

from __future__ import annotations

from calserve.core import invariants
from calserve.core.commands import Command
from calserve.core.concurrency import Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.events import (
    BoardAnomaly,
    Cancel,
    CancelCause,
    ClientStalled,
    Configured,
    Event,
    JobDone,
    JobFailed,
    JobOverdue,
    JobSubmitted,
    KvReleased,
    Load,
    PrepareFailed,
    Released,
    ResetDone,
    Shutdown,
    Submit,
    Tick,
    Unload,
    Validated,
    Warmed,
)
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.flight import Job
from calserve.core.outbox import Outbox
from calserve.core.outcomes import (
    QUEUE_STAGE,
    STATUS_STAGE,
    Failure,
    FaultClass,
    FinishReason,
    Refusal,
    RefusalKind,
    Usage,
)
from calserve.core.session import Session
from calserve.core.snapshot import EngineSnapshot
from calserve.core.states import GenerationState
from calserve.core.supervisor import Supervisor
from calserve.core.views import session_view

JobEvent = JobSubmitted | PrepareFailed | JobDone | JobFailed | JobOverdue
SessionEvent = KvReleased | Validated | Configured | Warmed | Released | BoardAnomaly


class Engine:
    """Invariants: I1-I8 and I12 of the design, see `invariants`. One caller, one thread."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._out = Outbox()
        self._jobs = 0
        self._now_ns = 0
        self._planned_ns = 0  # when work was last planned: what is due since then has its Tick
        self.supervisor = Supervisor(config, self._out, self._next_job)

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    # --- the contract -----------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take one fact at `now_ns` (never before the last one). Returns orders, SubmitJob first."""
        if now_ns < self._now_ns:
            raise ValueError(f"time went back from {self._now_ns} to {now_ns}")
        self._now_ns = self._out.now_ns = now_ns
        if isinstance(event, JobSubmitted):
            # It frees nothing and makes nobody ready, so there is nothing to plan; what is due has its Tick.
            self._on_job_event(event, now_ns)
            return self._out.take()
        self._planned_ns = now_ns
        sessions = self.supervisor.sessions.values()
        for session in sessions:
            session.expire(now_ns)
        if self.supervisor.has_exited and not isinstance(event, Submit):
            self._out.count("events_after_exit")
            return self._out.take()
        self._dispatch(event, now_ns)
        if self.supervisor.has_exited:  # it was refused; what was to be tried again will not be
            return self._out.take()
        for session in sessions:
            session.settle(now_ns)
        self.supervisor.conclude(now_ns)
        moved = -1
        # decided before anything new goes to a board; once more where that sent somebody to a sibling
        while not self.supervisor.has_exited and moved != self._out.counters.get("handed_over", 0):
            moved = self._out.counters.get("handed_over", 0)
            for session in sessions:
                session.work(now_ns)
            self.supervisor.conclude(now_ns)
        return self._out.take()

    def next_deadline_ns(self) -> int | None:
        """When a Tick is due, or None. May be in the past only until that Tick."""
        return self.supervisor.next_deadline_ns()

    def check_invariants(self) -> None:
        """Full scan; raises AssertionError naming the invariant. Call between `handle` calls."""
        invariants.check(self.supervisor, self._out.counters, self._planned_ns)

    def check_invariants_light(self) -> None:
        """The counts alone, without a look at any request, lane or unit: cheap enough for every event of a long run."""
        invariants.check_counts(self.supervisor, self._out.counters)

    def session_states(self) -> tuple[tuple[str, int, GenerationState], ...]:
        """(session, generation, state) of each session: cheap enough to compare after every event."""
        return tuple((s.name, s.generation, s.state) for s in self.supervisor.sessions.values())

    def snapshot(self, now_ns: int) -> EngineSnapshot:
        views = tuple(session_view(s, now_ns) for s in self.supervisor.sessions.values())
        return EngineSnapshot(views, dict(self._out.counters))

    # --- routing ----------------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now_ns: int) -> None:
        match event:
            case JobDone() | JobFailed() | JobSubmitted() | PrepareFailed() | JobOverdue():
                self._on_job_event(event, now_ns)
            case Submit():
                self._on_submit(event, now_ns)
            case Cancel():
                self._on_cancel(event.request, event.cause)
            case ClientStalled():
                self._on_cancel(event.request, CancelCause.STALLED)
            case Tick():
                pass
            case _:
                self._on_lifecycle(event, now_ns)

    def _on_lifecycle(self, event: Event, now_ns: int) -> None:
        match event:
            case Load():
                self.supervisor.load(event, now_ns)
            case Unload():
                self.supervisor.unload(event, now_ns)
            case Shutdown():
                self.supervisor.shutdown(event, now_ns)
            case ResetDone():
                self.supervisor.reset_done(event)
            case KvReleased() | Validated() | Configured() | Warmed() | Released() | BoardAnomaly():
                self._on_session_event(event, now_ns)
            case _:
                raise TypeError(f"not an event: {event!r}")

    def _on_session_event(self, event: SessionEvent, now_ns: int) -> None:
        session = self.supervisor.sessions.get(event.session)
        match event, session:
            case _, None:
                self._out.count("stale_events")
            case KvReleased(), Session() as found:
                found.worker.kv_released()
            case Validated() as answer, Session() as found:
                found.validated(answer, now_ns)
            case Configured() as answer, Session() as found:
                found.configured(answer, now_ns)
            case Warmed() as answer, Session() as found:
                found.warmed(answer, now_ns)
            case Released() as answer, Session() as found:
                found.released(answer)
            case BoardAnomaly() as anomaly, Session() as found:
                self._on_anomaly(found, anomaly, now_ns)

    def _on_anomaly(self, session: Session, event: BoardAnomaly, now_ns: int) -> None:
        self._out.count("board_anomalies")
        if event.generation != session.generation:
            return
        session.concurrency.lower(Doubt.COUNTERS)
        if event.is_kv:
            # the device and the ledger went their own ways; only another generation brings them together
            cause = Failure("kv", 0, FaultClass.LIFECYCLE, event.detail)
            session.fault(cause, Aftermath.DRAIN_AND_REBUILD, now_ns)

    # --- requests ---------------------------------------------------------------------------------------

    def _on_submit(self, event: Submit, now_ns: int) -> None:
        if any(event.request in s.worker.roster.requests for s in self.supervisor.sessions.values()):
            # ending it would end the first one's stream; the caller broke the uniqueness of names
            self._out.count("duplicate_submits")
            return
        self._out.count("submitted")
        target = self.supervisor.route(event.model)
        if isinstance(target, RefusalKind):
            usage = Usage(max(0, event.prompt_tokens), 0)
            self._out.finish(event.request, FinishReason.REFUSED, usage, refusal=Refusal(target))
        else:
            target.worker.somebody_came()
            target.worker.roster.accept(event, now_ns)

    def _on_cancel(self, request: str, cause: CancelCause) -> None:
        found = any(session.worker.roster.cancel(request) for session in self.supervisor.sessions.values())
        self._out.count("cancels_" + cause.value if found else "unknown_cancels")

    # --- jobs -------------------------------------------------------------------------------------------

    def _on_job_event(self, event: JobEvent, now_ns: int) -> None:
        session = self.supervisor.of_generation(event.generation)
        job = session.worker.find_job(event.job) if session is not None else None
        if session is None or job is None:
            late = isinstance(event, JobDone | JobFailed)
            self._out.count("stale_completions" if late else "stale_events")
            if late:
                self._doubt_company(event.generation)
            return
        match event:
            case JobDone():
                suspect = session.worker.job_done(job, event, now_ns)
                if suspect is not None:
                    # seed 003, FI10: the generation is isolated and its goldens run again; if they fail, it is refused
                    is_isolated = "lane_fault_isolation" in session.proven
                    then = Aftermath.DRAIN_AND_REBUILD if is_isolated else Aftermath.REBUILD
                    session.fault(suspect, then, now_ns)
            case JobSubmitted():
                session.worker.job_submitted(job)
            case JobOverdue():
                session.worker.job_overdue(job, now_ns)
            case JobFailed():
                self._on_job_failed(session, job, event, now_ns)
            case PrepareFailed():
                self._on_prepare_failed(session, job, event.failure, now_ns)

    def _doubt_company(self, generation: int) -> None:
        """A completion that nobody waits for, while two jobs are in flight on its session: whose are theirs?"""
        for session in self.supervisor.sessions.values():
            if session.worker.in_flight > 1 and session.had(generation):
                session.concurrency.lower(Doubt.STATUS)

    def _on_job_failed(self, session: Session, job: Job, event: JobFailed, now_ns: int) -> None:
        failure = event.failure
        self._out.count("faults_" + failure.fault.value)
        doubt = None
        if failure.stage == STATUS_STAGE and job.had_company:
            doubt = Doubt.CROSS_TALK if failure.fault is FaultClass.UNKNOWN else Doubt.STATUS
        if not event.has_ended:
            session.job_lost(failure, doubt or Doubt.RECOVERY)
            session.worker.job_lost(job, failure)
            session.fault(failure, Aftermath.RESET, now_ns)
            return
        if doubt is not None:
            session.concurrency.lower(doubt)
        is_exhausted = session.worker.job_failed(job, failure, now_ns)
        session.fault(failure, self._past_the_bound(FAULT_RULES[failure.fault].failed, is_exhausted), now_ns)

    def _on_prepare_failed(self, session: Session, job: Job, failure: Failure, now_ns: int) -> None:
        if failure.stage == QUEUE_STAGE:
            self._out.count("missed_queue_deadlines")
            session.worker.job_missed(job, now_ns)
            return
        self._out.count("faults_" + failure.fault.value)
        is_exhausted = session.worker.job_unstarted(job, failure, now_ns)
        then = self._past_the_bound(FAULT_RULES[failure.fault].refused, is_exhausted)
        if then not in (Aftermath.CARRY_ON, Aftermath.RETRY):  # it fenced nothing
            session.fault(failure, then, now_ns)

    def _past_the_bound(self, then: Aftermath, is_exhausted: bool) -> Aftermath:
        if not is_exhausted:
            return then
        self._out.count("retries_exhausted")
        return Aftermath.REBUILD
