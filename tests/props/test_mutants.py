"""Planted bugs the naive model must find with the engine's own assertions off, each by one patched method.

Every mutant drops one guard. The run is derandomized: the same examples every time, and the unpatched engine
passes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_engine_machine import EngineMachine

from calserve.core.concurrency import Concurrency
from calserve.core.config import SchedulerConfig
from calserve.core.events import JobDone
from calserve.core.flight import Flight, Job
from calserve.core.kv import KvLedger, KvTransaction, Lane
from calserve.core.outcomes import Failure, FinishReason
from calserve.core.request import Request
from calserve.core.retirement import Retirement
from calserve.core.roster import Roster, Serving
from calserve.core.session import Session
from calserve.core.states import LaneState
from calserve.core.supervisor import Supervisor

RUN = settings(
    max_examples=1000,  # what Hypothesis draws depends on what is imported: enough for any of it
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Unscanned(EngineMachine):
    scan = False


def drop_the_reservation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KvLedger, "can_reserve", lambda ledger, tokens: ledger.free_lanes > 0)


def swap_two_rows(patch: pytest.MonkeyPatch) -> None:
    done = Retirement.done

    def swapped(
        self: Retirement, serving: Serving, job: Job, event: JobDone, now_ns: int, steps: int
    ) -> Failure | None:
        return done(self, serving, job, replace(event, rows=event.rows[::-1]), now_ns, steps)

    patch.setattr(Retirement, "done", swapped)


def swap_two_kv_units(patch: pytest.MonkeyPatch) -> None:
    begin = KvLedger.begin

    def swapped(self: KvLedger, lane: Lane, tokens: int) -> KvTransaction:
        txn = begin(self, lane, tokens)
        other = next((one for one in self.lanes if one is not lane and one.units), None)
        if other is not None:
            lane.units[0], other.units[0] = other.units[0], lane.units[0]
        return txn

    patch.setattr(KvLedger, "begin", swapped)


def return_a_lane_on_cancel(patch: pytest.MonkeyPatch) -> None:
    release = KvLedger.release

    def at_once(self: KvLedger, lane: Lane) -> None:
        if lane.state is LaneState.UPDATING:
            lane.state = LaneState.ACTIVE
        release(self, lane)

    def commit(self: KvLedger, txn: KvTransaction) -> None:
        if txn.lane.state is LaneState.UPDATING:
            txn.lane.state = LaneState.ACTIVE
            txn.lane.committed = txn.target

    patch.setattr(KvLedger, "release", at_once)
    patch.setattr(KvLedger, "commit", commit)


def skip_the_generation_check(patch: pytest.MonkeyPatch) -> None:
    def any_session(self: Supervisor, generation: int) -> Session | None:
        return next(iter(self.sessions.values()), None)

    patch.setattr(Supervisor, "of_generation", any_session)


def drop_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flight, "retire_failed", Flight.retire_done)


def deliver_to_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "is_row_live", lambda job, index: True)


def ignore_the_limit_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flight, "is_full", property(lambda flight: len(flight.jobs) > 2))


def restart_what_was_seen(patch: pytest.MonkeyPatch) -> None:
    lose = Roster.lose

    def blind(self: Roster, request: Request, reason: FinishReason, failure: Failure) -> None:
        request.deliveries = 0
        lose(self, request, reason, failure)

    patch.setattr(Roster, "lose", blind)


def restart_again_and_again(patch: pytest.MonkeyPatch) -> None:
    lose = Roster.lose

    def forgetful(self: Roster, request: Request, reason: FinishReason, failure: Failure) -> None:
        request.restarted = False
        lose(self, request, reason, failure)

    patch.setattr(Roster, "lose", forgetful)


def free_twice(patch: pytest.MonkeyPatch) -> None:
    free = KvLedger._free

    def twice(self: KvLedger, lane: Lane) -> None:
        units = list(lane.units)
        free(self, lane)
        self._free_units += units

    patch.setattr(KvLedger, "_free", twice)


def release_under_a_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("calserve.core.worker.Worker.in_flight", property(lambda worker: 0))


def ignore_the_downgrade(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Concurrency, "lower", lambda room, doubt: None)


def forget_the_downgrade_in_a_recovery(patch: pytest.MonkeyPatch) -> None:
    def opened(room: Concurrency, proven: int) -> None:
        room.allowed, room.reason = proven, ""

    patch.setattr(Concurrency, "open", opened)


def rebuild_onto_the_old_ledger(patch: pytest.MonkeyPatch) -> None:
    """A generation that is made anew goes on where the old one was."""
    close = Roster.close

    def keep(self: Roster) -> None:
        serving = self.serving
        close(self)
        self.serving = serving

    patch.setattr(Roster, "close", keep)


def hand_over_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who is to go to a sibling leaves this line and arrives in no other."""

    def dropped(self: Roster) -> None:
        for request in list(self.line) if self.find_sibling() is not None else ():
            self.line.remove(request)
            self._forget(request)

    patch.setattr(Roster, "hand_over", dropped)


def forget_the_lost_job(patch: pytest.MonkeyPatch) -> None:
    """A job that may write on counts as one that came back bad."""
    patch.setattr(Session, "job_lost", lambda session, failure, doubt: None)


def retry_without_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchedulerConfig, "backoff_ns", lambda config, tries: 0)


MUTANTS = [
    forget_the_lost_job,
    ignore_the_downgrade,
    forget_the_downgrade_in_a_recovery,
    rebuild_onto_the_old_ledger,
    hand_over_to_nobody,
    retry_without_a_pause,
    drop_the_reservation,
    swap_two_rows,
    swap_two_kv_units,
    return_a_lane_on_cancel,
    skip_the_generation_check,
    drop_the_fence,
    deliver_to_the_dead,
    ignore_the_limit_in_flight,
    restart_what_was_seen,
    restart_again_and_again,
    free_twice,
    release_under_a_job,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found_by_the_naive_model(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Exception) as found:  # noqa: PT011 - whatever breaks first: the model, or the engine itself
        run_state_machine_as_test(Unscanned, settings=RUN)
    assert not isinstance(found.value, TypeError | AttributeError | NameError), "the test is broken, not the engine"


@pytest.mark.slow
def test_the_unpatched_engine_passes_the_same_examples() -> None:
    run_state_machine_as_test(Unscanned, settings=RUN)
