"""Orders of one `handle` call, in the order they must be carried out, and the counters.

Owns: the three lists (freed lanes, which the next job may use; then submits, for the board must not wait for
clients; then the rest), the time of the call, and every counter. Must not know: why an order was given.
"""

from __future__ import annotations

from calserve.core.commands import Command, Emit, Finish, ReleaseLane, SubmitJob
from calserve.core.job import JobSpec
from calserve.core.outcomes import Failure, FinishReason, Refusal, Usage


class Outbox:
    __slots__ = ("_others", "_releases", "_submits", "counters", "now_ns")

    def __init__(self) -> None:
        self._releases: list[Command] = []
        self._submits: list[Command] = []
        self._others: list[Command] = []
        self.counters: dict[str, int] = {}
        self.now_ns = 0  # of the call these orders come from

    def release_lane(self, session: str, generation: int, lane: int) -> None:
        self._releases.append(ReleaseLane(session, generation, lane))

    def submit(self, spec: JobSpec) -> None:
        self._submits.append(SubmitJob(spec))

    def emit(self, request: str, job: int, row: int) -> None:
        self._others.append(Emit(request, job, row))

    def finish(
        self,
        request: str,
        reason: FinishReason,
        usage: Usage,
        refusal: Refusal | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._others.append(Finish(request, reason, usage, refusal, failure))
        self.count("finished_" + reason.value)

    def order(self, command: Command) -> None:
        self._others.append(command)

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def take(self) -> list[Command]:
        taken = self._releases + self._submits + self._others
        self._releases, self._submits, self._others = [], [], []
        return taken
