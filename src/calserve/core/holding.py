"""What a session holds of its board: taken by a load, made anew by a recovery, given back by a release, or kept.

Owns: the package that is up and the one that comes next, its worker, the way back after a rebuild or a reset, and the
end of it: released, rolled back, failed, fenced. Must not know: drains' reasons, what a failure of a job means; that is
the session's.

Life: a load takes the package; `come_back` configures it again with the next number once nothing of the old generation
is left on the device; `released` ends it, or starts what was to come next. Where a job was lost and no reset ended it,
what it may write is never given back: the session is fenced, and only the end of the process frees it. Any other that
failed while it served is loaded again once the window has passed (`core.comeback`).
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.comeback import Comeback
from calserve.core.commands import Configure, Release, Validate
from calserve.core.concurrency import Concurrency, Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.drain import Drain
from calserve.core.events import Load, Released
from calserve.core.faults import FAULT_RULES, AdmissionEffect, Aftermath
from calserve.core.generation import Generation
from calserve.core.known_good import KnownGood
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FaultClass, RefusalKind
from calserve.core.recovery import Wish
from calserve.core.states import GenerationEvent, GenerationState
from calserve.core.worker import Worker

G, GE = GenerationState, GenerationEvent


class Holding(Generation):
    """The part of a session below its drains. Called only by the session and the supervisor."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        outbox: Outbox,
        job_numbers: Callable[[], int],
        generations: Callable[[], int],
    ) -> None:
        super().__init__(name, config, outbox, generations)
        self.concurrency = Concurrency(outbox, config.max_in_flight)
        self.worker = Worker(name, config, outbox, job_numbers, self.concurrency)
        self.known_good = KnownGood()
        self.comeback = Comeback(config)
        self._is_asked = False  # an operator ordered the load that comes next
        self.drain: Drain | None = None
        self.is_fenced = False  # a lost job may still write: only the end of the process frees it
        self.unload_next = False  # release instead of configuring again
        self.load_next: Load | None = None  # comes once this package is released

    def _start_load(self, event: Load) -> None:
        if self._is_asked:  # a roll-back or a comeback is nobody's new look at two jobs at once
            self.concurrency.renew()
        self._is_asked = False
        self._take_package(event)
        self.recovery.renew()
        self._begin_generation()
        self._move(GE.LOAD)
        self.orders.give(Validate(self.name, self.generation, self.model, self.package))

    def _condemn(self, cause: Failure) -> None:
        """It does not come back: refused for good, or Failed."""
        is_refused = FAULT_RULES[cause.fault].admission is AdmissionEffect.REFUSE_GENERATION
        (self._refuse_package if is_refused else self.fail)(cause)

    def _refuse_package(self, failure: Failure) -> None:
        """Failed, and then the last package that was good comes back, once. Whoever waited for the refused one is
        told: a request is bound to the package it was made for."""
        good = self.known_good.refuse(self.package)
        self.fail(failure)
        if good is not None:
            self._out.count("roll_backs")
            self.load_next = good
            self._continue_load()

    @property
    def comes_back_ns(self) -> int | None:
        """When it is to be tried again. Never while what it held may still be written, or is being released."""
        is_at_rest = self.state is G.FAILED and not self.pending and not self.is_fenced
        return self.comeback.due_ns if is_at_rest else None

    def try_again(self) -> None:
        """The window has passed: the last package that was good, or else the one that failed while it served."""
        self._out.count("comebacks")
        self.load_again(self.known_good.last or Load(self.name, self.model, self.package))

    def load_again(self, event: Load) -> None:
        """At once, or after the release of what is on the board; that of a failed package may still be out."""
        if not self.is_on_board:
            self._start_load(event)
            return
        self.load_next = event
        if not self.pending:
            self._release()

    def same_trouble_again(self, cause: Failure) -> None:
        """It was rebuilt for this within the window, and its class is none that a reset would help."""
        self._out.count("rebuilds_in_vain")
        if FAULT_RULES[cause.fault].again is Aftermath.REFUSE:
            self._refuse_package(cause)
        else:
            self.fail(cause)

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
        condemned, self.recovery.condemned = self.recovery.condemned, None
        if condemned is not None:
            self._condemn(condemned)
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
            self.recovery.want(Wish.RESET)
        elif self.recovery.has_failed_release:
            self.load_next = None
            self.is_fenced = True
            self.fail(failure)
        else:
            self.recovery.has_failed_release = self.unload_next = True
            self._move(GE.RECOVER)
            self.recovery.want(Wish.RESET)

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
        self.is_fenced = self.is_fenced or self.recovery.lost is not None
        self.recovery.wish = Wish.NOTHING
        self.unload_next = False
        self.orders.drop_retry()
        self.worker.roster.refuse_waiting(RefusalKind.MODEL_FAILED)
        self.worker.roster.end_admitted(FAULT_RULES[failure.fault].end, failure)
        if self.is_fenced:
            return
        self.comeback.failed(self.package, failure.fault, self._out.now_ns)
        if self.is_on_board:
            self.orders.give(Release(self.name, self.generation, failure))
