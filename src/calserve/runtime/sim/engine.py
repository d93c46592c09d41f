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

import numpy as np

from calserve.runtime.contract import Code, StatusKind
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.clock import Clock
from calserve.runtime.sim.faults import FaultPlan, FaultPoint
from calserve.runtime.sim.job import Job, Slot
from calserve.runtime.sim.model import UNDEFINED, LaneMemory, to_bfloat16_bits
from calserve.runtime.sim.profile import SimProfile
from calserve.runtime.sim.timeline import Timeline

LATE_NS = 30_000_000_000  # beyond the scheduler's default execution deadline and grace (10 s + 5 s)
Step = Callable[[Job, int], None]


class JobEngine:
    """Invariants: events run in order of time, then of creation; an event of a killed job does nothing.

    on_stray: called for a job that retired when its calbin was no longer current.
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
        self.queue.append(job)
        self._start_ready(self.clock.now_ns())

    def stop(self, chips: Iterable[int], stops_writes: bool, now_ns: int) -> None:
        """A reset of these chips: jobs on them end here, except late ones, which nothing reaches in time."""
        reached, was_lost = set(chips), self.is_lost
        self.is_lost = False
        for job in [*self.queue, *self.running.values()]:
            if not reached & set(job.chips):
                continue
            job.writes_stopped = job.writes_stopped or stops_writes
            if job.is_late and not was_lost:
                self.timeline.give_back(job)
            else:
                job.is_killed = True
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
            slots = self.timeline.choose_slots(job, blocked)
            if slots is None:
                waiting.append(job)
                continue
            self.timeline.take(job, slots)
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
        if self.plan.visit(FaultPoint.DEVICE_LOST):
            self.is_lost = True
            self.clock.changed.notify_all()
            return
        if self.plan.visit(FaultPoint.JOB_NEVER_COMPLETES):
            return
        begin, end = self.timeline.run(job, "compute", now_ns, self._compute_ns(job))
        if fault := self.plan.visit(FaultPoint.COMPLETION_LATE):
            job.is_late = True
            end += fault.value or LATE_NS
        job.device_ns = end - begin
        self._at(end, self._end_compute, job)

    def _end_compute(self, job: Job, now_ns: int) -> None:
        """KV is written and the logits are known, or the CCU raised an exception."""
        self.timeline.record(job, "compute", now_ns - job.device_ns, now_ns)
        if not job.is_sound or self.plan.visit(FaultPoint.STATUS_CCU_EXCEPTION):
            self._spoil_kv(job)
            self._retire(job, StatusKind.DONE_CCU_EXCEPTION)
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
            if self.plan.visit(FaultPoint.LOGITS_NAN):
                logits.fill(np.nan)
            rows, vocab = logits.shape
            is_short = self.plan.visit(FaultPoint.OUTPUT_SHORT) is not None
            values = to_bfloat16_bits(logits) if self.profile.logits_dtype == "bfloat16" else logits
            job.buffers.dma_write("logits", values, (rows, vocab // 2 if is_short else vocab))
        self._retire(job, StatusKind.DONE)

    def _write_kv(self, job: Job) -> None:
        memories = [self.lane(job.chips, row.lane) for row in job.rows]
        for row, memory in zip(job.rows, memories, strict=True):
            memory.write(row.slot, row.entries)
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
        """A CCU exception leaves the KV blocks the job was writing undefined."""
        if not job.is_sound or job.writes_stopped:
            return
        for row in job.rows:
            first = row.slot - row.slot % self.profile.kv_block_tokens
            self.lane(job.chips, row.lane).write(first, [UNDEFINED] * (row.length - first))

    def _retire(self, job: Job, status: StatusKind, code: Code = CalCode.SUCCESS) -> None:
        job.status, job.code, job.is_retired = status, code, True
        job.buffers.is_held = False
        job.report = job.completion()
        if self.running.pop(job.ticket.number, None) is None:
            self.queue.remove(job)
        self.timeline.give_back(job)
        if code == CalCode.SUCCESS:
            self.finished += 1
            if not job.calbin.is_alive:
                self.on_stray(job)
            self._start_ready(self.clock.now_ns())
        self.clock.changed.notify_all()

    def _compute_ns(self, job: Job) -> int:
        timing, tokens = self.profile.timing, job.token_count
        if job.is_prefill:
            duration_ns = timing.prefill_base_ns + timing.prefill_token_ns * tokens
        else:
            duration_ns = timing.decode_ns[job.graph.profile.batch]
        return duration_ns + (timing.d2d_token_ns * tokens if len(job.chips) > 1 else 0)
