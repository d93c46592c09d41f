"""Weighted fair queueing in integer virtual time (seed 002, section 5.3).

Owns: each tenant's virtual time and the global one. Must not know: lanes, jobs, or what a cost is made of.

A request's tags are worked out when it is at the head of its tenant's line, not when it arrives:
`start = max(tenant, global at arrival)`, `finish = start + cost / weight`. So a settlement of an earlier request
moves everything its tenant has queued, and a tenant that was idle starts at the global time: it can hoard nothing.

Bound (I9): while two tenants are both backlogged, what they were charged per weight differs by at most one
largest request of each, `max_cost/w1 + max_cost/w2`.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.core.config import SchedulerConfig

# virtual units per unit of cost at weight 1: keeps cost/weight exact to a millionth without fractions
SCALE = 1_000_000


@dataclass(slots=True, eq=False)
class Tenant:
    """One payer. Counts are requests; `virtual` is the finish tag of the last request charged."""

    name: str
    weight: int
    virtual: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    active: int = 0  # admitted, each holding a lane

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.active)


class FairClock:
    """Invariants: `virtual` never goes back; an idle tenant at or before it is forgotten."""

    __slots__ = ("_config", "tenants", "virtual")

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.virtual = 0
        self.tenants: dict[str, Tenant] = {}

    def tenant(self, name: str) -> Tenant:
        found = self.tenants.get(name)
        if found is None:
            weight = max(1, self._config.tenant(name).weight)
            found = self.tenants[name] = Tenant(name, weight)
        return found

    def tags(self, tenant: Tenant, arrival: int, cost: int) -> tuple[int, int]:
        """(start, finish) a request of `cost` that arrived at virtual time `arrival` would get now."""
        start = max(tenant.virtual, arrival)
        return start, start + cost * SCALE // tenant.weight

    def charge(self, tenant: Tenant, arrival: int, cost: int) -> int:
        """Admit it: the tenant pays `cost` in advance. Returns the finish tag."""
        start, finish = self.tags(tenant, arrival, cost)
        tenant.virtual = finish
        self.virtual = max(self.virtual, start)
        return finish

    def settle(self, tenant: Tenant, charged: int, spent: int) -> None:
        """Correct a charge to what was really spent: more, or less after an early end."""
        tenant.virtual += (spent - charged) * SCALE // tenant.weight

    def forget_if_idle(self, tenant: Tenant) -> None:
        if tenant.is_idle and tenant.virtual <= self.virtual:
            self.tenants.pop(tenant.name, None)
