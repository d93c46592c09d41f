"""What the engine thread holds of one warm session, and the device's view of its KV.

Owns: which lanes the device holds KV for, how many jobs of the session are out, its buffers. Must not know: requests,
decisions. Life: made when a session is adopted, put aside when an order to end it goes out, dropped when the board said
that it is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from calserve.core.job import JobSpec, Row
from calserve.core.outcomes import KV_STAGE, Failure
from calserve.executor.pool import BufferPool
from calserve.runtime.checks import KvRoom
from calserve.runtime.contract import Session
from calserve.runtime.errors import CalCode, failure


@dataclass(slots=True)
class SessionPort:
    """in_flight: jobs the board took and that have not come home. held: lanes the device holds KV for."""

    session: Session
    generation: int
    pool: BufferPool
    room: KvRoom
    in_flight: int = 0
    last_ended_ns: int = 0
    held: set[int] = field(default_factory=set)
    is_kv_blocked: bool = False  # the board said it has no KV to give yet
    refused: list[str] = field(default_factory=list)  # where the device's view of KV went its own way; not told yet

    @classmethod
    def of(cls, session: Session, generation: int, jobs_kept: int) -> SessionPort:
        room = KvRoom(session.lanes, session.unit_tokens, session.kv_units)
        return cls(session, generation, BufferPool(session, jobs_kept), room)

    def apply_kv(self, spec: JobSpec) -> Failure | None:
        """The device's view of KV follows the job's rows; all of them or none."""
        kv = self.session.kv
        starting = sum([len(row.kv_units) for row in spec.rows if row.first_position == 0])
        if starting and not kv.can_allocate(starting):
            self.is_kv_blocked = True
            return failure(KV_STAGE, CalCode.DEVICE_BUSY, f"the board cannot allocate {starting} units yet")
        for at, row in enumerate(spec.rows):
            code = kv.apply(row.lane, row.kv_units, row.first_position + row.token_count)
            if code:
                self.undo_kv(spec.rows[:at])
                return failure("apply", code, f"the board refused units for lane {row.lane}")
            self.held.add(row.lane)
        return None

    def undo_kv(self, rows: Many[Row]) -> None:
        """Take back what a job that was not submitted was given: lanes it would have started, last first.

        A lane that already held tokens keeps what it has; applying the same units again changes nothing.
        """
        for row in reversed(rows):
            if row.first_position == 0:
                self.held.discard(row.lane)
                self._release(row.lane)

    def release_lane(self, lane: int) -> bool:
        """The lane is free again; True when the board had refused KV until one was.

        A lane that never reached the device frees nothing there: telling of it would be asking in a circle.
        """
        if lane not in self.held:
            return False
        self.held.discard(lane)
        self._release(lane)
        was_blocked, self.is_kv_blocked = self.is_kv_blocked, False
        return was_blocked

    def _release(self, lane: int) -> None:
        code = self.session.kv.release(lane)
        if code:
            self.refused.append(f"the board refused to release lane {lane} (code {code})")
