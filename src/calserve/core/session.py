"""The life of one session: load, serve, drain, recover, release.

Owns: the generation state and number, what a failure starts, and the valves of its worker. Must not know: other
sessions; a decision that needs them (a reset, an exit) is a wish the supervisor reads.

Life of a generation: Load -> Validate -> Configure -> Warm -> Ready. Ready ends in a drain whose aim is to unload, to
recover or to fail. A recovery rebuilds the generation: it is released, or reset where what the device holds is in
doubt, and configured again with the next number; its goldens pass before it is Ready. A package that is refused is
rolled back, once, to the last one that was good. What Failed while it served, and has nothing to go back to, is tried
again after a window (`core.comeback`). While a job is on the device nothing is released or reset; while a job is
overdue nothing more goes in, whether the generation serves or drains.
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.commands import Configure, Warm
from calserve.core.concurrency import Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.drain import Aim, Drain, DrainEnd
from calserve.core.events import Configured, Load, Validated, Warmed
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.holding import Holding
from calserve.core.outbox import Outbox
from calserve.core.outcomes import LOST_STAGE, Failure, FaultClass, RefusalKind
from calserve.core.recovery import Wish
from calserve.core.roster import Roster
from calserve.core.shape import shape_of
from calserve.core.states import GenerationEvent, GenerationState

G, GE = GenerationState, GenerationEvent
LOADING = (G.VALIDATING, G.CONFIGURING, G.WARMING)
NEVER_RETURNED = Failure("wait", 0, FaultClass.UNKNOWN, "a job never returned")


class Session(Holding):
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
        super().__init__(name, config, outbox, job_numbers, generations)
        self.worker.roster.find_sibling = lambda: find_sibling(self)
        self._fence_cause: Failure | None = None  # the last failure that fenced lanes and let the others serve
        self._stands_still = False  # the drain in progress is for a sibling's reset alone

    @property
    def is_coming_back(self) -> bool:
        """Whether it stops serving only to serve again by itself."""
        is_draining_for_it = self.drain is not None and self.drain.aim is Aim.RECOVER
        is_rolling_back = self.state is G.FAILED and self.load_next is not None
        is_recovering = self.state is G.RECOVERING and self.recovery.condemned is None
        return is_recovering or is_draining_for_it or is_rolling_back

    # --- load -------------------------------------------------------------------------------------------

    def load(self, event: Load, now_ns: int) -> None:
        """Bring a package up; over one that serves, after its answers ended. Ignored while another is in the works."""
        busy = self.state not in (G.UNLOADED, G.FAILED, G.READY)
        if busy or self.is_fenced or self.load_next is not None:
            self._out.count("ignored_loads")
            return
        self.known_good.asked()
        self.comeback.forget()
        self._is_asked = True
        if self.state is G.READY:
            self.load_next = event
            self.begin_drain(Aim.UNLOAD, now_ns, now_ns + self.config.deadline_default_ns)
        else:
            self.load_again(event)

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
        self.recovery.holds_unknown = event.failure is not None and (
            self.recovery.holds_unknown or event.failure.fault is FaultClass.UNKNOWN
        )
        if self.recovery.holds_unknown:
            self._told = event.proven
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
        if not self.is_answer(event.generation, "warm"):
            return
        if event.failure is not None and event.failure.stage == LOST_STAGE:  # also where a drain did not wait for it
            self.job_lost(event.failure, Doubt.RECOVERY)
        if self.state is not G.WARMING:
            return
        if event.failure is not None:
            self._order_failed(event.failure, now_ns)
            return
        self._move(GE.WARMED)
        self.failure = self._fence_cause = None
        self.recovery.was_ready = True
        self.known_good.ready(Load(self.name, self.model, self.package))
        self.comeback.ready(self.package, now_ns)
        assert self._shape is not None
        self.worker.open(self.generation, self._shape.with_step_times(event.step_times))

    def _order_failed(self, failure: Failure, now_ns: int) -> None:
        """Validate, configure or warm did not succeed. Validation touches no board, so nothing there is rebuilt."""
        self._out.count("faults_" + failure.fault.value)
        then = FAULT_RULES[failure.fault].ordered
        is_in_the_way = self.recovery.holds_unknown and then is Aftermath.REBUILD  # a release would not reach it
        if self.recovery.lost is not None or is_in_the_way:
            then = Aftermath.RESET
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
            if then is Aftermath.RESET:
                self.recovery.want(Wish.RESET)

    # --- drain ------------------------------------------------------------------------------------------

    def unload(self, deadline_ns: int, now_ns: int) -> None:
        """Drain by `deadline_ns`, then release. Idempotent; a second one may only bring the deadline forward."""
        self.load_next = None
        self.comeback.forget()
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
        self._stands_still = False
        if self.state is not G.READY:
            if self.drain is not None and self.drain.worsen(failure, then, now_ns):
                self.failure = failure
                self._tell_waiting(self.drain.aim)
                self._advance_drain(self.drain, now_ns)
            return
        aim = Aim.FAIL if then in (Aftermath.REFUSE, Aftermath.STOP) else Aim.RECOVER
        until_ns = now_ns + self.config.recovery_drain_ns
        self.begin_drain(aim, now_ns, until_ns, failure, may_run=then is Aftermath.DRAIN_AND_REBUILD)

    def job_lost(self, failure: Failure, doubt: Doubt) -> None:
        """The board never said that a job of ours is over, and nobody waits for it any more: whatever its class, and
        whatever this session was about to do, only a reset that is proven to end its writes is an answer."""
        self._out.count("lost_jobs")
        self.concurrency.lower(doubt)
        if self.recovery.lost is None:
            self.recovery.lost = failure

    def stand_still(self, cause: Failure, now_ns: int) -> None:
        """A sibling wants a reset that takes every session along. Whoever is admitted may end within the bound."""
        self._stands_still = True
        self.begin_drain(Aim.RECOVER, now_ns, now_ns + self.config.recovery_drain_ns, cause)

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
        """Nothing of it runs any more. Where a job was lost, whatever was to follow waits for the reset that ends its
        writes: to release what it may still write would be to give it away."""
        self.drain = None
        if end is DrainEnd.LOST:
            self.worker.lose_jobs()
            known = None if drain.aim is Aim.FAIL else drain.cause
            self.recovery.lost = self.recovery.lost or known or NEVER_RETURNED
        self.worker.close()
        lost = self.recovery.lost
        if lost is not None:
            self.unload_next = self.unload_next or drain.aim is Aim.UNLOAD
            if drain.aim is Aim.FAIL:  # no reset makes a refused package good
                self.recovery.condemned = drain.cause or lost
            self.failure = lost
            self._move(GE.RECOVER)
            self.recovery.want(Wish.RESET_LOST)
        elif drain.aim is Aim.RECOVER:
            self.failure = drain.cause
            self._move(GE.RECOVER)
            stands_still, self._stands_still = self._stands_still, False
            if stands_still:
                self.recovery.want(Wish.FOLLOW)
            else:
                self.recovery.ask(drain.cause)
        elif drain.aim is Aim.FAIL:
            self._condemn(drain.cause or Failure("drain", 0, FaultClass.UNKNOWN))
        else:
            self._release()

    def _turn_valves(self) -> None:
        """What may go in follows from the state alone: in a drain nobody new, and jobs while it lets them run."""
        may_drain = self.drain is not None and self.drain.may_run
        self.worker.turn_valves(admitting=self.state is G.READY, submitting=self.state is G.READY or may_drain)

    def _give_up_overdue(self, now_ns: int) -> None:
        """It had its grace: it counts as lost at once."""
        self.fault(NEVER_RETURNED, Aftermath.RESET, now_ns)
        if self.drain is not None:
            self.drain.grace_ns = now_ns

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
        if (due_ns := self.comes_back_ns) is not None and now_ns >= due_ns:
            self.try_again()

    def work(self, now_ns: int) -> None:
        """Then: lanes are filled, jobs go out. Where fenced lanes leave too little, the generation is rebuilt."""
        self.worker.run(now_ns)
        if self._fence_cause is not None and self.state is G.READY and self.worker.is_cramped:
            self._out.count("cramped_generations")
            self.fault(self._fence_cause, Aftermath.DRAIN_AND_REBUILD, now_ns)

    def next_deadline_ns(self) -> int | None:
        times = [self.worker.next_deadline_ns(), self.orders.again_ns, self.orders.due_ns, self.comes_back_ns]
        if self.drain is not None:
            times.append(self.drain.next_ns)
        return min((t for t in times if t is not None), default=None)
