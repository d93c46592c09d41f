"""Host buffers, leased for one job at a time.

Owns every HostBuffers of a session's generation. A lease only moves: pool -> engine thread (prepare, submit)
-> completion thread (wait, read) -> engine thread -> pool. What cannot be cleaned on its way back, or whose
device may still write it, is quarantined: never handed out again, dropped with the generation.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from calserve.core.job import Bank, Task
from calserve.core.outcomes import Failure, FaultClass
from calserve.core.states import BUFFER_STEPS, BufferEvent, BufferState, step
from calserve.runtime.checks import check_buffers
from calserve.runtime.contract import Code, HostBuffers, Session
from calserve.runtime.errors import CalCode, failure

_log = logging.getLogger(__name__)


# Sets of buffers kept out of use in one generation; a board that spoils more is not fit to go on with.
QUARANTINE_LIMIT = 4


@dataclass(frozen=True, slots=True)
class PoolKey:
    """What buffers must match to be reused (seed 000, section 4.1)."""

    generation: int
    graph: str
    task: Task
    bank: Bank
    profile: int


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """Sets of buffers. allocated = leased + quarantined + those that lie ready."""

    allocated: int = 0
    leased: int = 0
    quarantined: int = 0


class Lease:
    """Sole right to one set of buffers, with the state they are in.

    has_ended: False from the moment it is put away without the board's word that its job is over. is_left: the process
    ends, and this stays with the device on purpose.

    Invariants: one holder; a lease dropped while the device may write its memory is an error and says so.
    """

    __slots__ = ("buffers", "has_ended", "is_left", "key", "state")

    def __init__(self, key: PoolKey, buffers: HostBuffers) -> None:
        self.key = key
        self.buffers = buffers
        self.state = BufferState.FREE
        self.has_ended = True
        self.is_left = False

    def step(self, event: BufferEvent) -> None:
        self.state = step(BUFFER_STEPS, self.state, event)

    def put_away(self) -> None:
        """Quarantined, never to be used again."""
        self.has_ended = self.state not in (BufferState.SUBMITTED, BufferState.RUNNING)
        self.step(BufferEvent.QUARANTINE)

    def leave(self) -> None:
        """The process is about to end while the device may write this: kept until nothing of the process is left."""
        self.is_left = True
        _LEFT.append(self)

    def __del__(self) -> None:
        if not self.is_left and self.state in (BufferState.SUBMITTED, BufferState.RUNNING):
            _log.critical("a buffer lease was dropped while submitted: %s", self.key)


# Memory that a device may still write when the process unwinds: freed by nobody but the end of it.
_LEFT: list[Lease] = []


@dataclass(slots=True)
class BufferPool:
    """Buffers of one session. Called on the engine thread only.

    Invariant: free + leased + quarantined = made. Allocation happens on first use of a key and stays within `limit`
    per key (`allocated`: not counting those put away), quarantined ones within `QUARANTINE_LIMIT`: memory is bounded.
    """

    session: Session
    limit: int
    free: dict[PoolKey, list[Lease]] = field(default_factory=dict)
    allocated: dict[PoolKey, int] = field(default_factory=dict)
    made: int = 0
    leased: int = 0
    quarantined: list[Lease] = field(default_factory=list)

    def take(self, key: PoolKey) -> Lease | Failure:
        """A clean lease in state Preparing, or why there is none.

        17: all are in use. 24: so many were quarantined that only a new generation helps. Else the board's own code,
        or what is wrong with the memory it gave (4, 21, 22: an artifact's fault).
        """
        if len(self.quarantined) > QUARANTINE_LIMIT:
            return failure("buffers", CalCode.MAP_BROKEN, f"{len(self.quarantined)} sets of buffers are quarantined")
        ready = self.free.get(key)
        lease = ready.pop() if ready else self._allocate(key)
        if isinstance(lease, Lease):
            lease.step(BufferEvent.LEASE)
            self.leased += 1
        return lease

    def counts(self) -> BufferCounts:
        """Also from another thread, to which the numbers may be of two moments."""
        return BufferCounts(self.made, self.leased, len(self.quarantined))

    def _allocate(self, key: PoolKey) -> Lease | Failure:
        if self.allocated.get(key, 0) >= self.limit:
            return failure("buffers", CalCode.DEVICE_BUSY, f"all {self.limit} sets of buffers are in use")
        code, buffers = self.session.allocate(key.graph, key.bank)
        if code:
            return failure("buffers", code)
        if buffers is None:
            return Failure("buffers", code, FaultClass.UNKNOWN, "success without buffers")
        wrong = check_buffers(self.session.graphs[key.graph], buffers)
        if wrong is not None:
            return Failure("buffers", wrong[0], FaultClass.ARTIFACT, wrong[1])
        self.allocated[key] = self.allocated.get(key, 0) + 1
        self.made += 1
        return Lease(key, buffers)

    def give_back(self, lease: Lease) -> Code:
        """Clean and free the lease, or quarantine it when cleaning fails. Never a submitted one."""
        event = BufferEvent.GIVE_UP if lease.state is BufferState.PREPARING else BufferEvent.GIVE_BACK
        after = step(BUFFER_STEPS, lease.state, event)  # raises for memory the device may write, before it is touched
        self.leased -= 1
        code = lease.buffers.undo_slices() or lease.buffers.reset()
        if code:
            _log.warning("buffers of %s could not be cleaned (code %d) and are quarantined", lease.key.graph, code)
            self._put_away(lease)
            return code
        lease.state = after
        self.free.setdefault(lease.key, []).append(lease)
        return 0

    def quarantine(self, lease: Lease) -> None:
        """The device may still write this memory, or wrote it wrongly: keep it, never reuse it."""
        self.leased -= 1
        self._put_away(lease)

    @property
    def has_unended(self) -> bool:
        """Whether the device may still write memory of this pool: a job is out, or was given up without an end."""
        return self.leased > 0 or any(not lease.has_ended for lease in self.quarantined)

    def keep_unended(self) -> None:
        """The session is gone: what the device is done with goes too."""
        self.free.clear()
        self.quarantined = [lease for lease in self.quarantined if not lease.has_ended]
        self.made = self.leased + len(self.quarantined)

    def leave_unended(self) -> None:
        """The process is about to end."""
        for lease in self.quarantined:
            if not lease.has_ended:
                lease.leave()

    def _put_away(self, lease: Lease) -> None:
        lease.put_away()
        self.quarantined.append(lease)
        self.allocated[lease.key] -= 1
