"""One configured package on the simulated board, as the contract shows it.

Owns: the checks before a job reaches the device, and the device's view of which lane is held. Must not know:
why a lane is held, what a job's tokens are. Life: made by `SimBoard.configure`, dead after `close` or a reset
that reaches it; a dead session only answers with codes.
"""

from __future__ import annotations

from collections.abc import Mapping

from calserve.core.job import Bank, JobSpec, LogitsWanted, Task
from calserve.runtime.contract import Code, Evidence, GraphContract, HostBuffers, JobStatus, KvMirror, Ticket
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.buffers import SimBuffers
from calserve.runtime.sim.calbin import Calbin
from calserve.runtime.sim.device import SimDevice
from calserve.runtime.sim.faults import FaultPlan, FaultPoint
from calserve.runtime.sim.job import Job


class SimKvMirror:
    """`KvMirror` over lanes: one unit is one whole lane, and unit i is lane i."""

    def __init__(self, lanes: int, context: int, plan: FaultPlan) -> None:
        self._context = context
        self._plan = plan
        self._lanes = lanes
        self._held: dict[int, int] = {}

    def can_allocate(self, units: int) -> bool:
        if self._plan.visit(FaultPoint.KV_CANNOT_ALLOCATE):
            return False
        return units <= self._lanes - len(self._held)

    def apply(self, lane: int, units: tuple[int, ...], length: int) -> Code:
        """Codes: 4 the lane does not exist or the unit is not its own, 14 longer than the lane."""
        if not 0 <= lane < self._lanes or units != (lane,):
            return CalCode.INVALID_VALUE
        if not 0 <= length <= self._context:
            return CalCode.OUT_OF_RANGE
        if fault := self._plan.visit(FaultPoint.KV_APPLY_FAILS):
            return fault.value or CalCode.MEMORY_ALLOCATION
        self._held[lane] = length
        return CalCode.SUCCESS

    def release(self, lane: int) -> Code:
        """The lane is free; its memory keeps every byte. Releasing a free lane is harmless."""
        if not 0 <= lane < self._lanes:
            return CalCode.INVALID_VALUE
        self._held.pop(lane, None)
        return CalCode.SUCCESS


class SimSession:
    """`Session` of the simulated board. One thread submits, one waits; any may read."""

    def __init__(self, device: SimDevice, calbin: Calbin) -> None:
        package = calbin.package
        self.name = calbin.name
        self.generation = calbin.generation
        self.graphs: Mapping[str, GraphContract] = {graph.name: graph for graph in package.graphs}
        self.kv: KvMirror = SimKvMirror(calbin.lanes, package.context, device.plan)
        self.lanes = calbin.lanes
        self.unit_tokens = package.context
        self.kv_units = calbin.lanes
        self._device = device
        self._calbin = calbin

    def allocate(self, graph: str, bank: Bank) -> tuple[Code, HostBuffers | None]:
        """Codes: 16 the session is dead, 4 no such graph, 1 no memory."""
        if not self._calbin.is_alive:
            return CalCode.NO_CONFIG, None
        if graph not in self.graphs:
            return CalCode.INVALID_VALUE, None
        if fault := self._device.plan.visit(FaultPoint.ALLOCATE_FAILS):
            return fault.value or CalCode.MEMORY_ALLOCATION, None
        return CalCode.SUCCESS, SimBuffers(self.graphs[graph], bank, self._calbin, self._device.plan)

    def submit(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, Ticket | None]:
        """Codes: 18 lost, 16 dead session or unbound buffers, 4 not ours, 27 all logits, 17 banks or buffers busy."""
        device, calbin = self._device, self._calbin
        with device.lock:
            code = self._check(spec, buffers)
            if code != CalCode.SUCCESS:
                if code == CalCode.DEVICE_BUSY and isinstance(buffers, SimBuffers) and buffers.is_held:
                    device.refuse_held(calbin)
                return code, None
            assert isinstance(buffers, SimBuffers)
            if fault := device.plan.visit(FaultPoint.SUBMIT_BUSY):
                return fault.value or CalCode.DEVICE_BUSY, None
            if fault := device.plan.visit(FaultPoint.SUBMIT_UNAVAILABLE):
                return fault.value or CalCode.DEVICE_UNAVAILABLE, None
            if fault := device.plan.visit(FaultPoint.SUBMIT_UNSUPPORTED):
                return fault.value or CalCode.NOT_SUPPORTED, None
            ticket = Ticket(next(device.tickets), spec.job, calbin.generation)
            job = Job(
                ticket=ticket,
                calbin=calbin,
                graph=self.graphs[spec.graph],
                buffers=buffers,
                bank=spec.bank,
                ready_ns=device.clock.now_ns() + device.profile.timing.launch_ns,
                csrs=dict(buffers.csrs),
                input_bytes=buffers.input_bytes,
                output_bytes=buffers.output_bytes,
                spec=spec,
            )
            device.submit(job)
            return CalCode.SUCCESS, ticket

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        """A job ended by a reset gives code 18 with status DONE_CCU_EXCEPTION; see `SimDevice.wait`."""
        return self._device.wait(self._calbin, ticket.number, timeout_ns)

    def is_ready(self, ticket: Ticket) -> bool:
        """Whether `wait` would return something other than a timeout now; visits no fault point, moves no time."""
        return self._device.is_ready(self._calbin, ticket.number)

    def cancel(self, ticket: Ticket) -> Code:
        """Always 27: no profile proves `job_cancel`."""
        return CalCode.NOT_SUPPORTED

    def memory(self) -> Mapping[str, int]:
        return dict(self._calbin.memory)

    def drain(self, timeout_ns: int) -> Code:
        return self._device.drain(self._calbin, timeout_ns)

    def close(self) -> Code:
        return self._device.release(self._calbin)

    def _check(self, spec: JobSpec, buffers: HostBuffers) -> Code:
        if self._device.engine.is_lost:
            return CalCode.DEVICE_UNAVAILABLE
        if not self._calbin.is_alive:
            return CalCode.NO_CONFIG
        is_ours = isinstance(buffers, SimBuffers) and buffers.owner is self._calbin
        names_us = (spec.session, spec.generation) == (self.name, self.generation)
        if not is_ours or not names_us or spec.graph != buffers.graph or spec.bank is not buffers.bank:
            return CalCode.INVALID_VALUE
        if not self._is_able(spec):
            return CalCode.NOT_SUPPORTED
        assert isinstance(buffers, SimBuffers)
        if not buffers.is_bound:
            return CalCode.NO_CONFIG
        if buffers.is_held or self._calbin.in_flight >= self._calbin.max_in_flight:
            return CalCode.DEVICE_BUSY
        return CalCode.SUCCESS

    def _is_able(self, spec: JobSpec) -> bool:
        """Only what the graph does and the profile proves: an ability that is absent is refused, never tried."""
        if spec.task not in self.graphs[spec.graph].profile.tasks:
            return False
        if any(row.logits is LogitsWanted.ALL and row.token_count > 1 for row in spec.rows):
            return False
        is_proven = self._device.profile.capabilities.get("incremental_prefill") is Evidence.C0
        return is_proven or spec.task is not Task.PREFILL or all(row.first_position == 0 for row in spec.rows)
