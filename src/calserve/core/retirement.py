"""What the end of a job does to its requests.

Owns: nothing; it moves the roster's requests by what the completion step reported, row by row. Must not know: what
runs next. Which row is whose was fixed at launch; a row whose request ended meanwhile changes nobody.
"""

from __future__ import annotations

from calserve.core.config import SchedulerConfig
from calserve.core.events import JobDone, RowResult
from calserve.core.faults import FAULT_RULES
from calserve.core.flight import Job, cost_of_row
from calserve.core.job import LogitsWanted
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FaultClass, FinishReason, RowEnd
from calserve.core.request import Request
from calserve.core.roster import Roster, Serving
from calserve.core.states import RequestEvent, RequestState

_STOPS = frozenset({RowEnd.EOS, RowEnd.STOP_TOKEN, RowEnd.STOP_STRING, RowEnd.GRAMMAR})


class Retirement:
    """Called by the worker, with the job still in flight. `decode_jobs`: how many were launched so far."""

    __slots__ = ("_config", "_out", "_roster")

    def __init__(self, config: SchedulerConfig, outbox: Outbox, roster: Roster) -> None:
        self._config = config
        self._out = outbox
        self._roster = roster

    def done(self, serving: Serving, job: Job, event: JobDone, now_ns: int, decode_jobs: int) -> Failure | None:
        """Every row's request goes on or ends. Returns a failure when a row's output was not usable: without proven
        isolation of the lanes it is the whole job's, and nothing of the job is delivered (seed 002, section 7.4)."""
        results = event.rows
        if len(results) != len(job.rows):
            raise ValueError(f"job {job.spec.job}: {len(results)} results for {len(job.rows)} rows")
        ends = [result.end for result in results]
        if RowEnd.ERROR in ends and "lane_fault_isolation" not in serving.shape.proven:
            failure = _bad_output(job, ends.index(RowEnd.ERROR))  # nothing says that it stayed in its row
            self.failed(serving, job, failure)
            return failure
        live = [job.is_row_live(index) for index in range(len(results))]
        serving.flight.retire_done(job)
        suspect: Failure | None = None
        for index, result in enumerate(results):
            if not live[index]:
                self._out.count("dropped_rows")
                continue
            request = job.rows[index][0]
            waiting = len(self._roster.ready.decode)
            request.spent += cost_of_row(job, index, waiting, serving.shape.lanes, self._config.decode_cost_weight)
            if result.end is RowEnd.ERROR:
                suspect = _bad_output(job, index)
                self._roster.end(request, FinishReason.INTERNAL, failure=suspect)
            elif result.end is RowEnd.UNUSABLE:
                own = Failure("sampling", 0, FaultClass.REQUEST, "the request's settings leave no token to choose")
                self._roster.end(request, FinishReason.INTERNAL, failure=own)
            elif job.spec.rows[index].logits is LogitsWanted.NONE:
                request.ready_since_ns = now_ns
                request.move(RequestEvent.CHUNK_DONE)
                self._roster.ready.add_prefill(request)
            else:
                self._take_token(job, index, request, result)
                request.ready_since_ns = now_ns
                request.ready_at_step = decode_jobs
        return suspect

    def _take_token(self, job: Job, index: int, request: Request, result: RowResult) -> None:
        self._roster.leave_long(request)
        # the ending token counts too, also where the completion step has no text for it
        request.generated += result.text_tokens or 1
        request.deliveries += 1
        self._out.emit(request.name, job.spec.job, index)
        is_stop = result.end in _STOPS
        if is_stop or request.generated >= request.max_new_tokens:
            request.move(RequestEvent.LAST_TOKEN)
            self._roster.end(request, FinishReason.STOP if is_stop else FinishReason.LENGTH)
        else:
            request.move(RequestEvent.TOKEN_DONE)
            self._roster.ready.add_decode(request)

    def failed(self, serving: Serving, job: Job, failure: Failure, *, has_ended: bool = True) -> None:
        """It retired badly, or may write on: its lanes are fenced, its requests end or start over."""
        live = _live_requests(job)
        if has_ended:
            serving.flight.retire_failed(job)
        else:
            serving.flight.quarantine(job)
        rule = FAULT_RULES[failure.fault]
        for request in live:
            if rule.may_restart:
                self._roster.lose(request, rule.end, failure)
            else:
                self._roster.end(request, rule.end, failure=failure)

    def unstarted(self, serving: Serving, job: Job) -> list[Request]:
        """It never reached the device: its requests are ready as before. Returns them."""
        live = _live_requests(job)
        serving.flight.retire_unstarted(job)
        for request in live:
            is_decode = request.state is RequestState.DECODE_RUNNING
            request.move(RequestEvent.ROLL_BACK)
            if is_decode:
                self._roster.ready.add_decode(request)
            else:
                self._roster.ready.add_prefill(request)
        return live


def _bad_output(job: Job, row: int) -> Failure:
    return Failure("output", 0, FaultClass.ARTIFACT, f"row {row} of job {job.spec.job}")


def _live_requests(job: Job) -> list[Request]:
    return [job.rows[index][0] for index in range(len(job.rows)) if job.is_row_live(index)]
