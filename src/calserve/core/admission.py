"""Who may come in, and who is next for a lane.

Owns: the rules of refusal (each with the limit and the value given) and the choice of the head of the line.
Must not know: jobs. Nothing here changes anything.
"""

from __future__ import annotations

from calserve.core.config import SchedulerConfig
from calserve.core.fairness import FairClock, Tenant
from calserve.core.kv import KvLedger
from calserve.core.outcomes import Refusal, RefusalKind
from calserve.core.queues import WaitingLine
from calserve.core.request import Queue, Request
from calserve.core.shape import Shape


def refuse_numbers(prompt_tokens: int, max_new_tokens: int | None) -> Refusal | None:
    """A request that no model could take."""
    if prompt_tokens < 1:
        return Refusal(RefusalKind.INVALID, limit=1, given=prompt_tokens)
    if max_new_tokens is not None and max_new_tokens < 1:
        return Refusal(RefusalKind.INVALID, limit=1, given=max_new_tokens)
    return None


def refuse_size(shape: Shape, prompt_tokens: int, max_new_tokens: int | None) -> Refusal | None:
    """A request that would not fit the empty session; the limit named is the one that binds."""
    total = prompt_tokens + (1 if max_new_tokens is None else max_new_tokens)
    if total > shape.context:
        return Refusal(RefusalKind.TOO_LONG, limit=shape.context, given=total)
    if prompt_tokens > shape.max_prompt:
        return Refusal(RefusalKind.TOO_LONG, limit=shape.max_prompt, given=prompt_tokens)
    if total > shape.kv_tokens:
        return Refusal(RefusalKind.TOO_LARGE_FOR_KV, limit=shape.kv_tokens, given=total)
    return None


def allowed_new_tokens(shape: Shape, prompt_tokens: int, asked: int | None) -> int:
    """Without a number, to the end of the context (or of the KV pool where that is smaller)."""
    return min(shape.context, shape.kv_tokens) - prompt_tokens if asked is None else asked


def refuse_crowd(config: SchedulerConfig, line: WaitingLine, tenant: Tenant, prompt_tokens: int) -> Refusal | None:
    """A line that is full, by requests or by prompt tokens, for everyone or for this tenant."""
    policy = config.tenant(tenant.name)
    checks = (
        (RefusalKind.QUEUE_FULL, config.max_waiting_requests, line.requests + 1),
        (RefusalKind.QUEUE_TOKENS_FULL, config.max_waiting_prompt_tokens, line.prompt_tokens + prompt_tokens),
    )
    for kind, limit, given in checks:
        if given > limit:
            return Refusal(kind, limit, given)
    own = (
        (policy.max_waiting_requests, tenant.waiting + 1),
        (policy.max_waiting_prompt_tokens, tenant.waiting_tokens + prompt_tokens),
    )
    for limit, given in own:
        if 0 < limit < given:
            return Refusal(RefusalKind.TENANT_QUEUE_FULL, limit, given)
    return None


def lane_cap(config: SchedulerConfig, lanes: int) -> int:
    """Lanes one tenant may hold while another has work."""
    return max(1, lanes * config.tenant_lane_share_percent // 100)


def choose_head(
    config: SchedulerConfig, line: WaitingLine, clock: FairClock, active_long: int, lanes: int
) -> tuple[Request | None, str]:
    """The request that gets the next lane, or why nobody does.

    Lowest virtual finish among the lines that are not held by a limit of their own; a tenant at its lane cap goes
    only when no other tenant can. Nobody overtakes the head for lack of room: a large request would starve.
    """
    cap = lane_cap(config, lanes)
    best: tuple[bool, int, int] | None = None
    head: Request | None = None
    reason = ""
    for request in line.heads():
        tenant = request.tenant
        limit = config.tenant(tenant.name).max_active_requests
        if 0 < limit <= tenant.active:
            reason = "tenant_active_limit"
            continue
        if request.queue is Queue.LONG and active_long >= config.max_active_long_prefills:
            reason = "long_prefill_limit"
            continue
        cost = request.estimated_cost(config.decode_cost_weight)
        _, finish = clock.tags(tenant, cost)
        key = (tenant.active >= cap, finish, request.ordinal)
        if best is None or key < best:
            best, head = key, request
    return head, ("" if head is not None else reason)


def blocker(ledger: KvLedger, request: Request) -> str:
    """What the head of the line waits for; "" when it can go."""
    if not ledger.free_lanes:
        return "lanes"
    return "" if ledger.can_reserve(request.total_tokens) else "kv_units"
