"""A session whose submits take time, as they do on a host.

Owns: the durations of host steps, drawn from the run's seed. Must not know: what is submitted. Everything else goes
straight through to the board's session.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from calserve.core.job import Bank, JobSpec
from calserve.runtime.contract import Code, GraphContract, HostBuffers, JobStatus, KvMirror, Session, Ticket
from calserve.simulate.plan import Pace
from calserve.simulate.world import Awaited, World


class BoardSession(Session, Awaited, Protocol):
    """What the simulated board configures: a session that can also be asked whether it would answer."""


class Durations:
    """Draws how long a step takes, hiccups included."""

    __slots__ = ("_pace", "_stream")

    def __init__(self, pace: Pace, stream: random.Random) -> None:
        self._pace = pace
        self._stream = stream

    def draw(self, bounds: tuple[int, int]) -> int:
        chance = self._stream.random()
        if chance * self._pace.hiccup_every < 1:
            return self._pace.hiccup_ns
        shortest, longest = bounds
        return shortest + int(chance * (longest - shortest))


class PacedSession:
    """`Session` over another one; only `submit` costs time of the host."""

    def __init__(self, inner: BoardSession, world: World, pace: Pace, durations: Durations) -> None:
        self.name = inner.name
        self.graphs: Mapping[str, GraphContract] = inner.graphs
        self.kv: KvMirror = inner.kv
        self.lanes = inner.lanes
        self.unit_tokens = inner.unit_tokens
        self.kv_units = inner.kv_units
        self._inner = inner
        self._world = world
        self._submit_ns = pace.submit
        self._durations = durations

    def allocate(self, graph: str, bank: Bank) -> tuple[Code, HostBuffers | None]:
        return self._inner.allocate(graph, bank)

    def submit(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, Ticket | None]:
        answer = self._inner.submit(spec, buffers)
        self._world.spend(self._durations.draw(self._submit_ns))
        return answer

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        return self._inner.wait(ticket, timeout_ns)

    def is_ready(self, ticket: Ticket) -> bool:
        return self._inner.is_ready(ticket)

    def cancel(self, ticket: Ticket) -> Code:
        return self._inner.cancel(ticket)

    def memory(self) -> Mapping[str, int]:
        return self._inner.memory()

    def drain(self, timeout_ns: int) -> Code:
        return self._inner.drain(timeout_ns)

    def close(self) -> Code:
        return self._inner.close()
