"""Weighted fair queueing in integer virtual time (seed 002, section 5.3).

Owns: each tenant's virtual time and the global one. Must not know: lanes, jobs, or what a cost is made of.

A request's tags are worked out when it is at the head of its tenant's line, not when it arrives: it starts at its
tenant's virtual time and finishes `cost / weight` later. A tenant that had nobody waiting joins at the global time,
`max(tenant, global)`: it can hoard nothing but refunds for what it has running. One that has somebody waiting is never
moved to the global time, which runs ahead by what is charged and not spent yet: a tenant whose answers end early would
lose the difference with every one of them.

Bound (I9): while A has somebody waiting whom no limit of its own holds, any B gets at most `(n + 1) a + n b` ahead of
it, in cost per weight of requests that ended. n: lanes; a, b: the largest cost of one request per weight, charged or
spent. For one lane without early ends it is the bound of a fair queue, one largest request of each. Why: let v be a
tenant's virtual time. What it was served is v less what its running requests were charged.
- B is charged only where its finish is not after A's, so then v_B <= v_A + a. A has at most n - 1 requests running, the
  refunds for which bring v_A back later: B is at most n a ahead.
- Where the stretch begins with B waiting, the same holds the other way round: A is at most n b ahead, which B may make
  good. Where B joins within it, it does so at the last start of A or later, so v_A <= v_B + a, and at most n - 1
  requests of B run that are not counted yet: a + (n - 1) b.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.core.config import SchedulerConfig

# virtual units per unit of cost at weight 1: keeps cost/weight exact to a millionth without fractions
SCALE = 1_000_000


@dataclass(slots=True, eq=False)
class Tenant:
    """One payer. Counts are requests; `virtual` is the finish tag of the last request charged, with what was settled
    since."""

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

    def join(self, tenant: Tenant) -> None:
        """Somebody of it is about to wait. Where nobody did, it had its chance of what was served meanwhile."""
        if not tenant.waiting:
            tenant.virtual = max(tenant.virtual, self.virtual)

    def tags(self, tenant: Tenant, cost: int) -> tuple[int, int]:
        """(start, finish) a request of `cost` would get now."""
        start = tenant.virtual
        return start, start + cost * SCALE // tenant.weight

    def charge(self, tenant: Tenant, cost: int) -> int:
        """Admit it: the tenant pays `cost` in advance. Returns the finish tag."""
        start, finish = self.tags(tenant, cost)
        tenant.virtual = finish
        self.virtual = max(self.virtual, start)
        return finish

    def settle(self, tenant: Tenant, charged: int, spent: int) -> None:
        """Correct a charge to what was really spent: more, or less after an early end."""
        tenant.virtual += (spent - charged) * SCALE // tenant.weight

    def forget_if_idle(self, tenant: Tenant) -> None:
        if tenant.is_idle and tenant.virtual <= self.virtual:
            self.tenants.pop(tenant.name, None)
