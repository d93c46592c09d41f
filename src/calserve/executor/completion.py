"""The completion step: from "wait returned" to a fact `core` can act on.

Runs on the session's completion thread while it alone owns the job: lease, sequences and all. Judges code
*and* status, identity and shape; samples; advances the sequences. Decides nothing about requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.core.events import JobDone, JobFailed, JobOverdue, RowResult
from calserve.core.job import JobSpec
from calserve.core.outcomes import STATUS_STAGE, Failure, FaultClass, RowEnd
from calserve.core.states import BufferEvent
from calserve.executor.logits import LogitsFault, read_logits
from calserve.executor.messages import Delivery
from calserve.executor.pool import Lease
from calserve.executor.sequence import Sequence
from calserve.runtime.contract import Code, GraphContract, JobStatus, Session, StatusKind, Ticket
from calserve.runtime.encoding import logits_index
from calserve.runtime.errors import CalCode, failure
from calserve.sampling.sampler import choose_rows

_ENDED = (StatusKind.DONE, StatusKind.DONE_CCU_EXCEPTION)
_NO_ROW = RowResult(RowEnd.NONE, 0)
# How long an overdue job is waited on between two looks; nothing depends on its value.
WAIT_AGAIN_NS = 1_000_000_000
# The rest of a wait that ended too early is slept through up to this long, so that it costs no CPU.
PAUSE_NS = 100_000_000
# A job of a session that is gone is waited on until so long after its execution deadline, that a late end is counted.
GIVE_UP_NS = 120_000_000_000


@dataclass(slots=True)
class SubmittedJob:
    """A job the device owns, with everything that travels with it. Moved, never shared."""

    spec: JobSpec
    session: Session
    contract: GraphContract
    ticket: Ticket
    lease: Lease
    sequences: list[Sequence]
    is_overdue: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """A completion of a generation that is gone: told to `core` to be counted; the job itself is waited on again."""

    event: JobFailed


@dataclass(slots=True)
class Completed:
    """A job on its way back to the engine thread. deliveries: by spec row; None where nothing was said."""

    event: JobDone | JobFailed
    job: SubmittedJob
    ended_ns: int
    deliveries: list[Delivery | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A job that is waited on no more: its session is long gone. Nothing says that it is over."""

    job: SubmittedJob


Outcome = Completed | JobOverdue | Stray


@dataclass(frozen=True, slots=True)
class NextWait:
    """Pause, then ask the board again. pause_ns: 0 but where it said "timeout" before the time was over."""

    timeout_ns: int
    pause_ns: int = 0


def first_wait(job: SubmittedJob, now_ns: int) -> NextWait:
    """A job is waited on until its execution deadline."""
    return NextWait(max(0, job.spec.execution_deadline_ns - now_ns))


def next_wait(job: SubmittedJob, outcome: Outcome, until_ns: int, now_ns: int, is_closed: bool) -> NextWait | None:
    """How a job is waited on after `outcome`; None when it is not: it came home, or it never will.

    until_ns: when the wait that gave `outcome` was to end. is_closed: its session is gone. A completion of another
    generation moves no deadline; a board that calls every wait a timeout at once costs a pause each, no CPU.
    """
    if isinstance(outcome, Completed):
        return None
    deadline_ns = job.spec.execution_deadline_ns
    if isinstance(outcome, Stray):
        return NextWait(WAIT_AGAIN_NS) if job.is_overdue else NextWait(max(0, deadline_ns - now_ns))
    if is_closed and now_ns - deadline_ns > GIVE_UP_NS:
        return None
    return NextWait(WAIT_AGAIN_NS, min(PAUSE_NS, max(0, until_ns - now_ns)))


def completion_step(job: SubmittedJob, code: Code, status: JobStatus | None, ended_ns: int) -> Outcome:
    """What `wait` returned, turned into a completion; JobOverdue or Stray when the device still owns the job."""
    spec = job.spec
    if status is not None and is_stray(status, job.ticket, spec.generation):
        return Stray(stray_of(status))
    if code == CalCode.TIMEOUT:
        job.is_overdue = True
        return JobOverdue(spec.job, spec.generation)
    has_ended = says_over(status, job.ticket, spec.generation)
    if has_ended:
        job.lease.step(BufferEvent.RETIRE)
    fault = _judge(job, code, status)
    if fault is None:
        results = _read_rows(job)
        if not isinstance(results, LogitsFault):
            rows, deliveries = results
            return Completed(JobDone(spec.job, spec.generation, rows, _work_ns(status)), job, ended_ns, deliveries)
        fault = Failure("output", results.code, FaultClass.ARTIFACT, results.detail)
    return Completed(JobFailed(spec.job, spec.generation, fault, has_ended), job, ended_ns)


def _work_ns(status: JobStatus | None) -> int:
    """What the board worked on the job, both ways of its data included, as the step times of a warm-up do; 0 where the
    board does not say. Without the data a device that is slow beside another job would look faster than warm-up."""
    if status is None or not status.device_ns:
        return 0
    return status.h2d_ns + status.device_ns + status.d2h_ns


def stray_of(status: JobStatus) -> JobFailed:
    """The fact that a completion of a generation that is gone came: `core` counts it."""
    late = failure(STATUS_STAGE, CalCode.UNKNOWN, "a completion of an older generation")
    return JobFailed(status.ticket.job, status.generation, late)


def is_stray(status: JobStatus, ticket: Ticket, generation: int) -> bool:
    """Whether this is another job's completion, of a generation that is gone. Our own ticket under an older generation
    is ours, and misnamed."""
    return status.ticket != ticket and status.generation < generation


def says_over(status: JobStatus | None, ticket: Ticket, generation: int) -> bool:
    """Whether the device says that *this* job is over. Otherwise its buffers stay with the device (`Submitted`), and
    go from there into quarantine.

    A completion that names another job of this generation (swapped, or given twice) proves nothing of the one waited
    for: that one fails, and so does the other when its own wait is answered with a wrong name. To take the status for
    the job it names would be to read one job's output on the word of another.
    """
    return status is not None and _names(status, ticket, generation) and status.status in _ENDED


def _names(status: JobStatus, ticket: Ticket, generation: int) -> bool:
    return status.ticket == ticket and status.generation == generation


def _judge(job: SubmittedJob, code: Code, status: JobStatus | None) -> Failure | None:
    """Code and status are judged together: success of one does not excuse the other (seed 003, FI08)."""
    if code != CalCode.SUCCESS:
        return failure("wait", code)
    if status is None:
        return Failure("wait", code, FaultClass.UNKNOWN, "success without a status")
    if not _names(status, job.ticket, job.spec.generation):
        return Failure(STATUS_STAGE, code, FaultClass.UNKNOWN, "the completion names another job or generation")
    if status.status is not StatusKind.DONE:
        return Failure(STATUS_STAGE, code, FaultClass.DEVICE, status.status.value)
    return None


def _read_rows(
    job: SubmittedJob,
) -> tuple[tuple[RowResult, ...], list[Delivery | None]] | LogitsFault:
    """Sample every row that has logits, in one call, and advance its sequence."""
    index = logits_index(job.contract, job.spec)
    wanted = [i for i, at in enumerate(index) if at is not None]
    rows = [at for at in index if at is not None]
    results: list[RowResult] = [_NO_ROW] * len(index)
    deliveries: list[Delivery | None] = [None] * len(index)
    if not wanted:
        return tuple(results), deliveries
    logits = read_logits(job.contract, job.lease.buffers, rows)
    if isinstance(logits, LogitsFault):
        return logits
    sequences = [job.sequences[i] for i in wanted]
    choices = choose_rows([s.sampler for s in sequences], logits, [len(s.generated) for s in sequences])
    for i, sequence, choice in zip(wanted, sequences, choices, strict=True):
        advance = sequence.advance(choice)
        sampled = choice.error is None
        results[i] = RowResult(advance.end, int(sampled))
        if sampled:
            deliveries[i] = Delivery(sequence.request, advance.text, (choice.token,), advance.choices, advance.offsets)
    return tuple(results), deliveries
