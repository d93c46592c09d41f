"""The life of one session: load, serve, drain, recover, release.

Owns: the generation state and number, which lifecycle order is out, the drain in progress, and the valves of its
worker. Must not know: other sessions; a decision that needs them (a reset, an exit) is a wish the supervisor reads.

Life of a generation: Load -> Validate -> Configure -> Warm -> Ready. Ready ends in a drain whose aim is to unload,
to recover (Reset, then Configure with the next generation) or to fail. While a job is on the device nothing is
released or reset: a drain waits for it, at most a grace beyond its deadline, and then it counts as lost. While a
job is overdue nothing more goes in, whether the generation serves or drains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from calserve.core.commands import Configure, Release, ResetScope, Validate, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.events import Configured, Load, Released, ResetDone, Validated, Warmed
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FaultClass, FinishReason, RefusalKind
from calserve.core.shape import Shape, shape_of
from calserve.core.states import GENERATION_STEPS, GenerationEvent, GenerationState, step
from calserve.core.worker import Worker

G, GE = GenerationState, GenerationEvent
LOADING = (G.VALIDATING, G.CONFIGURING, G.WARMING)


class Aim(Enum):
    """What a drain ends in."""

    UNLOAD = "unload"
    RECOVER = "recover"
    FAIL = "fail"


@dataclass(slots=True)
class Drain:
    """may_run: admitted requests may still get jobs, until `until_ns`. grace_ns: set once only jobs on the device
    are waited for; past it they count as lost."""

    aim: Aim
    may_run: bool
    until_ns: int
    cause: Failure | None
    grace_ns: int | None = None


class Wish(Enum):
    """What only the supervisor may do."""

    NOTHING = "nothing"
    RESET = "reset"  # every job retired: reset when the budget allows
    RESET_LOST = "reset_lost"  # a job never returned


class Session:
    """Called only by the supervisor. `pending` names the one lifecycle order that has not been answered."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        outbox: Outbox,
        job_numbers: Callable[[], int],
        generations: Callable[[], int],
    ) -> None:
        self.name = name
        self.config = config
        self._out = outbox
        self._generations = generations
        self.worker = Worker(name, config, outbox, job_numbers)
        self.state = G.UNLOADED
        self.model = ""
        self.package = ""
        self.generation = 0
        self.failure: Failure | None = None
        self.pending = ""
        self.drain: Drain | None = None
        self.wish = Wish.NOTHING
        self.is_on_board = False  # something is configured that must be released
        self.is_fenced = False  # a lost job may still write: only the end of the process frees it
        self.reset_scope: ResetScope | None = None  # of the reset that is out
        self.unload_next = False  # release instead of configuring again
        self.load_next: Load | None = None  # replaces this package once it is released
        self.overdue_until_ns: int | None = None
        self._shape: Shape | None = None

    @property
    def proven(self) -> frozenset[str]:
        """Capabilities proven when it was last configured."""
        return self._shape.proven if self._shape is not None else frozenset()

    def _move(self, event: GenerationEvent) -> None:
        self.state = step(GENERATION_STEPS, self.state, event)

    def _order(self, command: Validate | Configure | Warm | Release, pending: str) -> None:
        self.pending = pending
        self._out.order(command)

    # --- load -------------------------------------------------------------------------------------------

    def load(self, event: Load, now_ns: int) -> None:
        """Bring a package up; over one that serves, after its answers ended. Ignored while another is in the works."""
        busy = self.state not in (G.UNLOADED, G.FAILED, G.READY)
        if busy or self.is_fenced or self.load_next is not None:
            self._out.count("ignored_loads")
            return
        if self.state is G.READY:
            self.load_next = event
            self.begin_drain(Aim.UNLOAD, now_ns, now_ns + self.config.deadline_default_ns)
        elif self.is_on_board:
            self.load_next = event
            if not self.pending:
                self._release()
        else:
            self._start_load(event)

    def _start_load(self, event: Load) -> None:
        self.model, self.package = event.model, event.package
        self.failure = None
        self.generation = self._generations()
        self._move(GE.LOAD)
        self._order(Validate(self.name, self.generation, self.model, self.package), "validate")

    def _is_answer(self, generation: int, pending: str) -> bool:
        """Whether this answers the order that is out; anything else is stale and only counted."""
        if generation == self.generation and self.pending == pending:
            self.pending = ""
            return True
        self._out.count("stale_events")
        return False

    def validated(self, event: Validated) -> None:
        if not self._is_answer(event.generation, "validate") or self.state is not G.VALIDATING:
            return
        if event.failure is not None:
            self.fail(event.failure)
            return
        self._move(GE.VALIDATED)
        self._order(Configure(self.name, self.generation, self.package), "configure")

    def configured(self, event: Configured) -> None:
        if not self._is_answer(event.generation, "configure"):
            return
        self.is_on_board = event.failure is None
        if self.state is not G.CONFIGURING:
            return
        if event.failure is not None or event.facts is None:
            self.fail(event.failure or Failure("configure", 0, FaultClass.PROGRAMMING, "no facts came"))
            return
        shape = shape_of(self.config, event.facts)
        if isinstance(shape, str):
            self.fail(Failure("configure", 0, FaultClass.COMPATIBILITY, shape))
            return
        self._shape = shape
        self._move(GE.CONFIGURED)
        self._order(Warm(self.name, self.generation), "warm")

    def warmed(self, event: Warmed) -> None:
        if not self._is_answer(event.generation, "warm") or self.state is not G.WARMING:
            return
        if event.failure is not None:
            self.fail(event.failure)
            return
        self._move(GE.WARMED)
        self.failure = None
        assert self._shape is not None
        self.worker.open(self.generation, self._shape.with_step_times(event.step_times))

    # --- drain ------------------------------------------------------------------------------------------

    def unload(self, deadline_ns: int, now_ns: int) -> None:
        """Drain by `deadline_ns`, then release. Idempotent; a second one may only bring the deadline forward."""
        self.load_next = None
        if self.state is G.FAILED:
            if not self.pending and not self.is_fenced:
                self._release()
        elif self.state is G.READY or self.state in LOADING:
            self.begin_drain(Aim.UNLOAD, now_ns, deadline_ns)
        elif self.state is G.DRAINING and self.drain is not None:
            self._join_drain(self.drain, deadline_ns)
        elif self.state is G.RECOVERING:
            self._unload_after_recovery()

    def _unload_after_recovery(self) -> None:
        self.unload_next = True
        self.worker.roster.restarting = False
        self.worker.roster.refuse_waiting(RefusalKind.MODEL_DRAINING)

    def _join_drain(self, drain: Drain, deadline_ns: int) -> None:
        drain.until_ns = min(drain.until_ns, deadline_ns)
        if drain.aim is Aim.RECOVER:
            self._unload_after_recovery()

    def begin_drain(
        self, aim: Aim, now_ns: int, until_ns: int, cause: Failure | None = None, *, may_run: bool = True
    ) -> None:
        """Stop admission. Requests that never started are told now, unless they can wait for a recovery."""
        self._move(GE.DRAIN)
        self.failure = cause
        self.drain = Drain(aim, may_run, until_ns, cause)
        self._turn_valves()
        self.worker.roster.restarting = aim is Aim.RECOVER
        if aim is Aim.UNLOAD:
            self.worker.roster.refuse_waiting(RefusalKind.MODEL_DRAINING)
        elif aim is Aim.FAIL:
            self.worker.roster.refuse_waiting(RefusalKind.MODEL_FAILED)
        self._advance_drain(self.drain, now_ns)

    def fault(self, failure: Failure, then: Aftermath, now_ns: int) -> None:
        """A job told us something about the generation. Worse news may harden a drain, never soften it."""
        bound = now_ns + self.config.recovery_drain_ns
        if then is Aftermath.CARRY_ON or then is Aftermath.RETRY:
            return
        if self.state is G.READY:
            if then is Aftermath.FAIL:
                self.begin_drain(Aim.FAIL, now_ns, bound, failure, may_run=False)
            else:
                may_run = then is Aftermath.DRAIN_AND_RECOVER
                self.begin_drain(Aim.RECOVER, now_ns, bound, failure, may_run=may_run)
        elif self.drain is not None and self.drain.may_run and then is not Aftermath.DRAIN_AND_RECOVER:
            self._harden(self.drain, failure, then, now_ns)

    def _harden(self, drain: Drain, failure: Failure, then: Aftermath, now_ns: int) -> None:
        """The device faulted during a drain: nothing more runs. An unload stays one: its release is near."""
        drain.cause = self.failure = failure
        if then is Aftermath.FAIL and drain.aim is Aim.RECOVER:
            drain.aim = Aim.FAIL
            self.worker.roster.restarting = False
            self.worker.roster.refuse_waiting(RefusalKind.MODEL_FAILED)
        drain.until_ns = now_ns
        self._advance_drain(drain, now_ns)

    def _advance_drain(self, drain: Drain, now_ns: int) -> None:
        worker = self.worker
        if drain.may_run and (not worker.roster.has_admitted or now_ns >= drain.until_ns):
            drain.may_run = False
        if drain.may_run:
            return
        self.overdue_until_ns = None  # from here the drain's own grace counts
        self._turn_valves()
        self._tell_admitted(drain)
        if self.pending:  # a lifecycle order is out: its answer comes first
            return
        if worker.in_flight == 0:
            self._conclude(drain, lost=False)
        elif drain.grace_ns is None:
            drain.grace_ns = now_ns + self.config.overdue_grace_ns
        elif now_ns >= drain.grace_ns:
            self._conclude(drain, lost=True)

    def _tell_admitted(self, drain: Drain) -> None:
        if not self.worker.roster.has_admitted:
            return
        cause = drain.cause
        if cause is None:
            self.worker.roster.end_admitted(FinishReason.SHUTDOWN)
        elif drain.aim is Aim.RECOVER:
            self.worker.roster.lose_admitted(FinishReason.DEVICE_FAULT, cause)
        else:
            self.worker.roster.end_admitted(FAULT_RULES[cause.fault].end, cause)

    def _conclude(self, drain: Drain, *, lost: bool) -> None:
        self.drain = None
        if lost:
            assert self.worker.serving is not None
            self._out.count("lost_jobs", self.worker.serving.flight.quarantine_all())
            self.unload_next = self.unload_next or drain.aim is Aim.UNLOAD
            self.failure = drain.cause or Failure("wait", 0, FaultClass.UNKNOWN, "a job never returned")
        self.worker.close()
        if lost or drain.aim is Aim.RECOVER:
            self._move(GE.RECOVER)
            self.wish = Wish.RESET_LOST if lost else Wish.RESET
        elif drain.aim is Aim.FAIL:
            self.fail(self.failure or Failure("drain", 0, FaultClass.UNKNOWN))
        else:
            self._release()

    # --- overdue ----------------------------------------------------------------------------------------

    @property
    def _may_run(self) -> bool:
        """Whether this generation may get jobs: it serves, or drains and lets the admitted end."""
        return self.state is G.READY or (self.drain is not None and self.drain.may_run)

    def _turn_valves(self) -> None:
        """What may go in follows from the state alone: nothing while a job is overdue, in a drain nobody new."""
        is_quiet = self.overdue_until_ns is None
        self.worker.admitting = is_quiet and self.state is G.READY
        self.worker.submitting = is_quiet and self._may_run

    def job_overdue(self, now_ns: int) -> None:
        """Nothing more goes in; everything is kept. If the job comes back within the grace, all goes on as before:
        serving, or a drain that began meanwhile."""
        if self._may_run and self.overdue_until_ns is None:
            self.overdue_until_ns = now_ns + self.config.overdue_grace_ns
            self._turn_valves()

    def job_returned(self) -> None:
        """A job retired; when none is overdue any more, the valves open again."""
        serving = self.worker.serving
        if self.overdue_until_ns is None or serving is None:
            return
        if not any(job.is_overdue for job in serving.flight.jobs.values()):
            self.overdue_until_ns = None
            self._turn_valves()

    def _give_up_overdue(self, now_ns: int) -> None:
        """It had its grace: it counts as lost at once."""
        cause = Failure("wait", 0, FaultClass.UNKNOWN, "a job never returned")
        if self.drain is None:
            self.begin_drain(Aim.RECOVER, now_ns, now_ns, cause, may_run=False)
        else:
            self._harden(self.drain, cause, Aftermath.RECOVER, now_ns)
        if self.drain is not None:
            self.drain.grace_ns = now_ns

    # --- release, reset, fail ---------------------------------------------------------------------------

    def _release(self) -> None:
        self._move(GE.UNLOAD)
        self._order(Release(self.name, self.generation), "release")

    def released(self, event: Released) -> None:
        if not self._is_answer(event.generation, "release"):
            return
        self.is_on_board = event.failure is not None
        if self.state is G.FAILED:
            if event.failure is not None:
                self.load_next = None
            self._continue_load()
        elif event.failure is not None:
            self.load_next = None
            self.is_fenced = True  # what it still holds is not known
            self.fail(event.failure)
        else:
            self._move(GE.RELEASED)
            self.unload_next = False
            self.failure = None
            self._continue_load()

    def _continue_load(self) -> None:
        if self.load_next is not None and not self.is_on_board:
            event, self.load_next = self.load_next, None
            self._start_load(event)

    def reset_done(self, event: ResetDone) -> bool:
        """Whether this answered our reset. A failure of it is the supervisor's to judge."""
        return self._is_answer(event.generation, "reset")

    def come_back(self) -> None:
        """The reset is through: nothing of the old generation is left on the device."""
        if self.unload_next:
            self._release()
            return
        self._move(GE.RECOVERED)
        self.generation = self._generations()
        self._order(Configure(self.name, self.generation, self.package), "configure")

    def fail(self, failure: Failure) -> None:
        """No way on. What is configured is released, unless a lost job may still write it."""
        self._move(GE.FAIL)
        self.failure = failure
        self.drain = None
        self.wish = Wish.NOTHING
        self.unload_next = False
        self.worker.roster.refuse_waiting(RefusalKind.MODEL_FAILED)
        self.worker.roster.end_admitted(FAULT_RULES[failure.fault].end, failure)
        if self.is_on_board and not self.is_fenced:
            self._order(Release(self.name, self.generation), "release")

    # --- time -------------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> None:
        """Request deadlines first: an event at the same instant finds them passed."""
        self.worker.roster.expire(now_ns)

    def settle(self, now_ns: int) -> None:
        """After every event: what time and retired jobs mean for the drain in progress, or for an overdue job."""
        if self.overdue_until_ns is not None and now_ns >= self.overdue_until_ns:
            self._give_up_overdue(now_ns)
        if self.drain is not None:
            self._advance_drain(self.drain, now_ns)

    def work(self, now_ns: int) -> None:
        """Then: lanes are filled, jobs go out."""
        self.worker.run(now_ns)

    def next_deadline_ns(self) -> int | None:
        times = [self.worker.next_deadline_ns(), self.overdue_until_ns]
        if self.drain is not None:
            times.append(self.drain.until_ns if self.drain.may_run else self.drain.grace_ns)
        return min((t for t in times if t is not None), default=None)
