"""One configured package on the `openvino` board.

Owns: a compiled step graph, its KV pool and mirror, its buffers and the jobs in flight. Must not know:
scheduling. Life: `OpenVinoBoard.configure` makes it; `submit` and `wait` run jobs; `close` or a reset of the
board drops it, after which every call answers "not configured" (16).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition

from calserve.core.job import Bank, JobSpec
from calserve.runtime.checks import KvRoom, check_job
from calserve.runtime.contract import (
    Code,
    GraphContract,
    HostBuffers,
    JobStatus,
    KvMirror,
    StatusKind,
    Ticket,
)
from calserve.runtime.errors import CalCode
from calserve.runtime.openvino.buffers import StepBuffers
from calserve.runtime.openvino.checks import expected_shapes
from calserve.runtime.openvino.faults import FaultLog
from calserve.runtime.openvino.graph import CompiledStep
from calserve.runtime.openvino.kv import KvPool, LaneUnits

Finished = Callable[["Flight", int], None]


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What `configure` settled: identity, size and limits of a session."""

    name: str
    generation: int
    chips: tuple[int, ...]
    lanes: int
    kv_units: int
    max_in_flight: int
    weight_bytes: int
    workspace_bytes: int


@dataclass(slots=True)
class Flight:
    """A job the device holds. begin_ns is on `time.perf_counter_ns`."""

    ticket: Ticket
    buffers: StepBuffers
    begin_ns: int
    aborted: bool = False


class OpenVinoSession:
    """`Session` of the board.

    Invariants: at most `max_in_flight` flights; a flight ends in exactly one `wait` that does not time out;
    the KV tensors outlive every flight. One thread submits, one waits, a third may drain, close or reset.
    """

    def __init__(
        self,
        shape: SessionShape,
        step: CompiledStep,
        contract: GraphContract,
        faults: FaultLog,
        finished: Finished,
    ) -> None:
        self.name = shape.name
        self.generation = shape.generation
        self.chips = shape.chips
        self.lanes = shape.lanes
        self.kv_units = shape.kv_units
        self.unit_tokens = step.unit_tokens
        self.graphs: Mapping[str, GraphContract] = {contract.name: contract}
        self.kv: KvMirror = LaneUnits(shape.lanes, shape.kv_units, step.unit_tokens)
        self._shape = shape
        self._room = KvRoom(shape.lanes, step.unit_tokens, shape.kv_units)
        self._step: CompiledStep | None = step
        self._pool: KvPool | None = KvPool(step.caches, shape.kv_units)
        self._kv_bytes = self._pool.byte_size
        self._faults = faults
        self._finished = finished
        self._buffers: list[StepBuffers] = []
        self._flights: dict[int, Flight] = {}
        self._landed = Condition()
        self._tickets = 0

    def allocate(self, graph: str, bank: Bank) -> tuple[Code, HostBuffers | None]:
        """New buffers for one job. 4: no such graph; 16: no longer configured; 1: no memory."""
        contract = self.graphs.get(graph)
        if self._step is None or self._pool is None:
            return int(CalCode.NO_CONFIG), None
        if contract is None:
            return int(CalCode.INVALID_VALUE), None
        try:
            request = self._step.model.create_infer_request()
            for name, tensor in self._pool.tensors.items():
                request.set_tensor(name, tensor)
            buffers = StepBuffers(contract, bank, request, self._step.logits_rank)
        except (RuntimeError, MemoryError, OSError) as error:
            return self._faults.note("allocate", error), None
        self._buffers.append(buffers)
        return 0, buffers

    def submit(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, Ticket | None]:
        """Start `spec` on `buffers`; returns at once. A refusal leaves device, KV and buffers untouched."""
        complaint = self._complaint(spec, buffers)
        if complaint is not None:
            return self._faults.note("submit", complaint[1], complaint[0]), None
        assert isinstance(buffers, StepBuffers)
        with self._landed:
            if len(self._flights) >= self._shape.max_in_flight or buffers.in_flight:
                return int(CalCode.DEVICE_BUSY), None
            self._tickets += 1
            ticket = Ticket(self._tickets, spec.job, spec.generation)
            flight = Flight(ticket, buffers, time.perf_counter_ns())
            try:
                buffers.start()
            except RuntimeError as error:
                return self._faults.note("submit", error), None
            self._flights[ticket.number] = flight
        return 0, ticket

    def _complaint(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, str] | None:
        if self._step is None or spec.session != self.name or spec.generation != self.generation:
            return int(CalCode.NO_CONFIG), f"job for {spec.session}/{spec.generation}, not for this session"
        contract = self.graphs.get(spec.graph)
        if contract is None or buffers.graph != spec.graph:
            return int(CalCode.INVALID_VALUE), f"graph {spec.graph}, buffers of {buffers.graph}"
        if not isinstance(buffers, StepBuffers) or not any(own is buffers for own in self._buffers):
            return int(CalCode.INVALID_VALUE), "buffers of another session"
        if buffers.broken:
            return int(CalCode.MAP_BROKEN), "a job died in these buffers"
        if spec.bank is not buffers.bank:
            return int(CalCode.INVALID_VALUE), f"bank {spec.bank.name}, buffers of {buffers.bank.name}"
        complaint = check_job(contract, spec, self._room)
        if complaint is None and buffers.shapes() != expected_shapes(contract, spec):
            return int(CalCode.SHAPE_MISMATCH), "the tensors are not those of this job"
        return complaint or self._content_complaint(contract, buffers)

    def _content_complaint(self, contract: GraphContract, buffers: StepBuffers) -> tuple[Code, str] | None:
        """Values that are addresses on the device: seen as unsigned, one maximum finds a negative one too."""
        shapes = buffers.shapes()
        limits = (
            ("input_ids", "uint64", contract.vocab_size),
            ("block_indices", "uint32", self.kv_units + 1),
            ("sampled_tokens_indices", "uint64", shapes["input_ids"][0]),
        )
        for name, unsigned, limit in limits:
            most = int(buffers.host(name)[: shapes[name][0]].view(unsigned).max())
            if most >= limit:
                return int(CalCode.OUT_OF_RANGE), f"{name} holds {most}, limit {limit - 1}"
        return None

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        """Block until the job ends. 13: not yet, it stays in flight; 4: no such job in flight."""
        flight = self._flights.get(ticket.number)
        if flight is None or flight.ticket != ticket:
            return int(CalCode.INVALID_VALUE), None
        request, code = flight.buffers.request, 0
        try:
            # A shorter wait than the library's millisecond is rounded up.
            if request is not None and not request.wait_for(max(0, -(-timeout_ns // 1_000_000))):
                return int(CalCode.TIMEOUT), _status(flight, StatusKind.RUNNING, 0)
        except RuntimeError as error:
            code = self._faults.note("wait", error, int(CalCode.DEVICE_UNAVAILABLE) if flight.aborted else 0)
        if flight.aborted:
            code = code or int(CalCode.DEVICE_UNAVAILABLE)
        device_ns = 0 if code else int(request.latency * 1e6)
        with self._landed:
            self._flights.pop(ticket.number, None)
            flight.buffers.finished(broken=bool(code))
            self._landed.notify_all()
        self._finished(flight, device_ns)
        return code, _status(flight, StatusKind.DONE_CCU_EXCEPTION if code else StatusKind.DONE, device_ns)

    def cancel(self, ticket: Ticket) -> Code:
        """`job_cancel` is not proven here: 27."""
        return int(CalCode.NOT_SUPPORTED)

    def memory(self) -> Mapping[str, int]:
        """Bytes. kv and io: set aside; weights: the package's; workspace: measured at compile."""
        io = sum(tensor.byte_size for c in self.graphs.values() for tensor in (*c.inputs.values(), *c.outputs.values()))
        return {
            "weights": self._shape.weight_bytes,
            "kv": self._kv_bytes,
            "workspace": self._shape.workspace_bytes,
            "io": io * len(self._buffers),
        }

    def drain(self, timeout_ns: int) -> Code:
        """Wait until every job was waited for by its owner. 13: some are still in flight."""
        with self._landed:
            done = self._landed.wait_for(lambda: not self._flights, timeout_ns / 1e9)
        return 0 if done else int(CalCode.TIMEOUT)

    def close(self) -> Code:
        """Release everything. 17: a job is in flight. Closing twice is harmless."""
        with self._landed:
            if self._flights:
                return int(CalCode.DEVICE_BUSY)
            self._drop()
        return 0

    def abort(self, timeout_ns: int) -> Code:
        """For a reset: stop what runs, then drop everything. 25: the device did not stop, nothing dropped."""
        with self._landed:
            flights = list(self._flights.values())
            self._step = None  # from here on nothing new starts
            for flight in flights:
                flight.aborted = True
        deadline = time.perf_counter_ns() + timeout_ns
        for flight in flights:
            if not _stopped(flight, deadline - time.perf_counter_ns()):
                return int(CalCode.SOFT_RESET_FAILED)
        with self._landed:
            for flight in flights:
                flight.buffers.finished(broken=True)
            self._drop()
        return 0

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    @property
    def jobs_in_flight(self) -> int:
        return len(self._flights)

    def _drop(self) -> None:
        for buffers in self._buffers:
            buffers.retire()
        self._buffers.clear()
        self._step = self._pool = None


def _stopped(flight: Flight, timeout_ns: int) -> bool:
    request = flight.buffers.request
    if request is None:
        return True
    try:
        request.cancel()
        return bool(request.wait_for(max(1, timeout_ns // 1_000_000)))
    except RuntimeError:
        return True  # it ended, with the exception that a cancelled job ends with


def _status(flight: Flight, kind: StatusKind, device_ns: int) -> JobStatus:
    """Host and device share memory here, so moving data in and out takes no time of its own."""
    return JobStatus(flight.ticket, flight.ticket.generation, kind, device_ns=device_ns)
