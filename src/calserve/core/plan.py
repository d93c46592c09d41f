"""What the next job is. Pure choosers over the ready sets; only `Turns` advances, for the picks it makes.

Owns: row selection, profile selection, chunk lengths, and when a job is decode, prefill or both. Must not know:
job numbers, banks, generations, time. Everything here is O(lanes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import LogitsWanted, Task
from calserve.core.queues import ReadySets, Turns
from calserve.core.request import PREFILL_QUEUES, Queue, Request
from calserve.core.shape import Shape

# how many times `prefill_chunk_tokens` a step may carry when that starts every waiting prompt; ours
MAX_CHUNKS_BESIDE = 8
# decode jobs a ready row may be passed over before it goes ahead of earlier deadlines; ours: bounds the gap
# between a request's tokens where there are more ready rows than the graph has
MAX_PASSED_OVER = 4


@dataclass(slots=True)
class PlannedRow:
    request: Request
    token_count: int
    logits: LogitsWanted


@dataclass(slots=True)
class Plan:
    """One job before it has a number. decodes: how many of the rows are decodes."""

    graph: GraphProfile
    task: Task
    rows: list[PlannedRow]
    decodes: int

    @property
    def prefill_tokens(self) -> int:
        return sum(row.token_count for row in self.rows[self.decodes :])


@dataclass(frozen=True, slots=True)
class Policy:
    """lane_cap: rows of one tenant while others are ready. step: decode jobs started so far.

    decode_next: a prefill went last, so it is the decodes' turn. decodes_elsewhere: another job in flight
    carries decodes.
    """

    lane_cap: int
    step: int
    decode_next: bool = False
    decodes_elsewhere: bool = False


def plan_job(ready: ReadySets, turns: Turns, shape: Shape, policy: Policy) -> Plan | None:
    """The next job, or None when nothing is ready."""
    decodes = ready.decode
    if not ready.prefills:
        return _plan_decode(ready, shape, policy) if decodes else None
    if not decodes:
        budget = shape.chunk_tokens if policy.decodes_elsewhere else 0
        return _plan_prefill(ready, turns, shape, budget, None)
    if shape.mixed is not None:
        plan = _plan_mixed(ready, turns, shape, shape.mixed, policy)
        if plan is not None:
            return plan
    if policy.decode_next:
        return _plan_decode(ready, shape, policy)
    eligible = [Queue.DECODE, *(queue for queue in PREFILL_QUEUES if ready.prefill[queue])]
    turn = turns.pick(eligible)
    if turn is Queue.DECODE:
        return _plan_decode(ready, shape, policy)
    return _plan_prefill(ready, turns, shape, shape.chunk_tokens, turn)


# --- decode ---------------------------------------------------------------------------------------------


def _is_urgent(request: Request, policy: Policy) -> bool:
    return policy.step - request.ready_at_step >= MAX_PASSED_OVER


def choose_decode_rows(ready: Iterable[Request], limit: int, policy: Policy) -> list[Request]:
    """At most `limit` of `ready`: passed-over ones, then by deadline and virtual finish, capped per tenant.

    The cap yields when rows would stay empty for it.
    """
    candidates = list(ready)
    if len(candidates) <= limit:
        return candidates
    candidates.sort(key=lambda r: (not _is_urgent(r, policy), r.order))
    cap = max(1, policy.lane_cap)
    chosen: list[Request] = []
    over: list[Request] = []
    held: dict[str, int] = {}
    for request in candidates:
        name = request.tenant.name
        if held.get(name, 0) < cap:
            held[name] = held.get(name, 0) + 1
            chosen.append(request)
        else:
            over.append(request)
    return (chosen + over)[:limit]


def choose_profile(ready: list[Request], shape: Shape, policy: Policy) -> GraphProfile:
    """The decode graph with the cheapest expected time per useful row (measured; ties to the smaller).

    A graph that binds rows reaches only lanes below its batch; one that does not reach a passed-over lane is out,
    or the highest lanes would starve behind a cheap small profile. Unmeasured graphs: the smallest that holds
    every ready row.
    """
    if len(shape.decode) == 1:
        return shape.decode[0]
    lanes = [request.lane.index for request in ready if request.lane is not None]
    must = max((r.lane.index for r in ready if r.lane is not None and _is_urgent(r, policy)), default=-1)
    best = shape.decode[-1]
    best_rows = best_ns = 0
    for graph in shape.decode:
        rows = _reached(graph, lanes, must)
        if rows == 0:
            continue
        ns = shape.expected_ns(graph, min(rows, graph.batch), 0)
        if ns == 0:
            if rows == len(lanes) and (best_rows == 0 or best_ns == 0):
                return graph
            continue
        if best_rows == 0 or ns * best_rows < best_ns * rows:  # ns/rows < best, in integers
            best, best_rows, best_ns = graph, rows, ns
    return best


def _reached(graph: GraphProfile, lanes: list[int], must: int) -> int:
    """Ready rows `graph` can carry; 0 when it may not be chosen."""
    if graph.row_binding is RowBinding.FREE:
        return min(len(lanes), graph.batch)
    if must >= graph.batch:
        return 0
    return sum(lane < graph.batch for lane in lanes)


def _plan_decode(ready: ReadySets, shape: Shape, policy: Policy) -> Plan:
    candidates: list[Request] = list(ready.decode.values())
    graph = choose_profile(candidates, shape, policy)
    rows = choose_decode_rows(_within(graph, candidates), shape.rows_of(graph), policy)
    return Plan(graph, Task.DECODE, _decode_rows(graph, rows), len(rows))


def _within(graph: GraphProfile, requests: list[Request]) -> list[Request]:
    """Those whose lane the graph reaches."""
    if graph.row_binding is RowBinding.FREE:
        return requests
    return [r for r in requests if r.lane is not None and r.lane.index < graph.batch]


def _decode_rows(graph: GraphProfile, requests: list[Request]) -> list[PlannedRow]:
    if graph.row_binding is RowBinding.FIXED:
        requests.sort(key=lambda r: r.lane.index if r.lane is not None else 0)
    return [PlannedRow(request, 1, LogitsWanted.LAST) for request in requests]


# --- prefill --------------------------------------------------------------------------------------------


def chunk_length(remaining: int, room: int, min_chunk: int) -> int:
    """Tokens to prefill now, so that neither this chunk nor what is left is below `min_chunk`; 0: not now."""
    if remaining <= room:
        return remaining
    take = min(room, remaining - min_chunk)
    return take if take >= min_chunk else 0


@dataclass(slots=True)
class _Room:
    """What is left in the job being planned. budget 0 means only the graph's own limits."""

    rows: int
    tokens: int
    budget: int
    min_chunk: int
    whole: bool  # prompts may not be cut


def _row_tokens(request: Request, graph: GraphProfile, room: _Room, *, is_first: bool) -> int:
    """Tokens of `request` that fit the room; 0 when none may."""
    if graph.row_binding is RowBinding.FIXED and request.lane is not None and request.lane.index >= graph.batch:
        return 0
    remaining = request.remaining_prompt
    most = min(room.tokens, graph.max_row_tokens, graph.max_tokens - request.committed)
    if room.whole:
        # a whole prompt may exceed the budget, once: it cannot be made smaller
        allowed = remaining <= most and (is_first or remaining <= room.budget)
        return remaining if allowed else 0
    return chunk_length(remaining, min(most, room.budget), room.min_chunk)


def choose_prefill_rows(
    ready: ReadySets, turns: Turns, graph: GraphProfile, room: _Room, first: Queue | None
) -> list[PlannedRow]:
    """Rows from the three queues by weighted round robin until the room is used.

    `first`: the queue whose turn was already drawn. A queue whose head does not fit is left for this job.
    """
    lines = {
        queue: sorted(ready.prefill[queue].values(), key=lambda r: r.order, reverse=True)
        for queue in PREFILL_QUEUES
        if ready.prefill[queue]
    }
    rows: list[PlannedRow] = []
    while room.rows > 0 and room.tokens > 0 and lines:
        fits = {q: _row_tokens(line[-1], graph, room, is_first=not rows) for q, line in lines.items()}
        lines = {queue: line for queue, line in lines.items() if fits[queue]}
        if not lines:
            break
        queue = first if first in lines and not rows else turns.pick(list(lines))
        request = lines[queue].pop()
        if not lines[queue]:
            del lines[queue]
        count = fits[queue]
        is_last = count == request.remaining_prompt
        rows.append(PlannedRow(request, count, LogitsWanted.LAST if is_last else LogitsWanted.NONE))
        room.rows -= 1
        room.tokens -= count
        room.budget = max(0, room.budget - count)
    return rows


def _prefill_graph(shape: Shape, request: Request, budget: int) -> GraphProfile:
    """The graph with the shortest row that takes all that may go now, else the one with the longest row."""
    reach = [
        g
        for g in shape.prefill
        if (g.row_binding is RowBinding.FREE or (request.lane is not None and request.lane.index < g.batch))
        and request.committed < g.max_tokens
    ]
    want = min(request.remaining_prompt, budget or request.remaining_prompt)
    for graph in reach:
        longest = min(graph.max_row_tokens, graph.max_job_tokens, graph.max_tokens - request.committed)
        if longest >= want:
            return graph
    return reach[-1]


def _plan_prefill(ready: ReadySets, turns: Turns, shape: Shape, budget: int, turn: Queue | None) -> Plan | None:
    """A job of prefills only. budget 0: nothing decodes, so the graph's own size is the limit."""
    if turn is None:
        turn = turns.pick([queue for queue in PREFILL_QUEUES if ready.prefill[queue]])
    head = min(ready.prefill[turn].values(), key=lambda r: r.order)
    cut = budget if shape.incremental else 0
    graph = _prefill_graph(shape, head, cut)
    room = _Room(
        rows=shape.rows_of(graph),
        tokens=graph.max_job_tokens,
        budget=cut or graph.max_job_tokens,
        min_chunk=shape.min_chunk,
        whole=not shape.incremental,
    )
    rows = choose_prefill_rows(ready, turns, graph, room, turn)
    return Plan(graph, Task.PREFILL, rows, 0) if rows else None


# --- both -----------------------------------------------------------------------------------------------


def budget_beside(shape: Shape, decodes: int, waiting: int, tokens: int) -> int:
    """Prefill tokens one step may carry beside `decodes` rows while `waiting` prompts, `tokens` in all, are ready.

    A chunk, so that the gap between a row's tokens stays short under a stream of prefills. Once, it may be longer, in
    proportion to those who gain against those who wait: where that one step starts everybody, as in a burst of
    short prompts.
    """
    longer = shape.chunk_tokens * min(MAX_CHUNKS_BESIDE, max(1, waiting // decodes))
    return longer if tokens <= longer else shape.chunk_tokens


def _plan_mixed(ready: ReadySets, turns: Turns, shape: Shape, graph: GraphProfile, policy: Policy) -> Plan | None:
    """Every decode, then prefills beside them; None when no prefill fits."""
    rows = shape.rows_of(graph)
    # one row is kept for a prefill, or full lanes of decodes would shut it out for good
    decodes = choose_decode_rows(ready.decode.values(), rows - 1, policy)
    room = _Room(
        rows=rows - len(decodes),
        tokens=graph.max_job_tokens - len(decodes),
        budget=budget_beside(shape, len(decodes), ready.prefills, ready.prefill_tokens),
        min_chunk=shape.min_chunk,
        whole=not shape.incremental,
    )
    prefills = choose_prefill_rows(ready, turns, graph, room, None)
    if not prefills:
        return None
    planned = _decode_rows(graph, decodes) + prefills
    return Plan(graph, Task.MIXED, planned, len(decodes))
