"""What a session shows of itself. Reads only."""

from __future__ import annotations

from collections.abc import Iterable

from calserve.core.request import PREFILL_QUEUES, Queue, Request
from calserve.core.session import Session
from calserve.core.snapshot import QueueView, SessionView
from calserve.core.states import LaneState


def session_view(session: Session, now_ns: int) -> SessionView:
    worker = session.worker
    roster, serving = worker.roster, worker.serving
    ledger = serving.ledger if serving is not None else None
    shape = serving.shape if serving is not None else None
    jobs = serving.flight.jobs.values() if serving is not None else ()
    oldest = min(jobs, key=lambda job: job.started_ns, default=None)
    units = ledger.units_by_state() if ledger is not None else {}
    return SessionView(
        session=session.name,
        model=session.model,
        package=session.package,
        generation=session.generation,
        state=session.state,
        waiting_requests=roster.line.requests,
        waiting_prompt_tokens=roster.line.prompt_tokens,
        running_requests=len(roster.requests) - roster.line.requests,
        jobs_in_flight=worker.in_flight,
        oldest_job_submitted_ns=oldest.started_ns if oldest is not None else None,
        oldest_job_deadline_ns=oldest.spec.execution_deadline_ns if oldest is not None else None,
        lanes_total=len(ledger.lanes) if ledger is not None else 0,
        lanes_by_state=ledger.lanes_by_state() if ledger is not None else {s.value: 0 for s in LaneState},
        kv_units_total=ledger.units if ledger is not None else 0,
        kv_units_held=ledger.units - units["free"] if ledger is not None else 0,
        kv_units_reserved=ledger.promised if ledger is not None else 0,
        context_tokens=min(shape.context, shape.kv_tokens) if shape is not None else 0,
        queues=_queues(session, now_ns),
        waiting_reason=worker.waiting_reason,
        failure=session.failure,
        kv_units_by_state=units,
        max_in_flight=session.concurrency.allowed if shape is not None else 0,
        downgrade_reason=session.concurrency.reason,
        features_off=worker.features_off if shape is not None else (),
        refused_package=session.known_good.refused,
    )


def _queues(session: Session, now_ns: int) -> tuple[QueueView, ...]:
    """decode: ready to step. The prefill classes: waiting for a lane or for their first or next chunk."""
    roster = session.worker.roster
    by_queue: dict[Queue, list[Request]] = {
        queue: list(roster.ready.prefill[queue].values()) for queue in PREFILL_QUEUES
    }
    for request in roster.line:
        by_queue[request.queue].append(request)
    decode = [request.ready_since_ns for request in roster.ready.decode.values()]
    views = [_view(Queue.DECODE, decode, now_ns)]
    views += [_view(queue, (r.arrived_ns for r in rows), now_ns) for queue, rows in by_queue.items()]
    return tuple(views)


def _view(queue: Queue, since_ns: Iterable[int], now_ns: int) -> QueueView:
    times = list(since_ns)
    return QueueView(queue.value, len(times), max(0, now_ns - min(times)) if times else 0)
