"""A board that breaks its own contract now and then: answers that no fault point of the simulated device gives.

Owns: the named oddities, when each shows, and the wrapper of a session that shows them. Must not know: servers, what is
right. Life: drawn for an era, healed at the end of its safety phase like the device's faults.

The device's account of a job stays true, only what the host is told is odd; that it was is told beside it. So where an
answer contradicts itself or a call breaks off, the device has done what it was asked to, or will: whoever takes it for
undone reuses what is still written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calserve.core.job import Bank, JobSpec
from calserve.runtime.contract import (
    BoardPackage,
    Code,
    GraphContract,
    HostBuffers,
    JobStatus,
    KvMirror,
    LoadOptions,
    Session,
    Ticket,
)
from calserve.runtime.errors import CalCode
from calserve.runtime.sim import SimBoard, SimDevice
from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.runtime.sim.session import SimSession
from calserve.simulate.plan import stream

Array = np.ndarray[Any, Any]

# Mean number of visits between two showings, by oddity.
ODDITIES = {
    "status_missing": 1500,  # wait: success, and no status
    "status_older": 400,  # wait: the last completion of an earlier generation once more; then the one waited for
    "release_refused": 800,  # KV release: code 4, the lane stays held on the device
    "output_mistyped": 1500,  # output view: another element type
    "output_flat": 1500,  # output view: another rank
    "output_few_rows": 1500,  # output view: the first row only
    "output_padded": 3,  # output view: rows longer than the vocabulary, which is right and must be read as such
    "times_missing": 3,  # wait: a status that does not say how long the board worked
    "buffers_foreign": 30,  # allocate: input memory of another type
    "graphs_odd": 6,  # configure: a session whose graph is no graph
    "session_missing": 6,  # configure: success, and no session; the device is configured
    "session_with_code": 6,  # configure: a session, and code 25
    "configure_raises": 6,  # configure: an exception; the device is configured
    "buffers_missing": 30,  # allocate: success, and no buffers
    "ticket_missing": 4000,  # submit: success, and no ticket; the device runs the job, but for every other time
    "ticket_with_code": 4000,  # submit: a ticket, and a code; the device runs the job
    "submit_raises": 400,  # submit, in a warm-up: an exception; the device runs the job
    "wait_raises": 400,  # wait, in a warm-up: an exception while the device runs the job
    "order_unanswered": 30,  # lifecycle: the driver hangs in a call and never returns
}
_HARMLESS = ("output_padded", "times_missing")
# Visited a few times in a bring-up, or harmless: as often in a short era as in a long one.
_UNSCALED = (
    *_HARMLESS, "buffers_foreign", "graphs_odd", "session_missing", "session_with_code", "configure_raises",
    "buffers_missing", "submit_raises", "wait_raises", "order_unanswered",
)  # fmt: skip
# Codes that without a ticket say that a job was not taken.
_SUBMIT_CODES = (CalCode.DEVICE_BUSY, CalCode.TIMEOUT, CalCode.INVALID_VALUE)


class DriverError(OSError):
    """A call of the driver broke off."""


class Oddities:
    """Which oddities an era has, and when each shows. Each has a stream of its own."""

    def __init__(self, names: tuple[str, ...], seed: int, rate: float = 1.0) -> None:
        """rate: visits in a short era are few, so everything shows so much more often."""
        self._gaps = {name: max(1, int(ODDITIES[name] / (1 if name in _UNSCALED else rate))) for name in names}
        self._streams = {name: stream(seed, f"oddity/{name}") for name in names}
        self._left = {name: self._draw(name) for name in names}
        self.fired: dict[str, int] = {}
        self.on_show: Callable[[str], None] = lambda _: None

    def _draw(self, name: str) -> int:
        return self._streams[name].randint(1, 2 * self._gaps[name])

    def shows(self, name: str) -> bool:
        """A visit; whether the oddity shows now."""
        if name not in self._left:
            return False
        self._left[name] -= 1
        if self._left[name] > 0:
            return False
        self._left[name] = self._draw(name)
        self.fired[name] = self.fired.get(name, 0) + 1
        if name not in _HARMLESS:
            self.on_show(name)
        return True

    def heal(self) -> None:
        self._left.clear()


class OddBoard(SimBoard):
    """The simulated board whose sessions show `oddities`."""

    def __init__(self, device: SimDevice, oddities: Oddities) -> None:
        super().__init__(device=device)
        self._oddities = oddities
        oddities.on_show = self._tell
        self._ended: dict[str, JobStatus] = {}  # by session: a completion of some generation of it

    def _tell(self, name: str) -> None:
        """Whoever listens to the device hears that something is wrong, as with a fault of its own."""
        listener = self.device.listener
        if listener is not None:
            listener(DeviceFact(self.device.clock.now_ns(), FactKind.FAULT, detail=name))

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        code, session = super().configure(package, options, name, generation)
        if not isinstance(session, SimSession):
            return code, session
        shows = self._oddities.shows
        if shows("configure_raises"):
            raise DriverError("configure broke off")
        if shows("session_missing"):
            return code, None
        odd = OddSession(session, self._oddities, self._ended)
        if shows("graphs_odd"):
            odd.graphs = {graph: replace(contract, logits_tile=0) for graph, contract in session.graphs.items()}
        return (CalCode.SOFT_RESET_FAILED if shows("session_with_code") else code), odd


class OddBuffers:
    """`HostBuffers` over those of the device; a job is submitted with the inner ones."""

    def __init__(self, inner: HostBuffers, oddities: Oddities, *, is_foreign: bool) -> None:
        self.graph = inner.graph
        self.bank = inner.bank
        self.inner = inner
        self._oddities = oddities
        self._is_foreign = is_foreign
        self.map = inner.map
        self.slice = inner.slice
        self.set_csr = inner.set_csr
        self.undo_slices = inner.undo_slices
        self.reset = inner.reset

    def host(self, name: str) -> Array:
        array = self.inner.host(name)
        return array.astype(np.int64) if self._is_foreign and name == "tokens" else array

    def output(self, name: str) -> Array:
        output, shows = self.inner.output(name), self._oddities.shows
        if shows("output_mistyped"):
            return output.astype(np.float64)
        if shows("output_flat"):
            return output.reshape(-1)
        if shows("output_few_rows"):
            return output[:1] if output.ndim == 2 else output[:, :1]
        if output.ndim == 2 and shows("output_padded"):
            return np.pad(output, ((0, 0), (0, 5)))
        return output


@dataclass(slots=True)
class _OddKv:
    inner: KvMirror
    oddities: Oddities

    def can_allocate(self, units: int) -> bool:
        return self.inner.can_allocate(units)

    def apply(self, lane: int, units: tuple[int, ...], length: int) -> Code:
        return self.inner.apply(lane, units, length)

    def release(self, lane: int) -> Code:
        return CalCode.INVALID_VALUE if self.oddities.shows("release_refused") else self.inner.release(lane)


@dataclass(slots=True)
class OddSession:
    """`Session` over the device's; everything that is not odd goes straight through.

    ended: the newest completion of each session, whatever its generation. held: an answer kept back for the next wait.
    broken: tickets whose wait breaks off. Only in a warm-up, whose jobs have numbers below 0: while a session serves,
    an exception ends the process, and a crash of it is drawn elsewhere.
    """

    inner: SimSession
    oddities: Oddities
    ended: dict[str, JobStatus]
    name: str = field(init=False)
    graphs: Mapping[str, GraphContract] = field(init=False)
    kv: KvMirror = field(init=False)
    lanes: int = field(init=False)
    unit_tokens: int = field(init=False)
    kv_units: int = field(init=False)
    held: dict[int, tuple[Code, JobStatus | None]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        inner = self.inner
        self.name, self.graphs, self.kv = inner.name, inner.graphs, _OddKv(inner.kv, self.oddities)
        self.lanes, self.unit_tokens, self.kv_units = inner.lanes, inner.unit_tokens, inner.kv_units

    def allocate(self, graph: str, bank: Bank) -> tuple[Code, HostBuffers | None]:
        code, buffers = self.inner.allocate(graph, bank)
        if buffers is None or self.oddities.shows("buffers_missing"):
            return code, None
        return code, OddBuffers(buffers, self.oddities, is_foreign=self.oddities.shows("buffers_foreign"))

    def submit(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, Ticket | None]:
        oddities = self.oddities
        is_missing = oddities.shows("ticket_missing")
        if is_missing and oddities.fired["ticket_missing"] % 2 == 0:
            return CalCode.SUCCESS, None
        code, ticket = self.inner.submit(spec, buffers.inner if isinstance(buffers, OddBuffers) else buffers)
        if ticket is None or is_missing:
            return code, None
        if spec.job < 0 and oddities.shows("submit_raises"):
            raise DriverError("submit broke off")
        if spec.job < 0 and oddities.shows("wait_raises"):
            self.broken.add(ticket.number)
        if oddities.shows("ticket_with_code"):
            code = _SUBMIT_CODES[oddities.fired["ticket_with_code"] % len(_SUBMIT_CODES)]
        return code, ticket

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        if ticket.number in self.broken:
            raise DriverError("wait broke off")
        answer = self.held.pop(ticket.number, None) or self.inner.wait(ticket, timeout_ns)
        code, status = answer
        if code or status is None:
            return answer
        older = self.ended.get(self.name)
        if older is not None and older.generation < status.generation:
            if self.oddities.shows("status_older"):
                self.held[ticket.number] = answer
                return code, older
        else:
            self.ended[self.name] = status
        if self.oddities.shows("times_missing"):
            return code, replace(status, device_ns=0)
        return (code, None) if self.oddities.shows("status_missing") else answer

    def is_ready(self, ticket: Ticket) -> bool:
        return ticket.number in self.held or ticket.number in self.broken or self.inner.is_ready(ticket)

    def cancel(self, ticket: Ticket) -> Code:
        return self.inner.cancel(ticket)

    def memory(self) -> Mapping[str, int]:
        return self.inner.memory()

    def drain(self, timeout_ns: int) -> Code:
        return self.inner.drain(timeout_ns)

    def close(self) -> Code:
        return self.inner.close()
