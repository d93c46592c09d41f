"""The requests of one session: how they come in, get a lane, and end.

Owns: every live request, the waiting line, the ready sets, the fair clock, the deadlines, and the one way out
(`end`; `hand_over` leaves it to another roster). Must not know: what runs in a job, the lifecycle, tokens, text.

Life of a request: `accept` puts it in the line or refuses it; `give_lane` admits it; `end` tells the client, once,
and gives back what no job still writes. `lose` sends one whose client has seen nothing back to the line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calserve.core.admission import allowed_new_tokens, refuse_crowd, refuse_numbers, refuse_size
from calserve.core.config import SchedulerConfig
from calserve.core.deadlines import Deadlines
from calserve.core.events import Submit
from calserve.core.fairness import FairClock
from calserve.core.flight import Flight, cost_of_row
from calserve.core.kv import KvLedger
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure, FinishReason, Refusal, RefusalKind, Usage
from calserve.core.queues import ReadySets, WaitingLine
from calserve.core.request import Queue, Request, prefill_queue
from calserve.core.shape import Shape
from calserve.core.states import RequestEvent, RequestState


@dataclass(frozen=True, slots=True)
class Serving:
    """What belongs to one generation and is gone with it."""

    generation: int
    shape: Shape
    ledger: KvLedger
    flight: Flight


class Roster:
    """Invariants: a live request is in the line, or ready, or in exactly one job. Called by its worker only."""

    def __init__(self, config: SchedulerConfig, outbox: Outbox) -> None:
        self._config = config
        self._out = outbox
        self.requests: dict[str, Request] = {}
        self.line = WaitingLine()
        self.ready = ReadySets()
        self.clock = FairClock(config)
        self.deadlines = Deadlines()
        self.outstanding = 0  # estimated cost of live requests, for routing
        self.active_long = 0  # long prefills admitted and not through
        self.restarting = True  # whether a request that lost its KV unseen may wait for the next generation
        self.serving: Serving | None = None
        self.find_sibling: Callable[[], Roster | None] = lambda: None  # who serves the same package
        self._ordinals = 0

    # --- generations ------------------------------------------------------------------------------------

    def open(self, serving: Serving) -> None:
        """Requests that waited for the model stand in line; those it cannot take are refused."""
        self.serving = serving
        self.restarting = True
        for request in list(self.line):
            refusal = refuse_size(serving.shape, request.prompt_tokens, request.asked_new_tokens)
            if refusal is not None:
                self.end(request, FinishReason.REFUSED, refusal=refusal)
                continue
            self._fix_length(request, serving.shape)
            request.move(RequestEvent.ENQUEUE)

    def close(self) -> None:
        """The generation is gone; the line waits for the next one."""
        for request in self.line:
            if request.state is RequestState.WAITING_ADMISSION:
                request.move(RequestEvent.AWAIT_MODEL)
        self.serving = None

    @property
    def admitted(self) -> list[Request]:
        return [request for request in self.requests.values() if not request.is_waiting]

    @property
    def has_admitted(self) -> bool:
        return len(self.requests) > self.line.requests

    # --- in ---------------------------------------------------------------------------------------------

    def refusal_of(self, event: Submit) -> Refusal | None:
        """Why the line would not take it now."""
        refusal = refuse_numbers(event.prompt_tokens, event.max_new_tokens)
        if refusal is None and self.serving is not None:
            refusal = refuse_size(self.serving.shape, event.prompt_tokens, event.max_new_tokens)
        if refusal is None:
            tenant = self.clock.tenant(event.tenant)
            refusal = refuse_crowd(self._config, self.line, tenant, event.prompt_tokens)
            self.clock.forget_if_idle(tenant)
        return refusal

    def accept(self, event: Submit, now_ns: int, *, restarted: bool = False) -> None:
        """Put it in line, or end it at once with the limit that was exceeded. restarted: it started over already."""
        refusal = self.refusal_of(event)
        tenant = self.clock.tenant(event.tenant)
        deadline = event.deadline_ns
        if deadline is None:
            deadline = event.arrived_ns + self._config.deadline_default_ns
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
                    queue=prefill_queue(self._config, event.prompt_tokens),
                    model=event.model,
                    is_whole=event.is_whole,
                    restarted=restarted,
                )
            )
        self.clock.forget_if_idle(tenant)

    def _stand_in_line(self, request: Request) -> None:
        if self.serving is None:
            request.move(RequestEvent.AWAIT_MODEL)
            request.cost = request.prompt_tokens  # its length is not known yet
            self.outstanding += request.cost
        else:
            self._fix_length(request, self.serving.shape)
            request.move(RequestEvent.ENQUEUE)
        self.requests[request.name] = request
        self.clock.join(request.tenant)
        self.line.add(request)
        self.deadlines.add(request)

    def _fix_length(self, request: Request, shape: Shape) -> None:
        request.max_new_tokens = allowed_new_tokens(shape, request.prompt_tokens, request.asked_new_tokens)
        self.outstanding -= request.cost
        request.cost = request.estimated_cost(self._config.decode_cost_weight)
        self.outstanding += request.cost

    def give_lane(self, request: Request, serving: Serving, now_ns: int) -> None:
        """Admit the head of the line: worst case reserved, advance paid, ready to prefill."""
        self.line.remove(request)
        request.move(RequestEvent.ADMIT)
        request.generation = serving.generation
        request.lane = serving.ledger.reserve(request.name, request.total_tokens)
        request.virtual_finish = self.clock.charge(request.tenant, request.cost)
        request.ready_since_ns = now_ns
        request.tenant.active += 1
        if request.queue is Queue.LONG:
            request.is_long_prefill = True
            self.active_long += 1
        self.ready.add_prefill(request)

    def leave_long(self, request: Request) -> None:
        """Its prefill is through, or over."""
        if request.is_long_prefill:
            request.is_long_prefill = False
            self.active_long -= 1

    # --- out --------------------------------------------------------------------------------------------

    def end(
        self,
        request: Request,
        reason: FinishReason,
        refusal: Refusal | None = None,
        failure: Failure | None = None,
    ) -> None:
        """The one terminal step: tell the client, and give back what no job still writes."""
        was_waiting = request.is_waiting
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
        self._forget(request)
        self._out.finish(request.name, reason, request.usage, refusal, failure)

    def _give_back_lane(self, request: Request) -> None:
        """Undo an admission: the lane (now, or when its job retired), the ready entry, the advance payment."""
        serving = self.serving
        lane, request.lane = request.lane, None
        assert serving is not None, request.name
        assert lane is not None, request.name
        self.leave_long(request)
        serving.ledger.release(lane)
        self.ready.discard(request)
        row = serving.flight.note_abandoned(request)
        if row is not None:  # the board does it all the same
            waiting, lanes = len(self.ready.decode), serving.shape.lanes
            request.spent += cost_of_row(*row, waiting, lanes, self._config.decode_cost_weight)
        request.tenant.active -= 1
        self.clock.settle(request.tenant, request.cost, request.spent)

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

    def refuse_waiting(self, kind: RefusalKind) -> None:
        """Those no sibling can serve are told."""
        self.hand_over()
        for request in list(self.line):
            self.end(request, FinishReason.REFUSED, refusal=Refusal(kind))

    def hand_over(self) -> None:
        """Those in line go to a sibling that serves the same package, in the order of arrival, as long as its own line
        has room for them: who was accepted once is not refused for a crowd elsewhere. The rest stays."""
        to = self.find_sibling() if self.line.requests else None
        if to is None:
            return
        for request in sorted(self.line, key=lambda one: one.ordinal):
            if to.refusal_of(request.as_submitted) is not None:
                break
            self._out.count("handed_over")
            self.line.remove(request)
            request.move(RequestEvent.CANCEL)  # here; its deadline entry is one of the dead
            self._forget(request)
            to.accept(request.as_submitted, self._out.now_ns, restarted=request.restarted)

    def _forget(self, request: Request) -> None:
        del self.requests[request.name]
        self.outstanding -= request.cost
        self.deadlines.drop()
        self.clock.forget_if_idle(request.tenant)

    def end_admitted(self, reason: FinishReason, failure: Failure | None = None) -> None:
        for request in self.admitted:
            self.end(request, reason, failure=failure)

    def lose_admitted(self, reason: FinishReason, failure: Failure) -> None:
        """Their KV will not survive."""
        for request in self.admitted:
            self.lose(request, reason, failure)

    def lose(self, request: Request, reason: FinishReason, failure: Failure) -> None:
        """Its KV is lost: it ends, unless its client has seen nothing; then it is queued again, once."""
        if request.is_seen or request.restarted or not self.restarting:
            self.end(request, reason, failure=failure)
            return
        request.restarted = True
        self._out.count("restarted_requests")
        if request.deliveries:
            self._out.count("restarted_whole_answers")
        self.send_back(request)

    def send_back(self, request: Request) -> None:
        """To the front of its line, as if never admitted."""
        self._give_back_lane(request)
        request.move(RequestEvent.REQUEUE)
        request.generated = request.deliveries = request.spent = 0
        self.clock.join(request.tenant)
        self.line.add(request, in_front=True)
