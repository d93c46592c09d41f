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
    """A retired job on its way back to the engine thread. deliveries: by spec row; None where nothing was said."""

    event: JobDone | JobFailed
    job: SubmittedJob
    ended_ns: int
    deliveries: list[Delivery | None] = field(default_factory=list)


Outcome = Completed | JobOverdue | Stray


def completion_step(job: SubmittedJob, code: Code, status: JobStatus | None, ended_ns: int) -> Outcome:
    """What `wait` returned, turned into a completion; JobOverdue or Stray when the device still owns the job."""
    spec = job.spec
    if status is not None and status.generation < spec.generation:
        return Stray(stray_of(status))
    if code == CalCode.TIMEOUT:
        job.is_overdue = True
        return JobOverdue(spec.job, spec.generation)
    if _has_ended(job, status):
        job.lease.step(BufferEvent.RETIRE)
    fault = _judge(job, code, status)
    if fault is None:
        results = _read_rows(job)
        if not isinstance(results, LogitsFault):
            rows, deliveries = results
            return Completed(JobDone(spec.job, spec.generation, rows, _work_ns(status)), job, ended_ns, deliveries)
        fault = Failure("output", results.code, FaultClass.ARTIFACT, results.detail)
    return Completed(JobFailed(spec.job, spec.generation, fault), job, ended_ns)


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


def _has_ended(job: SubmittedJob, status: JobStatus | None) -> bool:
    """Whether the device says that *this* job is over. Otherwise its buffers stay with the device (`Submitted`), and
    go from there into quarantine.

    A completion that names another job of this generation (swapped, or given twice) proves nothing of the one waited
    for: that one fails, and so does the other when its own wait is answered with a wrong name. To take the status for
    the job it names would be to read one job's output on the word of another.
    """
    return status is not None and _names(job, status) and status.status in _ENDED


def _names(job: SubmittedJob, status: JobStatus) -> bool:
    return status.ticket == job.ticket and status.generation == job.spec.generation


def _judge(job: SubmittedJob, code: Code, status: JobStatus | None) -> Failure | None:
    """Code and status are judged together: success of one does not excuse the other (seed 003, FI08)."""
    if code != CalCode.SUCCESS:
        return failure("wait", code)
    if status is None:
        return Failure("wait", code, FaultClass.UNKNOWN, "success without a status")
    if not _names(job, status):
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
