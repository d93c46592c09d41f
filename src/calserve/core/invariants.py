"""I1-I8 and I12 of the design, checked by a full scan over what `core` can see.

Independent of the incremental counts it checks them against. Raises AssertionError with the invariant's number.
I9, I10, I11 and I13 need more than one moment or the executor: the tests and the simulation have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from calserve.core.admission import blocker, choose_head, refuse_size
from calserve.core.request import WAITING
from calserve.core.roster import Roster
from calserve.core.session import Session
from calserve.core.states import GenerationState, LaneState, RequestState
from calserve.core.supervisor import Supervisor
from calserve.core.worker import Worker

_READY = (RequestState.PREFILL_READY, RequestState.DECODE_READY)


def check(supervisor: Supervisor, counters: Mapping[str, int], planned_ns: int) -> None:
    """planned_ns: when work was last planned; what became due since then has its Tick."""
    check_counts(supervisor, counters)
    for session in supervisor.sessions.values():
        _check_places(session.worker.roster)
        _check_ledger(session)
        _check_flight(session.worker)
        if not supervisor.has_exited:
            _check_work(session, planned_ns)


def check_counts(supervisor: Supervisor, counters: Mapping[str, int]) -> None:
    """What O(sessions) can say of I1, I2, I6, I8 and I12. The full scan holds the counts against what they count."""
    live = sum(len(session.worker.roster.requests) for session in supervisor.sessions.values())
    finished = sum(count for name, count in counters.items() if name.startswith("finished_"))
    submitted = counters.get("submitted", 0)
    assert submitted == finished + live, f"I1/I12: {submitted} submitted, {finished} finished, {live} live"
    for session in supervisor.sessions.values():
        worker = session.worker
        serving = worker.serving
        if serving is None:
            assert not worker.roster.has_admitted, "I2: admitted without a ledger"
            continue
        ledger = serving.ledger
        assert worker.in_flight <= serving.shape.max_in_flight, f"I6: {worker.in_flight} jobs in flight"
        assert ledger.promised + ledger.unknown <= ledger.units, "I2: promised beyond the pool"
        room = worker.concurrency
        assert 1 <= room.allowed <= serving.shape.max_in_flight, f"I6: {room.allowed} jobs allowed"
        assert not room.reason or room.allowed == 1, f"I6: {room.allowed} jobs allowed in spite of {room.reason}"
        held_back = worker.retry_at_ns is not None or worker.window_ns is not None or not worker.submitting
        is_idle = not worker.in_flight and worker.overdue_until_ns is None and len(worker.roster.ready)
        assert not is_idle or held_back, f"I8: {len(worker.roster.ready)} ready rows and no job"


def _check_places(roster: Roster) -> None:
    """Every live request stands in exactly the one place its state says."""
    waiting = {request.name for request in roster.line}
    ready = {request.name for request in roster.ready}
    flying: dict[str, int] = {}
    for job in roster.serving.flight.jobs.values() if roster.serving is not None else ():
        for index, (request, _) in enumerate(job.rows):
            if job.is_row_live(index):
                assert request.name not in flying, f"I6: {request.name} is in two jobs"
                flying[request.name] = job.spec.job
    assert len(ready) == len(roster.ready), "a request is ready twice"
    assert len(waiting) == roster.line.requests, "the line's count drifted"
    assert sum(r.prompt_tokens for r in roster.line) == roster.line.prompt_tokens, "the line's tokens drifted"
    for request in roster.requests.values():
        name, state = request.name, request.state
        assert not request.is_terminal, f"I1: {name} ended and is still here"
        places = (name in waiting, name in ready, name in flying)
        expected = (state in WAITING, state in _READY, state not in WAITING and state not in _READY)
        assert places == expected, f"{name} is {state.value} but stands in (line, ready, job) = {places}"
        assert (request.lane is None) == (state in WAITING), f"{name}: lane without admission"
        assert request.generated <= max(request.max_new_tokens, 0), f"{name} generated too much"
    assert len(waiting) + len(ready) + len(flying) == len(roster.requests), "a place holds someone unknown"
    assert roster.outstanding == sum(r.cost for r in roster.requests.values()), "outstanding cost drifted"
    assert roster.active_long == sum(r.is_long_prefill for r in roster.requests.values()), "long count drifted"
    _check_tenants(roster)


def _check_tenants(roster: Roster) -> None:
    for tenant in roster.clock.tenants.values():
        mine = [r for r in roster.requests.values() if r.tenant is tenant]
        waiting = [r for r in mine if r.state in WAITING]
        assert tenant.waiting == len(waiting), f"{tenant.name}: waiting drifted"
        assert tenant.waiting_tokens == sum(r.prompt_tokens for r in waiting), f"{tenant.name}: tokens drifted"
        assert tenant.active == len(mine) - len(waiting), f"{tenant.name}: active drifted"


def _check_ledger(session: Session) -> None:
    roster = session.worker.roster
    if roster.serving is None:
        return
    ledger = roster.serving.ledger
    ledger.check()
    fenced = sum(lane.state is LaneState.UNKNOWN for lane in ledger.lanes)
    is_ready = session.state is GenerationState.READY
    assert not is_ready or 2 * fenced < len(ledger.lanes) or not fenced, "I8: serves on with half of its lanes fenced"
    holders = {r.name: r for r in roster.requests.values() if r.lane is not None}
    for lane in ledger.lanes:
        if not lane.holder:
            continue
        request = holders.pop(lane.holder, None)
        assert request is not None, f"I2: lane {lane.index} is held by nobody"
        assert request.lane is lane, f"I2: {lane.holder} holds another lane"
        assert request.generation == session.generation, f"I5: {lane.holder} is of another generation"
        assert lane.reserved == request.total_tokens, f"I3: {lane.holder} lost its reservation"
        # a decode writes the token before the newest: the newest is not in KV yet
        written = request.prompt_tokens + request.generated - 1 if request.generated else lane.committed
        assert lane.committed == written, f"I3: {lane.holder} at {lane.committed}, not {written}"
        too_big = refuse_size(roster.serving.shape, request.prompt_tokens, request.max_new_tokens)
        assert too_big is None, f"I7: {lane.holder} can never run to its end"
    assert not holders, f"I2: no lane knows {list(holders)}"


def _check_flight(worker: Worker) -> None:
    serving = worker.serving
    if serving is None:
        return
    jobs = serving.flight.jobs.values()
    flying = [txn.lane for job in jobs for _, txn in job.rows]
    for lane in flying:
        assert lane.state in (LaneState.UPDATING, LaneState.RELEASING), f"I4: lane {lane.index} {lane.state}"
    written = sum(lane.state in (LaneState.UPDATING, LaneState.RELEASING) for lane in serving.ledger.lanes)
    assert written == len(flying), "I4: a lane is updated by no job or by two"
    for job in jobs:
        for (_, txn), row in zip(job.rows, job.spec.rows, strict=True):
            assert tuple(txn.lane.units[: len(row.kv_units)]) == row.kv_units, "I4: units moved under a job"
            assert row.first_position == txn.lane.committed, "I3: position is not the committed length"


def _check_work(session: Session, planned_ns: int) -> None:
    """I8: the board never stands idle beside work it could do.

    What may hold ready rows back is a window or a back-off, each with its end; a back-off keeps the line out as well.
    """
    worker, roster, serving = session.worker, session.worker.roster, session.worker.serving
    is_ready = session.state is GenerationState.READY
    may_run = is_ready or (session.drain is not None and session.drain.may_run)
    if not may_run or worker.overdue_until_ns is not None or serving is None:
        return
    assert worker.window_ns is None or worker.window_ns > planned_ns, "I8: a window is past"
    if worker.waiting_reason == "backing_off":
        assert worker.retry_at_ns is not None, "I8: nobody comes in, and no back-off is armed"
    elif is_ready and roster.line.requests and worker.waiting_reason == "kv_released":
        assert worker.kv_again_ns is not None or worker.holds_kv, "I8: nobody will wake who waits for KV"
    elif is_ready and roster.line.requests:
        lanes = serving.shape.lanes
        head, _ = choose_head(worker.config, roster.line, roster.clock, roster.active_long, lanes)
        if head is not None:
            assert blocker(serving.ledger, head), f"I8: {head.name} fits and is not admitted"
            assert worker.waiting_reason == blocker(serving.ledger, head), "I8: the reason given is wrong"
            assert serving.ledger.fits_healthy(head.total_tokens), f"I7: fenced lanes keep {head.name} out for good"
