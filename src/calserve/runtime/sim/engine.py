"""The device's job engine: a queue, two banks, and events that happen at their time.

Owns: jobs from `submit` until they retire, KV memory, the events. Must not know: who opened the board, DRAM,
what the host thinks of a job. Everything is called under the clock's lock.

Life of a job: `submit` queues it; it takes its bank and starts H2D, at whose end the host memory is read; it
computes, at whose end KV is written; D2H, at whose end the host memory is written and the job retires.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from calserve.runtime.contract import Code, StatusKind
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.clock import Clock
from calserve.runtime.sim.facts import DeviceFact, FactKind, Listener, RowFact
from calserve.runtime.sim.faults import FaultPlan, FaultPoint
from calserve.runtime.sim.job import Job, Slot
from calserve.runtime.sim.model import UNDEFINED, LaneMemory, in_tiles, to_bfloat16_bits
from calserve.runtime.sim.profile import SimProfile
from calserve.runtime.sim.timeline import Timeline

LATE_NS = 30_000_000_000  # beyond the scheduler's default execution deadline and grace (10 s + 5 s)
Step = Callable[[Job, int], None]


class JobEngine:
    """Invariants: events run in order of time, then of creation; an event of a killed job does nothing.

    on_stray: called for a job that retired when its calbin was no longer current.
    listener: told what jobs do; see `facts`. Without one no fact is built.
    """

    def __init__(self, profile: SimProfile, clock: Clock, plan: FaultPlan) -> None:
        self.profile = profile
        self.clock = clock
        self.plan = plan
        self.timeline = Timeline(profile)
        self.lanes: dict[tuple[int, int], LaneMemory] = {}
        self.queue: list[Job] = []
        self.running: dict[int, Job] = {}
        self.finished = 0
        self.is_lost = False
        self.on_stray: Callable[[Job], None] = lambda job: None
        self.listener: Listener | None = None
        self._events: list[tuple[int, int, Step, Job]] = []
        self._order = itertools.count()

    # Machine: the clock carries these out.

    def next_event_ns(self) -> int | None:
        return self._events[0][0] if self._events else None

    def run_next(self) -> None:
        at_ns, _, step, job = heapq.heappop(self._events)
        if not job.is_killed and not self.is_lost:
            step(job, at_ns)

    def submit(self, job: Job) -> None:
        if self.listener is not None:
            self._tell(FactKind.SUBMITTED, job)
        self.queue.append(job)
        self._start_ready(self.clock.now_ns())

    def stop(self, chips: Iterable[int], stops_writes: bool, now_ns: int) -> None:
        """A reset of these chips: jobs on them end here, except late ones, which nothing reaches in time."""
        reached, was_lost = set(chips), self.is_lost
        self.is_lost = False
        for job in [*self.queue, *self.running.values()]:
            if not reached & set(job.chips):
                continue
            if job.is_late and not was_lost:
                self.timeline.give_back(job)
                job.writes_stopped = job.writes_stopped or stops_writes
            else:
                job.is_killed = True
                self._spoil_kv(job)
                self._retire(job, StatusKind.DONE_CCU_EXCEPTION, CalCode.DEVICE_UNAVAILABLE)
        self._events = [event for event in self._events if not event[3].is_killed]
        heapq.heapify(self._events)
        self.timeline.stop(reached, now_ns)
        self._start_ready(now_ns)

    def wipe(self, chips: Iterable[int]) -> None:
        """Lane memory of these chips is as after power-on."""
        gone = set(chips)
        self.lanes = {at: lane for at, lane in self.lanes.items() if at[0] not in gone}

    def lane(self, chips: tuple[int, ...], lane: int) -> LaneMemory:
        """A lane's memory. That of a session over several chips is kept as its lowest chip's."""
        at = (chips[0], lane)
        memory = self.lanes.get(at)
        if memory is None:
            memory = self.lanes[at] = LaneMemory()
        return memory

    def _at(self, at_ns: int, step: Step, job: Job) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), step, job))

    def _start_ready(self, now_ns: int) -> None:
        if not self.queue:
            return
        blocked: set[Slot] = set()
        waiting: list[Job] = []
        for job in self.queue:
            if not self.timeline.take(job, blocked):
                waiting.append(job)
                continue
            self.running[job.ticket.number] = job
            job.status = StatusKind.RUNNING
            job.h2d_ns = self.profile.timing.dma_ns(job.input_bytes)
            begin, end = self.timeline.run(job, "h2d", max(now_ns, job.ready_ns), job.h2d_ns)
            self.timeline.record(job, "h2d", begin, end)
            self._at(end, self._end_h2d, job)
        self.queue = waiting

    def _end_h2d(self, job: Job, now_ns: int) -> None:
        """The host memory is read here and nowhere else."""
        job.read()
        if self.listener is not None:
            job.row_facts = tuple([row.fact() for row in job.rows])
            self._tell(FactKind.INPUTS_READ, job, job.row_facts)
        if self.plan.visit(FaultPoint.DEVICE_LOST):
            self.is_lost = True
            self.clock.changed.notify_all()
            return
        if self.plan.visit(FaultPoint.JOB_NEVER_COMPLETES):
            return
        job.d2d_ns = self.profile.timing.d2d_token_ns * job.token_count if len(job.chips) > 1 else 0
        begin, end = self.timeline.run(job, "compute", now_ns, self._compute_ns(job) + job.d2d_ns)
        if fault := self.plan.visit(FaultPoint.COMPLETION_LATE):
            job.is_late = True
            end += fault.value or LATE_NS
        job.device_ns = end - begin
        self._at(end, self._end_compute, job)

    def _end_compute(self, job: Job, now_ns: int) -> None:
        """KV is written and the logits are known, or the CCU raised an exception."""
        self.timeline.record(job, "compute", now_ns - job.device_ns, now_ns - job.d2d_ns)
        if job.d2d_ns:
            self.timeline.record(job, "d2d", now_ns - job.d2d_ns, now_ns)
        if not job.is_sound or self.plan.visit(FaultPoint.STATUS_CCU_EXCEPTION):
            self._spoil_kv(job)
            self._retire(job, StatusKind.DONE_CCU_EXCEPTION)
            return
        if fault := self.plan.visit(FaultPoint.CODE_WITH_STATUS):
            self._spoil_kv(job)
            self._retire(job, StatusKind.DONE, fault.value or CalCode.OUT_OF_RANGE)
            return
        if not job.writes_stopped:
            self._write_kv(job)
        job.d2h_ns = self.profile.timing.dma_ns(job.output_bytes)
        begin, end = self.timeline.run(job, "d2h", now_ns, job.d2h_ns)
        self.timeline.record(job, "d2h", begin, end)
        self._at(end, self._end_d2h, job)

    def _end_d2h(self, job: Job, now_ns: int) -> None:
        """The host memory is written and the job retires."""
        logits = job.logits
        if logits is not None and not job.writes_stopped:
            self._write_output(job, logits)
            if self.listener is not None:
                self._tell(FactKind.OUTPUT_WRITTEN, job)
        self._retire(job, StatusKind.DONE)

    def _write_output(self, job: Job, logits: npt.NDArray[np.float32]) -> None:
        """In the layout the contract promises, unless a fault says otherwise."""
        if self.plan.visit(FaultPoint.LOGITS_NAN):
            logits.fill(np.nan)
        if self.plan.visit(FaultPoint.LOGITS_INF):
            logits[:, 0] = np.inf
        tile = job.graph.logits_tile
        laid = logits if tile == 1 else in_tiles(logits, tile)
        shape = laid.shape
        if self.plan.visit(FaultPoint.OUTPUT_SHORT):
            axis = 0 if tile > 1 and shape[0] > 1 else len(shape) - 1
            shape = tuple(n // 2 if at == axis else n for at, n in enumerate(shape))
        is_half = job.graph.outputs["logits"].dtype == "bfloat16"
        job.buffers.dma_write("logits", to_bfloat16_bits(laid) if is_half else laid, shape)

    def _write_kv(self, job: Job) -> None:
        memories = [self.lane(job.chips, row.lane) for row in job.rows]
        job.is_kv_written = True
        for row, memory in zip(job.rows, memories, strict=True):
            memory.write(row.slot, row.entries)
        if self.listener is not None:
            # A listener that came after the DMA finds no facts of what it read.
            rows = job.row_facts or tuple([row.fact() for row in job.rows])
            self._tell(FactKind.KV_WRITTEN, job, rows)
        # Read after every write: two rows on one lane see each other, as they would in one memory.
        key = job.calbin.key
        hashes = [memory.hash(key, row.length) for row, memory in zip(job.rows, memories, strict=True)]
        computed = job.calbin.head.logits(hashes)
        batch = job.graph.profile.batch
        if len(hashes) == batch:
            job.logits = computed
        else:
            job.logits = np.zeros((batch, computed.shape[1]), np.float32)
            job.logits[[row.row for row in job.rows]] = computed

    def _spoil_kv(self, job: Job) -> None:
        """A CCU exception, or a reset in mid-compute, leaves the KV blocks the job was writing undefined.

        Whether a real board writes part of them is open (seed 003, section 14), so this one does its worst.
        """
        if not job.rows or not job.is_sound or job.writes_stopped or job.is_kv_written:
            return
        spoiled = []
        for row in job.rows:
            first = row.slot - row.slot % self.profile.kv_block_tokens
            garbage = [UNDEFINED] * (row.length - first)
            self.lane(job.chips, row.lane).write(first, garbage)
            spoiled.append(replace(row, slot=first, entries=garbage))
        if self.listener is not None:
            self._tell(FactKind.KV_WRITTEN, job, tuple(row.fact() for row in spoiled), detail="spoiled")

    def _retire(self, job: Job, status: StatusKind, code: Code = CalCode.SUCCESS) -> None:
        job.status, job.code, job.is_retired = status, code, True
        job.buffers.is_held = False
        job.report = job.completion()
        if self.listener is not None:
            self._tell(FactKind.RETIRED, job, code=code, detail=status.value)
        if self.running.pop(job.ticket.number, None) is None:
            self.queue.remove(job)
        self.timeline.give_back(job)
        if code != CalCode.DEVICE_UNAVAILABLE:  # a reset ended the others, and starts what it left
            self.finished += 1
            if not job.calbin.is_alive:
                self.on_stray(job)
            self._start_ready(self.clock.now_ns())
        self.clock.changed.notify_all()

    def _compute_ns(self, job: Job) -> int:
        """The CalCores' share of a step."""
        timing = self.profile.timing
        if job.is_prefill:
            return timing.prefill_base_ns + timing.prefill_token_ns * job.token_count
        return timing.decode_ns[job.graph.profile.batch]

    def _tell(
        self, kind: FactKind, job: Job, rows: tuple[RowFact, ...] = (), code: Code = CalCode.SUCCESS, detail: str = ""
    ) -> None:
        assert self.listener is not None, "the caller has looked, so that nothing is built for nobody"
        spec = job.spec if kind is FactKind.SUBMITTED else None
        names = job.ticket.number, job.calbin.name, job.ticket.generation, job.chips
        self.listener(DeviceFact(self.clock.now_ns(), kind, *names, rows, spec, int(code), detail))
