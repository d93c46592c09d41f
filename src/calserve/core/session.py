"""The life of one session: load, serve, drain, recover, release.

Owns: the generation state and number, what a failure starts, and the valves of its worker. Must not know: other
sessions; a decision that needs them (a reset, an exit) is a wish the supervisor reads.

Life of a generation: Load -> Validate -> Configure -> Warm -> Ready. Ready ends in a drain whose aim is to unload, to
recover or to fail. A recovery rebuilds the generation: it is released, or reset where what the device holds is in
doubt, and configured again with the next number; its goldens pass before it is Ready. A package that is refused is
rolled back, once, to the last one that was good. While a job is on the device nothing is released or reset; while a job
is overdue nothing more goes in, whether the generation serves or drains.
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.commands import Configure, Release, Validate, Warm
from calserve.core.concurrency import Concurrency, Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.drain import Aim, Drain, DrainEnd
from calserve.core.events import Configured, Load, Released, Validated, Warmed
from calserve.core.faults import FAULT_RULES, AdmissionEffect, Aftermath
from calserve.core.generation import Generation
from calserve.core.known_good import KnownGood
from calserve.core.outbox import Outbox
from calserve.core.outcomes import LOST_STAGE, Failure, FaultClass, RefusalKind
from calserve.core.recovery import Wish
from calserve.core.roster import Roster
from calserve.core.shape import shape_of
from calserve.core.states import GenerationEvent, GenerationState
from calserve.core.worker import Worker

G, GE = GenerationState, GenerationEvent
LOADING = (G.VALIDATING, G.CONFIGURING, G.WARMING)


class Session(Generation):
    """Called only by the supervisor and the engine."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        outbox: Outbox,
        job_numbers: Callable[[], int],
        generations: Callable[[], int],
        find_sibling: Callable[[Session], Roster | None],
    ) -> None:
        """find_sibling: the roster of another session that is Ready with the same package and name, or None."""
        super().__init__(name, config, outbox, generations)
        self.concurrency = Concurrency(outbox)
        self.worker = Worker(name, config, outbox, job_numbers, self.concurrency)
        self.worker.roster.find_sibling = lambda: find_sibling(self)
        self.known_good = KnownGood()
        self.drain: Drain | None = None
        self.is_fenced = False  # a lost job may still write: only the end of the process frees it
        self.unload_next = False  # release instead of configuring again
        self.load_next: Load | None = None  # comes once this package is released
        self._fence_cause: Failure | None = None  # the last failure that fenced lanes and let the others serve

    @property
    def is_coming_back(self) -> bool:
        """Whether it stops serving only to serve again by itself."""
        is_draining_for_it = self.drain is not None and self.drain.aim is Aim.RECOVER
        is_rolling_back = self.state is G.FAILED and self.load_next is not None
        return self.state is G.RECOVERING or is_draining_for_it or is_rolling_back

    # --- load -------------------------------------------------------------------------------------------

    def load(self, event: Load, now_ns: int) -> None:
        """Bring a package up; over one that serves, after its answers ended. Ignored while another is in the works."""
        busy = self.state not in (G.UNLOADED, G.FAILED, G.READY)
        if busy or self.is_fenced or self.load_next is not None:
            self._out.count("ignored_loads")
            return
        self.known_good.asked()
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
        if not self.known_good.refused:  # a roll-back is nobody's new look at two jobs at once
            self.concurrency.renew()
        self._take_package(event)
        self.recovery.renew()
        self._begin_generation()
        self._move(GE.LOAD)
        self.orders.give(Validate(self.name, self.generation, self.model, self.package))

    def validated(self, event: Validated, now_ns: int) -> None:
        if not self.is_answer(event.generation, "validate") or self.state is not G.VALIDATING:
            return
        if event.failure is not None:
            self._order_failed(event.failure, now_ns)
            return
        self._move(GE.VALIDATED)
        self.orders.give(Configure(self.name, self.generation, self.package))

    def configured(self, event: Configured, now_ns: int) -> None:
        if not self.is_answer(event.generation, "configure"):
            return
        self.is_on_board = event.failure is None
        if self.state is not G.CONFIGURING:
            return
        if event.failure is not None or event.facts is None:
            none = Failure("configure", 0, FaultClass.PROGRAMMING, "no facts came")
            self._order_failed(event.failure or none, now_ns)
            return
        shape = shape_of(self.config, event.facts)
        if isinstance(shape, str):
            self._order_failed(Failure("configure", 0, FaultClass.COMPATIBILITY, shape), now_ns)
            return
        self._shape = shape
        self._move(GE.CONFIGURED)
        self.orders.give(Warm(self.name, self.generation))

    def warmed(self, event: Warmed, now_ns: int) -> None:
        if not self.is_answer(event.generation, "warm") or self.state is not G.WARMING:
            return
        if event.failure is not None:
            self._order_failed(event.failure, now_ns)
            return
        self._move(GE.WARMED)
        self.failure = self._fence_cause = None
        self.recovery.was_ready = True
        self.known_good.ready(Load(self.name, self.model, self.package))
        assert self._shape is not None
        self.worker.open(self.generation, self._shape.with_step_times(event.step_times))

    def _order_failed(self, failure: Failure, now_ns: int) -> None:
        """Validate, configure or warm did not succeed. Validation touches no board, so nothing there is rebuilt."""
        self._out.count("faults_" + failure.fault.value)
        is_lost = failure.stage == LOST_STAGE
        then = Aftermath.RESET if is_lost else FAULT_RULES[failure.fault].ordered
        if then is Aftermath.RETRY:
            if self.orders.try_again(now_ns):
                return
            then = Aftermath.RESET
        has_tried = self.recovery.was_rebuilt(now_ns, self.config.reset_window_ns) and then is Aftermath.REBUILD
        if has_tried or (self.state is G.VALIDATING and then is not Aftermath.STOP):
            then = Aftermath.REFUSE
        if then is Aftermath.STOP:
            self.fail(failure)
        elif then is Aftermath.REFUSE:
            self._refuse_package(failure)
        else:
            self.begin_drain(Aim.RECOVER, now_ns, now_ns, failure, may_run=False)
            if is_lost:
                self.concurrency.lower(Doubt.RECOVERY)
                self.recovery.wish = Wish.RESET_LOST
            elif then is Aftermath.RESET:
                self.recovery.wish = Wish.RESET

    def _refuse_package(self, failure: Failure) -> None:
        """Failed, and then the last package that was good comes back, once. Whoever waited for the refused one is
        told: a request is bound to the package it was made for."""
        good = self.known_good.refuse(self.package)
        self.fail(failure)
        if good is not None:
            self._out.count("roll_backs")
            self.load_next = good
            self._continue_load()

    # --- drain ------------------------------------------------------------------------------------------

    def unload(self, deadline_ns: int, now_ns: int) -> None:
        """Drain by `deadline_ns`, then release. Idempotent; a second one may only bring the deadline forward."""
        self.load_next = None
        if self.state is G.FAILED:
            if not self.pending and not self.is_fenced:
                self._release()
        elif self.state is G.READY or self.state in LOADING:
            self.begin_drain(Aim.UNLOAD, now_ns, deadline_ns)
        elif self.drain is not None:
            self.drain.until_ns = min(self.drain.until_ns, deadline_ns)
            if self.drain.aim is Aim.RECOVER:
                self._unload_after_recovery()
            elif self.drain.aim is Aim.FAIL:
                self.drain.aim = Aim.UNLOAD  # refused or not, it comes down, and nothing comes back in its place
        elif self.state is G.RECOVERING:
            self._unload_after_recovery()

    def _unload_after_recovery(self) -> None:
        self.unload_next = True
        self.worker.roster.restarting = False
        self.worker.roster.refuse_waiting(RefusalKind.MODEL_DRAINING)

    def begin_drain(
        self, aim: Aim, now_ns: int, until_ns: int, cause: Failure | None = None, *, may_run: bool = True
    ) -> None:
        """Stop admission."""
        self._move(GE.DRAIN)
        self.failure = cause
        self.orders.drop_retry()
        self.drain = Drain(aim, may_run, until_ns, cause)
        self._turn_valves()
        self._tell_waiting(aim)
        self._advance_drain(self.drain, now_ns)

    def _tell_waiting(self, aim: Aim) -> None:
        """Requests that never started are told now, unless they can wait for a recovery."""
        self.worker.roster.restarting = aim is Aim.RECOVER
        if aim is not Aim.RECOVER:
            self.worker.roster.refuse_waiting(
                RefusalKind.MODEL_DRAINING if aim is Aim.UNLOAD else RefusalKind.MODEL_FAILED
            )

    def fault(self, failure: Failure, then: Aftermath, now_ns: int) -> None:
        """A job told us something about the generation."""
        if then is Aftermath.CARRY_ON or then is Aftermath.RETRY:
            self._fence_cause = failure
            return
        if self.state is not G.READY:
            if self.drain is not None and self.drain.worsen(failure, then, now_ns):
                self.failure = failure
                self._tell_waiting(self.drain.aim)
                self._advance_drain(self.drain, now_ns)
            return
        aim = Aim.FAIL if then in (Aftermath.REFUSE, Aftermath.STOP) else Aim.RECOVER
        until_ns = now_ns + self.config.recovery_drain_ns
        self.begin_drain(aim, now_ns, until_ns, failure, may_run=then is Aftermath.DRAIN_AND_REBUILD)

    def _advance_drain(self, drain: Drain, now_ns: int) -> None:
        if not drain.stop_if_due(self.worker.roster, now_ns):
            return
        self._turn_valves()
        drain.tell_admitted(self.worker.roster)
        if self.pending:  # its answer comes first
            return
        end = drain.wait_for_jobs(self.worker, now_ns, self.config.overdue_grace_ns)
        if end is not None:
            self._conclude(drain, end)

    def _conclude(self, drain: Drain, end: DrainEnd) -> None:
        self.drain = None
        if end is DrainEnd.LOST:
            self.worker.lose_jobs()
            self.unload_next = self.unload_next or drain.aim is Aim.UNLOAD
            self.failure = drain.cause or Failure("wait", 0, FaultClass.UNKNOWN, "a job never returned")
        self.worker.close()
        if end is DrainEnd.LOST:
            self._move(GE.RECOVER)
            self.recovery.wish = Wish.RESET_LOST
        elif drain.aim is Aim.RECOVER:
            self.failure = drain.cause
            self._move(GE.RECOVER)
            self.recovery.ask(drain.cause)
        elif drain.aim is Aim.FAIL:
            cause = drain.cause or Failure("drain", 0, FaultClass.UNKNOWN)
            is_refused = FAULT_RULES[cause.fault].admission is AdmissionEffect.REFUSE_GENERATION
            (self._refuse_package if is_refused else self.fail)(cause)
        else:
            self._release()

    def _turn_valves(self) -> None:
        """What may go in follows from the state alone: in a drain nobody new, and jobs while it lets them run."""
        may_drain = self.drain is not None and self.drain.may_run
        self.worker.turn_valves(admitting=self.state is G.READY, submitting=self.state is G.READY or may_drain)

    def _give_up_overdue(self, now_ns: int) -> None:
        """It had its grace: it counts as lost at once."""
        self.fault(Failure("wait", 0, FaultClass.UNKNOWN, "a job never returned"), Aftermath.RESET, now_ns)
        if self.drain is not None:
            self.drain.grace_ns = now_ns

    # --- rebuild, release, reset, fail ------------------------------------------------------------------

    def reset_failed(self, failure: Failure) -> None:
        """It ended nothing: a wider one is wanted."""
        self.failure = failure
        self.recovery.reset_failed()
        self.concurrency.lower(Doubt.RECOVERY)

    def come_back(self) -> None:
        """Nothing of the old generation is left on the device."""
        self.recovery.reset_done()
        if self.unload_next:
            self._release()
            return
        self._move(GE.RECOVERED)
        self._begin_generation()
        self.orders.give(Configure(self.name, self.generation, self.package))

    def _release(self) -> None:
        self._move(GE.UNLOAD)
        self.orders.give(Release(self.name, self.generation))

    def released(self, event: Released) -> None:
        if not self.is_answer(event.generation, "release"):
            return
        self.is_on_board = event.failure is not None
        if self.state is G.FAILED:
            if event.failure is not None:
                self.load_next = None
            self._continue_load()
        elif event.failure is not None:
            self._release_failed(event.failure)
        elif self.state is G.RECOVERING and not self.unload_next:
            self.come_back()
        else:
            if self.state is G.RECOVERING:
                self._move(GE.UNLOAD)
            self._unloaded()

    def _unloaded(self) -> None:
        self._move(GE.RELEASED)
        self.unload_next = False
        self.failure = None
        if self.load_next is None:
            self.known_good.clear()
        self._continue_load()

    def _release_failed(self, failure: Failure) -> None:
        """What it still holds is not known: a reset, once; after that only the end of the process frees it."""
        self.failure = failure
        if self.state is G.RECOVERING:
            self.recovery.wish = Wish.RESET
        elif self.recovery.has_failed_release:
            self.load_next = None
            self.is_fenced = True
            self.fail(failure)
        else:
            self.recovery.has_failed_release = self.unload_next = True
            self._move(GE.RECOVER)
            self.recovery.wish = Wish.RESET

    def _order_lost(self) -> None:
        """Validate to reset, it was not answered in time: who orders more would only wait behind it."""
        failure = Failure(self.pending, 0, FaultClass.UNKNOWN, "the order was never answered")
        self._out.count("lost_orders")
        self.orders.forget()
        self.load_next = None
        self.is_fenced = True
        self.concurrency.lower(Doubt.RECOVERY)
        if self.state is G.FAILED:
            self.failure = failure
        else:
            self.fail(failure)
        self.recovery.wish = Wish.GIVE_UP

    def _continue_load(self) -> None:
        if self.load_next is not None and not self.is_on_board:
            event, self.load_next = self.load_next, None
            self._start_load(event)

    def fail(self, failure: Failure) -> None:
        """No way on. What is configured is released, unless a lost job may still write it."""
        self._move(GE.FAIL)
        self.failure = failure
        self.drain = None
        self.recovery.wish = Wish.NOTHING
        self.unload_next = False
        self.orders.drop_retry()
        self.worker.roster.refuse_waiting(RefusalKind.MODEL_FAILED)
        self.worker.roster.end_admitted(FAULT_RULES[failure.fault].end, failure)
        if self.is_on_board and not self.is_fenced:
            self.orders.give(Release(self.name, self.generation, failure))

    # --- time -------------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> None:
        """Request deadlines first: an event at the same instant finds them passed."""
        self.worker.roster.expire(now_ns)

    def settle(self, now_ns: int) -> None:
        """After every event: what time and retired jobs mean for the drain in progress, for an overdue job, or for an
        order that is to go out again."""
        if self.orders.due_ns is not None and now_ns >= self.orders.due_ns:
            self._order_lost()
        due = self.worker.overdue_until_ns
        if due is not None and now_ns >= due:
            self._give_up_overdue(now_ns)
        if self.drain is not None:
            self._advance_drain(self.drain, now_ns)
        self.orders.run_due(now_ns)

    def work(self, now_ns: int) -> None:
        """Then: lanes are filled, jobs go out. Where fenced lanes leave too little, the generation is rebuilt."""
        self.worker.run(now_ns)
        if self._fence_cause is not None and self.state is G.READY and self.worker.is_cramped:
            self._out.count("cramped_generations")
            self.fault(self._fence_cause, Aftermath.DRAIN_AND_REBUILD, now_ns)

    def next_deadline_ns(self) -> int | None:
        times = [self.worker.next_deadline_ns(), self.orders.again_ns, self.orders.due_ns]
        if self.drain is not None:
            times.append(self.drain.next_ns)
        return min((t for t in times if t is not None), default=None)
