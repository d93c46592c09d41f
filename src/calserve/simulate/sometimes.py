"""Rare paths: a run that never took them has proven nothing about them.

Owns: the names of the paths, how each shows in the record of events and commands, and how often it was seen. Must not
know: what should have happened then. Life: made for a run, told everything the recorders are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calserve.core.commands import Command, Exit, Finish, Reset, SubmitJob
from calserve.core.events import (
    BoardAnomaly,
    Event,
    JobDone,
    JobFailed,
    JobOverdue,
    KvReleased,
    PrepareFailed,
    ResetDone,
    Shutdown,
    Validated,
)
from calserve.core.job import JobSpec
from calserve.core.outcomes import KV_STAGE, FinishReason, RefusalKind
from calserve.simulate.plan import HOUR

# Every path a long run must have taken, and what it is.
PATHS = {
    "storm": "more requests at once than the queues take",
    "queue_full": "a request was refused because the line was full",
    "cancel_before_submit": "a request ended by cancel while no job held it",
    "cancel_after_submit": "a request ended by cancel while the device ran its job",
    "deadline_waiting": "a deadline passed in the line",
    "deadline_running": "a deadline passed while the device ran its job",
    "recovery_with_open_kv_transaction": "a reset was ordered while a job had not come back",
    "late_completion_after_reset": "a completion of an older generation came and was dropped",
    "overdue_came_back": "a job past its deadline came back within the grace",
    "lost_job": "a job never came back",
    "downgrade_2_to_1": "two jobs in flight were given up for one",
    "transient_refusal": "the board said busy and the job went again",
    "queue_deadline": "a job was not with the board in time and rolled back",
    "kv_wait": "the board had no KV to give and somebody waited for it",
    "device_fault": "a request was lost with the device",
    "restarted_unseen": "a request whose client had seen nothing started over",
    "whole_answer_restarted": "a whole answer started over that was in the middle",
    "ccu_exception": "a job came back with a good code and a bad status",
    "bad_output": "logits were not finite or not all there",
    "prepare_failed": "a job failed before the device saw it",
    "buffers_quarantined": "buffers were put away",
    "reset": "a reset was ordered",
    "reset_failed": "a reset did not work",
    "budget_exhausted": "a recovery was wanted beyond the budget of resets",
    "exit_for_supervisor": "the process ended because memory may still be written",
    "process_killed": "the process was killed",
    "restart_with_device_memory": "a process started on a device that kept its memory",
    "drain_with_work": "a drain began while requests ran",
    "replace_package": "a package was replaced while it served",
    "unload": "an operator took a session down",
    "bad_package": "a package was refused",
    "roll_back": "the last good package came back",
    "stalled_reader": "a reader stopped reading",
    "sibling_served": "one session gave tokens while another recovered",
    "to_the_context": "a request filled the context",
    "anomaly": "the board's own counters did not close",
    "rebuild": "a generation was rebuilt without a reset",
    "feature_off": "a feature the board refused was switched off",
}


class Sometimes:
    """A recorder (see `executor.messages`) that counts paths. Invariants: only names of `PATHS` are counted."""

    def __init__(self) -> None:
        self.seen = dict.fromkeys(PATHS, 0)
        self._out: dict[int, JobSpec] = {}
        self._flying: dict[str, int] = {}  # request -> job that has its row
        self._overdue: set[int] = set()
        self.is_one_away = False  # a session recovers while another serves
        self.paired_jobs = 0  # that went out while another of their session was out
        self._full_hours: set[int] = set()  # of virtual time, in which the queue was full

    def load(self, until_ns: int) -> dict[str, int]:
        """Whole hours of a run that ends at `until_ns`, at least one; in how many of them the queue was full; pairs."""
        hours = max(1, until_ns // HOUR)
        full = sum(1 for hour in self._full_hours if hour < hours)
        return {"hours": hours, "queue_full_hours": full, "paired_jobs": self.paired_jobs}

    def mark(self, name: str, times: int = 1) -> None:
        self.seen[name] += times

    def count(self, counters: Mapping[str, int]) -> None:
        """What a server counted by itself, when its process ends."""
        for counter, count in counters.items():
            path = _COUNTED.get(counter.split("_")[0] + "_" if counter.startswith("downgrades_") else counter)
            if path is not None:
                self.mark(path, count)

    def process_started(self) -> None:
        """Jobs of another process are not this one's."""
        self.is_one_away = False
        self._out.clear()
        self._flying.clear()
        self._overdue.clear()

    @property
    def unseen(self) -> list[str]:
        return [name for name, count in self.seen.items() if not count]

    def __call__(self, now_ns: int, event: Event, commands: Sequence[Command]) -> None:
        look = _LOOK.get(type(event))
        if look is not None:
            look(self, event)
        for command in commands:
            if isinstance(command, SubmitJob):
                back = event.job if isinstance(event, JobDone | JobFailed | PrepareFailed) else 0
                self._keep(command.spec, back)
            elif isinstance(command, Finish):
                self._finish(now_ns, command, event)
            elif isinstance(command, Reset):
                self._reset(command)
            elif isinstance(command, Exit) and command.code:
                self.mark("exit_for_supervisor")
        if isinstance(event, JobDone | JobFailed | PrepareFailed):
            self._forget(event.job)

    def _keep(self, spec: JobSpec, back: int) -> None:
        """back: the job whose return made room for it, 0 for none."""
        self.paired_jobs += any(
            number != back and (other.session, other.generation) == (spec.session, spec.generation)
            for number, other in self._out.items()
        )
        self._out[spec.job] = spec
        for row in spec.rows:
            self._flying[row.request] = spec.job

    def _forget(self, job: int) -> None:
        spec = self._out.pop(job, None)
        self._overdue.discard(job)
        for row in spec.rows if spec is not None else ():
            if self._flying.get(row.request) == job:
                del self._flying[row.request]

    def _finish(self, now_ns: int, command: Finish, event: Event) -> None:
        is_flying = command.request in self._flying and not isinstance(event, JobDone | JobFailed)
        if command.reason is FinishReason.CANCELLED:
            self.mark("cancel_after_submit" if is_flying else "cancel_before_submit")
        elif command.reason is FinishReason.DEADLINE:
            self.mark("deadline_running" if is_flying else "deadline_waiting")
        elif command.reason is FinishReason.SHUTDOWN:
            self.mark("drain_with_work")
        elif command.reason is FinishReason.DEVICE_FAULT:
            self.mark("device_fault")
        elif command.refusal is not None and command.refusal.kind is RefusalKind.QUEUE_FULL:
            self.mark("queue_full")
            self._full_hours.add(now_ns // HOUR)

    def _reset(self, command: Reset) -> None:
        self.mark("reset")
        lost = [job for job, spec in self._out.items() if spec.generation == command.generation]
        if lost:
            self.mark("recovery_with_open_kv_transaction")
        for job in lost:
            self._forget(job)

    def _job_done(self, event: JobDone) -> None:
        if event.job in self._overdue:
            self.mark("overdue_came_back")
        if self.is_one_away:
            self.mark("sibling_served")
        if event.job not in self._out:
            self.mark("late_completion_after_reset")

    def _job_failed(self, event: JobFailed) -> None:
        if event.job not in self._out:
            self.mark("late_completion_after_reset")
        elif event.failure.stage == "status":
            self.mark("ccu_exception")
        elif event.failure.stage == "output":
            self.mark("bad_output")

    def _prepare_failed(self, event: PrepareFailed) -> None:
        stage = event.failure.stage
        self.mark({KV_STAGE: "kv_wait", "queue": "queue_deadline"}.get(stage, "prepare_failed"))
        if event.failure.code in (13, 17) and stage == "submit":
            self.mark("transient_refusal")

    def _reset_done(self, event: ResetDone) -> None:
        if event.failure is not None:
            self.mark("reset_failed")

    def _validated(self, event: Validated) -> None:
        if event.failure is not None:
            self.mark("bad_package")


_COUNTED = {
    "lost_jobs": "lost_job",
    "downgrades_": "downgrade_2_to_1",
    "restarted_requests": "restarted_unseen",
    "restarted_whole_answers": "whole_answer_restarted",
    "features_off": "feature_off",
    "roll_backs": "roll_back",
    "budget_exhausted": "budget_exhausted",
    "rebuilds": "rebuild",
}
_LOOK: dict[type[Any], Any] = {
    JobDone: Sometimes._job_done,
    JobFailed: Sometimes._job_failed,
    PrepareFailed: Sometimes._prepare_failed,
    ResetDone: Sometimes._reset_done,
    Validated: Sometimes._validated,
    JobOverdue: lambda sometimes, event: sometimes._overdue.add(event.job),
    KvReleased: lambda sometimes, event: sometimes.mark("kv_wait"),
    BoardAnomaly: lambda sometimes, event: sometimes.mark("anomaly"),
    Shutdown: lambda sometimes, event: sometimes.mark("drain_with_work") if sometimes._flying else None,
}
