"""Sessions on their way out: what is kept of them, and until when.

Owns: the ports of sessions whose end was ordered, and the memory of jobs that may still write after their session is
gone. Must not know: orders, threads, requests. Life of a port here: put aside with the order to end its session; let go
when the board said that it is done with it. A job that the board never called over may write its buffers for as long as
nothing is known to have stopped it: a release or a session reset frees its session, not that memory, which waits for a
reset that stops writes (see `Board.reset`) or for the end of the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.core.commands import ResetScope
from calserve.executor.pool import BufferCounts, Lease
from calserve.executor.port import SessionPort

# After these no job of an earlier configuration writes any more, whatever became of it.
STOPS_WRITES = frozenset({ResetScope.CHIP, ResetScope.BOARD})
# These reach every session of the board, whichever asked.
REACHES_ALL = frozenset({ResetScope.CONFIGURATION, ResetScope.BOARD})


@dataclass(slots=True)
class Endings:
    """On the engine thread. Invariants: a port is in `ports` from the order to end it to the answer that it is ended;
    one is in `fenced` only while it has memory that may still be written.
    """

    ports: dict[tuple[str, int], SessionPort] = field(default_factory=dict)
    fenced: dict[tuple[str, int], SessionPort] = field(default_factory=dict)

    def add(self, port: SessionPort) -> None:
        self.ports[port.session.name, port.generation] = port

    def of(self, session: str) -> SessionPort | None:
        """The session's newest port whose end was ordered and is not over."""
        found = [port for (name, _), port in self.ports.items() if name == session]
        return found[-1] if found else None

    def over(self, session: str, scope: ResetScope | None) -> None:
        """The board is done with the session: released (scope None), or reset. By the session's name, for the order's
        generation need not be that of the port: a generation that never was warm has none."""
        for key in self._reached(self.ports, session, scope):
            port = self.ports.pop(key)
            if port.pool.has_unended:
                port.pool.keep_unended()
                self.fenced[key] = port
        if scope in STOPS_WRITES:
            for key in self._reached(self.fenced, session, scope):
                del self.fenced[key]

    def take_home(self, session: str, generation: int, lease: Lease) -> None:
        """A job of a session that is gone came back, or is waited on no more: its memory is put away with its pool."""
        port = self.ports.get((session, generation)) or self.fenced.get((session, generation))
        if port is None:
            lease.put_away()
            return
        port.pool.quarantine(lease)
        if not port.pool.has_unended:
            self.fenced.pop((session, generation), None)

    def counts(self) -> list[BufferCounts]:
        """Also from another thread, which only reads."""
        return [port.pool.counts() for port in (*self.ports.values(), *self.fenced.values())]

    @staticmethod
    def _reached(
        ports: dict[tuple[str, int], SessionPort], session: str, scope: ResetScope | None
    ) -> list[tuple[str, int]]:
        return [key for key in ports if key[0] == session or scope in REACHES_ALL]
