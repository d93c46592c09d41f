"""Jobs in flight of one session.

Owns: job records from plan to retirement, banks, execution deadlines, the KV transactions of their rows. Must
not know: queues, fairness, what becomes of a request; the worker acts on what `retire` hands back.

Life of a job: `launch` opens a transaction per row and hands the spec out; `submitted` when the board took it;
`retire` when it came back, or when it never reached the device. Which row is whose is fixed at launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calserve.core.concurrency import Concurrency
from calserve.core.config import SchedulerConfig
from calserve.core.job import Bank, JobSpec, Row
from calserve.core.kv import KvLedger, KvTransaction
from calserve.core.plan import Plan
from calserve.core.request import Request
from calserve.core.shape import Shape
from calserve.core.states import JOB_STEPS, JobEvent, JobState, KvTxnState, step


@dataclass(slots=True, eq=False)
class Job:
    """decodes: the first so many rows are decodes. expected_ns: 0 where nothing was measured. had_company: another
    job was in flight at some time of its life."""

    spec: JobSpec
    rows: list[tuple[Request, KvTransaction]]
    decodes: int
    prefill_tokens: int
    padding: int  # rows the board runs for nobody
    started_ns: int
    expected_ns: int
    state: JobState = JobState.CREATED
    is_overdue: bool = False
    had_company: bool = False

    def move(self, event: JobEvent) -> None:
        self.state = step(JOB_STEPS, self.state, event)

    def is_row_live(self, index: int) -> bool:
        """Whether the row's request still holds the lane it was submitted with."""
        request, txn = self.rows[index]
        return request.lane is txn.lane


def cost_of_row(job: Job, index: int, waiting: int, lanes: int, decode_cost_weight: int) -> int:
    """Real cost of a row: its tokens, its share of unused rows, the stall it was to others.

    A prefill token that makes d of L lanes wait costs d/L more. waiting: ready decodes that are in no job.
    """
    padding = decode_cost_weight * job.padding // len(job.rows)
    if index < job.decodes:
        return decode_cost_weight + padding
    tokens = job.spec.rows[index].token_count
    return tokens + padding + tokens * (job.decodes or waiting) // lanes


class Flight:
    """Invariants: len(jobs) <= the proven number; a lane is in at most one job. pins_banks: jobs name their bank."""

    __slots__ = (
        "_concurrency",
        "_config",
        "_generation",
        "_ledger",
        "_numbers",
        "_session",
        "_shape",
        "jobs",
        "pins_banks",
    )

    def __init__(
        self,
        whose: tuple[str, int],
        config: SchedulerConfig,
        shape: Shape,
        ledger: KvLedger,
        concurrency: Concurrency,
        numbers: Callable[[], int],
    ) -> None:
        """whose: session and generation."""
        self._session, self._generation = whose
        self._config = config
        self._shape = shape
        self._ledger = ledger
        self._concurrency = concurrency
        self._numbers = numbers
        self.jobs: dict[int, Job] = {}
        self.pins_banks = config.fixed_engine and shape.max_in_flight > 1

    @property
    def is_full(self) -> bool:
        return len(self.jobs) >= self._concurrency.allowed

    def launch(self, plan: Plan, now_ns: int) -> Job:
        """Give the plan a number, a bank, a deadline and its KV."""
        begin = self._ledger.begin
        rows: list[Row] = []
        work: list[tuple[Request, KvTransaction]] = []
        for planned in plan.rows:
            request = planned.request
            lane = request.lane
            assert lane is not None, request.name
            first = lane.committed
            txn = begin(lane, planned.token_count)
            rows.append(
                Row(
                    request.name,
                    lane.index,
                    tuple(lane.units),
                    first,
                    planned.token_count,
                    planned.logits,
                )
            )
            work.append((request, txn))
        prefill_tokens = plan.prefill_tokens
        expected = self._shape.expected_ns(plan.graph, plan.decodes, prefill_tokens)
        # it starts only after those already in flight
        queued = sum(job.expected_ns for job in self.jobs.values())
        config = self._config
        allowed = max(config.execution_deadline_floor_ns, config.execution_deadline_factor * (expected + queued))
        spec = JobSpec(
            self._numbers(),
            self._generation,
            self._session,
            plan.graph.name,
            plan.task,
            self._bank(),
            now_ns + allowed,
            tuple(rows),
            # of the job, not of a client in it: a row nobody wants any more ends by its own deadline
            now_ns + config.queue_deadline_ns if config.queue_deadline_ns else 0,
        )
        padding = plan.graph.batch - len(rows) if plan.graph.batch_is_fixed else 0
        job = Job(spec, work, plan.decodes, prefill_tokens, padding, now_ns, expected)
        job.move(JobEvent.ADMIT)
        job.move(JobEvent.PREPARE)
        if self.jobs:
            job.had_company = True
            for other in self.jobs.values():
                other.had_company = True
        self.jobs[spec.job] = job
        return job

    def _bank(self) -> Bank:
        if not self.pins_banks:
            return Bank.AUTO
        used = {job.spec.bank for job in self.jobs.values()}
        return Bank.PONG if Bank.PING in used else Bank.PING

    def submitted(self, job: Job) -> None:
        """The board took it. Told once; a completion that overtook this says the same."""
        if job.state is JobState.PREPARING:
            job.move(JobEvent.ENQUEUE)
            job.move(JobEvent.SUBMIT)
        elif job.state is JobState.CANCEL_REQUESTED:
            job.move(JobEvent.SUBMIT)
        for _, txn in job.rows:
            if txn.state is KvTxnState.RESERVED:
                self._ledger.submit(txn)

    def note_abandoned(self, request: Request) -> tuple[Job, int] | None:
        """A request left its job: a job without any live row is only waited for. Returns its row there, if it had one:
        the board does it all the same."""
        for job in self.jobs.values():
            for index, (owner, _) in enumerate(job.rows):
                if owner is request:
                    if not any(job.is_row_live(i) for i in range(len(job.rows))):
                        job.move(JobEvent.CANCEL)
                    return job, index
        return None

    def retire_done(self, job: Job) -> None:
        """It came back good: every row's KV is committed; rows whose request ended free their lane."""
        self.submitted(job)
        job.move(JobEvent.COMPLETE)
        job.move(JobEvent.SUCCEED)
        for _, txn in job.rows:
            self._ledger.commit(txn)
        del self.jobs[job.spec.job]

    def retire_unstarted(self, job: Job) -> None:
        """It never reached the device: every row's KV is as before."""
        job.move(JobEvent.FAIL)
        for _, txn in job.rows:
            self._ledger.roll_back(txn)
        del self.jobs[job.spec.job]

    def retire_failed(self, job: Job) -> None:
        """It came back bad: what it wrote is unknown, its lanes are fenced."""
        self.submitted(job)
        job.move(JobEvent.COMPLETE)
        job.move(JobEvent.FAIL)
        for _, txn in job.rows:
            self._ledger.lose(txn)
        del self.jobs[job.spec.job]

    def quarantine_all(self) -> int:
        """None of these came back: their lanes are fenced, a late completion is stale. Returns how many."""
        lost = list(self.jobs.values())
        for job in lost:
            self.quarantine(job)
        return len(lost)

    def quarantine(self, job: Job) -> None:
        """It may write on: its lanes are fenced, and what it says later is stale."""
        job.move(JobEvent.QUARANTINE)
        del self.jobs[job.spec.job]
        for _, txn in job.rows:
            self._ledger.lose(txn)
