"""One session's requests: from arrival to the one terminal order.

Owns: the waiting line, the ready sets, the KV ledger, the jobs in flight and the fair clock of one session. Must
not know: another session, the lifecycle (the session opens and shuts the two valves), tokens, text.

Life: `accept` puts a request in the line; `run` admits heads into free lanes and launches jobs; a job's end moves
each row's request on or ends it; `end` is the only way out. The valves: `admitting` lets heads into lanes,
`submitting` lets jobs out.
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.admission import (
    allowed_new_tokens,
    blocker,
    choose_head,
    lane_cap,
    refuse_crowd,
    refuse_numbers,
    refuse_size,
)
from calserve.core.config import SchedulerConfig
from calserve.core.deadlines import Deadlines
from calserve.core.events import RowResult, Submit
from calserve.core.fairness import FairClock
from calserve.core.faults import FAULT_RULES, Aftermath
from calserve.core.flight import Flight, Job
from calserve.core.job import LogitsWanted
from calserve.core.kv import KvLedger
from calserve.core.outbox import Outbox
from calserve.core.outcomes import (
    Failure,
    FaultClass,
    FinishReason,
    Refusal,
    RefusalKind,
    RowEnd,
    Usage,
)
from calserve.core.plan import Plan, Policy, plan_job
from calserve.core.queues import ReadySets, Turns, WaitingLine
from calserve.core.request import Queue, Request, prefill_queue
from calserve.core.shape import Shape
from calserve.core.states import RequestEvent, RequestState

# a PrepareFailed of this stage says the board could not allocate KV yet: wait for KvReleased, do not poll
KV_STAGE = "kv"

_STOPS = frozenset({RowEnd.EOS, RowEnd.STOP_TOKEN, RowEnd.STOP_STRING, RowEnd.GRAMMAR})
_RUNNING = (RequestState.PREFILL_RUNNING, RequestState.DECODE_RUNNING)
_WAITING = (RequestState.WAITING_MODEL, RequestState.WAITING_ADMISSION)


class Worker:
    """Invariants: a live request is in the line, or ready, or in exactly one job. Called only by its session."""

    def __init__(self, session: str, config: SchedulerConfig, outbox: Outbox, numbers: Callable[[], int]) -> None:
        self.session = session
        self.config = config
        self._out = outbox
        self._numbers = numbers
        self.requests: dict[str, Request] = {}
        self.line = WaitingLine()
        self.ready = ReadySets()
        self.turns = Turns(config)
        self.clock = FairClock(config)
        self.deadlines = Deadlines()
        self.admitting = False
        self.submitting = False
        self.restarting = True  # whether a request that lost its KV unseen may wait for the next generation
        self.outstanding = 0  # estimated cost of live requests, for routing
        self.active_long = 0  # long prefills admitted and not through
        self.waiting_reason = ""
        self.retry_at_ns: int | None = None  # after a transient refusal nothing is submitted until then
        self.window_ns: int | None = None  # the batching window open now ends here
        self._window_opened_ns: int | None = None
        self._retries = 0
        self._kv_blocked = False
        self._ordinals = 0
        self._decode_jobs = 0
        self._prefill_went_last = False
        self.shape: Shape | None = None
        self.ledger: KvLedger | None = None
        self.flight: Flight | None = None

    # --- the generation ---------------------------------------------------------------------------------

    def open(self, generation: int, shape: Shape) -> None:
        """A generation is Ready: requests that waited for it stand in line, those it cannot take are refused."""
        self.shape = shape
        self.ledger = KvLedger(
            shape.lanes,
            shape.kv_units,
            shape.unit_tokens,
            shape.lane_is_unit,
            on_free=lambda lane: self._out.release_lane(self.session, generation, lane),
        )
        self.flight = Flight(self.session, generation, self.config, shape, self.ledger, self._numbers)
        self._generation = generation
        self.admitting = self.submitting = self.restarting = True
        self.retry_at_ns = self.window_ns = self._window_opened_ns = None
        self._retries = 0
        self._kv_blocked = False
        for request in list(self.line):
            refusal = refuse_size(shape, request.prompt_tokens, request.asked_new_tokens)
            if refusal is not None:
                self.end(request, FinishReason.REFUSED, refusal=refusal)
                continue
            self._fix_length(request, shape)
            request.move(RequestEvent.ENQUEUE)

    def close(self) -> None:
        """The generation is gone (its jobs retired or were quarantined); the line waits for the next one."""
        self.admitting = self.submitting = False
        self.retry_at_ns = self.window_ns = self._window_opened_ns = None
        for request in self.line:
            if request.state is RequestState.WAITING_ADMISSION:
                request.move(RequestEvent.AWAIT_MODEL)
        self.shape = self.ledger = self.flight = None

    @property
    def in_flight(self) -> int:
        return len(self.flight.jobs) if self.flight is not None else 0

    @property
    def admitted(self) -> list[Request]:
        return [r for r in self.requests.values() if r.state not in _WAITING]

    @property
    def has_admitted(self) -> bool:
        return len(self.requests) > self.line.requests

    # --- arrival ----------------------------------------------------------------------------------------

    def accept(self, event: Submit, now_ns: int) -> None:
        """Put it in line, or end it at once with the limit that was exceeded."""
        refusal = refuse_numbers(event.prompt_tokens, event.max_new_tokens)
        if refusal is None and self.shape is not None:
            refusal = refuse_size(self.shape, event.prompt_tokens, event.max_new_tokens)
        tenant = self.clock.tenant(event.tenant)
        if refusal is None:
            refusal = refuse_crowd(self.config, self.line, tenant, event.prompt_tokens)
        deadline = event.deadline_ns
        if deadline is None:
            deadline = event.arrived_ns + self.config.deadline_default_ns
        usage = Usage(max(0, event.prompt_tokens), 0)
        if refusal is not None:
            self._out.finish(event.request, FinishReason.REFUSED, usage, refusal=refusal)
        elif deadline <= now_ns:
            self._out.finish(event.request, FinishReason.DEADLINE, usage)
        else:
            self._ordinals += 1
            self._stand_in_line(
                Request(
                    name=event.request,
                    tenant=tenant,
                    ordinal=self._ordinals,
                    prompt_tokens=event.prompt_tokens,
                    asked_new_tokens=event.max_new_tokens,
                    arrived_ns=event.arrived_ns,
                    deadline_ns=deadline,
                    queue=prefill_queue(self.config, event.prompt_tokens),
                    arrival_virtual=self.clock.virtual,
                )
            )
        self.clock.forget_if_idle(tenant)

    def _stand_in_line(self, request: Request) -> None:
        if self.shape is None:
            request.move(RequestEvent.AWAIT_MODEL)
            request.cost = request.prompt_tokens  # its length is not known yet
            self.outstanding += request.cost
        else:
            self._fix_length(request, self.shape)
            request.move(RequestEvent.ENQUEUE)
        self.requests[request.name] = request
        self.line.add(request)
        self.deadlines.add(request)

    def _fix_length(self, request: Request, shape: Shape) -> None:
        request.max_new_tokens = allowed_new_tokens(shape, request.prompt_tokens, request.asked_new_tokens)
        self.outstanding -= request.cost
        request.cost = request.estimated_cost(self.config.decode_cost_weight)
        self.outstanding += request.cost

    # --- the ends ---------------------------------------------------------------------------------------

    def end(
        self,
        request: Request,
        reason: FinishReason,
        refusal: Refusal | None = None,
        failure: Failure | None = None,
    ) -> None:
        """The one terminal step: tell the client, and give back what no job still writes."""
        was_waiting = request.state in _WAITING
        if reason is FinishReason.CANCELLED:
            request.move(RequestEvent.CANCEL)
        elif request.state is RequestState.FINISHING:
            request.move(RequestEvent.TELL)
        else:
            request.move(RequestEvent.FAIL)
        if was_waiting:
            self.line.remove(request)
        else:
            self._give_back_lane(request)
        del self.requests[request.name]
        self.outstanding -= request.cost
        self.deadlines.drop()
        self.clock.forget_if_idle(request.tenant)
        self._out.finish(request.name, reason, request.usage, refusal, failure)

    def _give_back_lane(self, request: Request) -> None:
        """Undo an admission: the lane (now, or when its job retired), the ready entry, the advance payment."""
        assert self.ledger is not None
        assert self.flight is not None
        lane, request.lane = request.lane, None
        assert lane is not None, request.name
        self._leave_long(request)
        self.ledger.release(lane)
        self.ready.discard(request)
        self.flight.note_abandoned(request)
        request.tenant.active -= 1
        self.clock.settle(request.tenant, request.cost, request.spent)

    def _leave_long(self, request: Request) -> None:
        if request.is_long_prefill:
            request.is_long_prefill = False
            self.active_long -= 1

    def cancel(self, name: str) -> bool:
        """Idempotent: False when no live request has that name."""
        request = self.requests.get(name)
        if request is None:
            return False
        self.end(request, FinishReason.CANCELLED)
        return True

    def expire(self, now_ns: int) -> None:
        while (request := self.deadlines.pop_expired(now_ns)) is not None:
            self.end(request, FinishReason.DEADLINE)

    def end_admitted(self, reason: FinishReason, failure: Failure | None = None) -> None:
        for request in self.admitted:
            self.end(request, reason, failure=failure)

    def lose_admitted(self, failure: Failure) -> None:
        """Their KV will not survive: those that sent nothing wait for the next generation, once."""
        for request in self.admitted:
            self._restart_or_end(request, FinishReason.DEVICE_FAULT, failure)

    def _restart_or_end(self, request: Request, reason: FinishReason, failure: Failure) -> None:
        if request.deliveries or request.restarted or not self.restarting:
            self.end(request, reason, failure=failure)
            return
        request.restarted = True
        self._out.count("restarted_requests")
        self._send_back(request)

    def _send_back(self, request: Request) -> None:
        """Back to the front of its line, as if never admitted."""
        self._give_back_lane(request)
        request.move(RequestEvent.REQUEUE)
        request.generated = request.spent = 0
        self.line.add(request, in_front=True)

    # --- jobs -------------------------------------------------------------------------------------------

    def find_job(self, number: int) -> Job | None:
        return self.flight.jobs.get(number) if self.flight is not None else None

    def job_submitted(self, job: Job) -> None:
        assert self.flight is not None
        self.flight.submitted(job)

    def job_done(self, job: Job, results: tuple[RowResult, ...], now_ns: int) -> Failure | None:
        """Move every row's request on. Returns a failure when a row's output was not usable."""
        assert self.flight is not None
        if len(results) != len(job.rows):
            raise ValueError(f"job {job.spec.job}: {len(results)} results for {len(job.rows)} rows")
        live = [job.is_row_live(i) for i in range(len(results))]
        self.flight.retire_done(job)
        self._retries = 0
        self.retry_at_ns = None
        suspect: Failure | None = None
        for index, result in enumerate(results):
            if not live[index]:
                self._out.count("dropped_rows")
                continue
            request = job.rows[index][0]
            self._charge_row(job, index, request)
            if result.end is RowEnd.ERROR:
                suspect = Failure("output", 0, FaultClass.ARTIFACT, f"row {index} of job {job.spec.job}")
                self.end(request, FinishReason.INTERNAL, failure=suspect)
            else:
                self._advance(request, job, index, result, now_ns)
        return suspect

    def _charge_row(self, job: Job, index: int, request: Request) -> None:
        """Real cost of the row: its tokens, its share of unused rows, the stall it was to others.

        A prefill token that makes d of L lanes wait costs d/L more.
        """
        weight = self.config.decode_cost_weight
        padding = weight * job.padding // len(job.rows)
        if index < job.decodes:
            request.spent += weight + padding
            return
        tokens = job.spec.rows[index].token_count
        waiting = job.decodes or len(self.ready.decode)
        lanes = self.shape.lanes if self.shape is not None else 1
        request.spent += tokens + padding + tokens * waiting // lanes

    def _advance(self, request: Request, job: Job, index: int, result: RowResult, now_ns: int) -> None:
        row = job.spec.rows[index]
        request.ready_since_ns = now_ns
        if row.logits is LogitsWanted.NONE:
            request.move(RequestEvent.CHUNK_DONE)
            self.ready.add_prefill(request)
            return
        self._leave_long(request)
        # the ending token counts too, also where the completion step has no text for it
        request.generated += result.text_tokens or 1
        request.deliveries += 1
        self._out.emit(request.name, job.spec.job, index)
        is_stop = result.end in _STOPS
        if is_stop or request.generated >= request.max_new_tokens:
            request.move(RequestEvent.LAST_TOKEN)
            self.end(request, FinishReason.STOP if is_stop else FinishReason.LENGTH)
            return
        request.move(RequestEvent.TOKEN_DONE)
        request.ready_at_step = self._decode_jobs
        self.ready.add_decode(request)

    def job_failed(self, job: Job, failure: Failure) -> None:
        """It retired badly: its lanes are fenced, its requests end or start over."""
        assert self.flight is not None
        live = [job.rows[i][0] for i in range(len(job.rows)) if job.is_row_live(i)]
        self.flight.retire_failed(job)
        rule = FAULT_RULES[failure.fault]
        for request in live:
            if rule.may_restart:
                self._restart_or_end(request, rule.end, failure)
            else:
                self.end(request, rule.end, failure=failure)

    def job_unstarted(self, job: Job, failure: Failure, now_ns: int) -> bool:
        """It never reached the device. Returns True when the board kept refusing past the bound."""
        assert self.flight is not None
        live = [job.rows[i][0] for i in range(len(job.rows)) if job.is_row_live(i)]
        self.flight.retire_unstarted(job)
        rule = FAULT_RULES[failure.fault]
        if rule.then in (Aftermath.CARRY_ON, Aftermath.FAIL):
            for request in live:
                self.end(request, rule.end, failure=failure)
            return False
        for request in live:
            self._make_ready_again(request)
        if rule.then is not Aftermath.RETRY:
            return False
        starters = [r for r in live if r.committed == 0]
        if failure.stage == KV_STAGE and starters and self.admitting:
            self._kv_blocked = True
            for request in reversed(starters):
                self._send_back(request)
            return False
        return self._back_off(now_ns)

    def _make_ready_again(self, request: Request) -> None:
        is_decode = request.state is RequestState.DECODE_RUNNING
        request.move(RequestEvent.ROLL_BACK)
        if is_decode:
            self.ready.add_decode(request)
        else:
            self.ready.add_prefill(request)

    def _back_off(self, now_ns: int) -> bool:
        self._retries += 1
        self._out.count("transient_retries")
        if self._retries > self.config.max_transient_retries:
            return True
        self.retry_at_ns = now_ns + (self.config.transient_backoff_ns << (self._retries - 1))
        return False

    def kv_released(self) -> None:
        self._kv_blocked = False

    # --- work -------------------------------------------------------------------------------------------

    def run(self, now_ns: int) -> None:
        """Fill free lanes, then launch jobs until the board has what it may have."""
        if self.shape is None:
            self.waiting_reason = "model" if self.line.requests else ""
            return
        self._admit(now_ns)
        if self.retry_at_ns is not None and now_ns >= self.retry_at_ns:
            self.retry_at_ns = None
        if not self.submitting or self.retry_at_ns is not None or not len(self.ready):
            self.window_ns = self._window_opened_ns = None
            return
        assert self.flight is not None
        while not self.flight.is_full and len(self.ready):
            if self._hold_for_window(now_ns):
                return
            plan = plan_job(self.ready, self.turns, self.shape, self._policy())
            if plan is None:
                return
            self._launch(plan, now_ns)

    def _admit(self, now_ns: int) -> None:
        assert self.ledger is not None
        assert self.shape is not None
        line = self.line
        self.waiting_reason = ""
        while line.requests:
            if not self.admitting:
                self.waiting_reason = "paused"
                return
            if self._kv_blocked:
                self.waiting_reason = "kv_released"
                return
            head, reason = choose_head(self.config, line, self.clock, self.active_long, self.shape.lanes)
            if head is not None:
                reason = blocker(self.ledger, head)
            if head is None or reason:
                self.waiting_reason = reason
                return
            self._give_lane(head, now_ns)

    def _give_lane(self, request: Request, now_ns: int) -> None:
        assert self.ledger is not None
        self.line.remove(request)
        request.move(RequestEvent.ADMIT)
        request.generation = self._generation
        request.lane = self.ledger.reserve(request.name, request.total_tokens)
        request.virtual_finish = self.clock.charge(request.tenant, request.arrival_virtual, request.cost)
        request.ready_since_ns = now_ns
        request.tenant.active += 1
        if request.queue is Queue.LONG:
            request.is_long_prefill = True
            self.active_long += 1
        self.ready.add_prefill(request)

    @property
    def is_starved(self) -> bool:
        """Fenced lanes leave no room that the head of the line could ever use: only a recovery helps."""
        if self.ledger is None or self.waiting_reason not in ("lanes", "kv_units") or not self.admitting:
            return False
        if not self.ledger.unknown:
            return False
        assert self.shape is not None
        head, _ = choose_head(self.config, self.line, self.clock, self.active_long, self.shape.lanes)
        return head is not None and not self.ledger.could_ever_reserve(head.total_tokens)

    def _policy(self) -> Policy:
        assert self.shape is not None
        assert self.flight is not None
        return Policy(
            lane_cap=lane_cap(self.config, self.shape.max_rows),
            step=self._decode_jobs,
            decode_next=self._prefill_went_last,
            decodes_elsewhere=any(job.decodes for job in self.flight.jobs.values()),
        )

    def _launch(self, plan: Plan, now_ns: int) -> None:
        assert self.flight is not None
        for planned in plan.rows:
            planned.request.move(RequestEvent.START)
            self.ready.discard(planned.request)
        job = self.flight.launch(plan, now_ns)
        if plan.decodes:
            self._decode_jobs += 1
        self._prefill_went_last = plan.decodes == 0
        self.window_ns = self._window_opened_ns = None
        out = self._out
        out.submit(job.spec)
        out.count("jobs")
        out.count("decode_rows", plan.decodes)
        out.count("prefill_tokens", job.prefill_tokens)
        out.count("padding_rows", job.padding)

    def _hold_for_window(self, now_ns: int) -> bool:
        """Whether to wait for more rows: never when full, never past the earliest deadline, never forever."""
        length = self.config.batching_window_ns
        if length == 0:
            return False
        assert self.shape is not None
        if self._window_opened_ns is None:
            self._window_opened_ns = now_ns
        if len(self.ready) >= self.shape.max_rows:
            return False
        graph = self.shape.decode[-1]
        step_ns = self.shape.expected_ns(graph, len(self.ready), 0)
        latest = min(request.deadline_ns for request in self.ready) - step_ns
        until = min(self._window_opened_ns + length, latest)
        self.window_ns = until if until > now_ns else None
        return self.window_ns is not None

    def next_deadline_ns(self) -> int | None:
        times = (self.deadlines.next_ns(), self.window_ns, self.retry_at_ns)
        return min((t for t in times if t is not None), default=None)

    def refuse_waiting(self, kind: RefusalKind) -> None:
        for request in list(self.line):
            self.end(request, FinishReason.REFUSED, refusal=Refusal(kind))
