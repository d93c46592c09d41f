"""Fair shares: the bound of `core.fairness` against a naive account of what ended, and what a cancel costs."""

import random

import pytest
from core_rig import Rig, paged_facts

from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.events import Cancel, CancelCause
from calserve.core.fairness import SCALE, FairClock

STEPS = 800


class Crowd:
    """Tenants that differ in weight, sizes, how early their answers end, how many wait, and whether they withdraw; a
    board of some lanes that picks by lowest finish. Only `FairClock` is the code under test."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.lanes = r.choice((1, 1, 2, 4, 8))
        self.names = "abc"[: r.choice((2, 3))]
        self.weight = {name: r.choice((1, 2, 3)) for name in self.names}
        self.largest = {name: r.choice((10, 50, 100)) for name in self.names}
        self.spends = {name: r.choice((0.05, 0.3, 1.0)) for name in self.names}
        self.depth = {name: r.choice((1, 3, 4, 30)) for name in self.names}  # 1: now and then nobody waits
        self.withdraws = {name: r.choice((0.0, 0.0, 0.2)) for name in self.names}
        policies = {name: TenantPolicy(weight=self.weight[name]) for name in self.names}
        self.clock = FairClock(SchedulerConfig(tenants=policies))
        self.line: dict[str, list[int]] = {name: [] for name in self.names}
        self.running: list[tuple[str, int]] = []
        self.served = dict.fromkeys(self.names, 0.0)

    def arrive(self, step: int) -> None:
        for name in self.names:
            if self.depth[name] == 1 and step // 97 % 3:
                continue  # away for a while
            while len(self.line[name]) < self.depth[name]:
                tenant = self.clock.tenant(name)
                self.clock.join(tenant)
                tenant.waiting += 1
                self.line[name].append(self.r.randint(1, self.largest[name]))

    def withdraw(self) -> None:
        for name in self.names:
            if len(self.line[name]) > 2 and self.r.random() < self.withdraws[name]:
                self.line[name].pop(self.r.choice((0, -1)))
                self.clock.tenant(name).waiting -= 1

    def admit(self, step: int) -> None:
        while len(self.running) < self.lanes:
            heads = [(self.clock.tags(self.clock.tenant(n), line[0])[1], n) for n, line in self.line.items() if line]
            if not heads:
                return
            name = min(heads)[1]
            cost = self.line[name].pop(0)
            tenant = self.clock.tenant(name)
            tenant.waiting -= 1
            tenant.active += 1
            self.clock.charge(tenant, cost)
            self.running.append((name, cost))
            self.arrive(step)

    def end_one(self) -> None:
        if not self.running:
            return
        name, charged = self.running.pop(self.r.randrange(len(self.running)))
        spent = max(1, int(charged * self.r.uniform(0, self.spends[name])))
        tenant = self.clock.tenant(name)
        tenant.active -= 1
        self.clock.settle(tenant, charged, spent)
        self.served[name] += spent / self.weight[name]


@pytest.mark.parametrize("seed", range(40))
def test_tenant_that_waits_is_passed_by_no_more_than_the_bound(seed: int) -> None:
    """(n + 1) a + n b, in cost per weight, over whatever stretch is worst for it."""
    crowd = Crowd(seed)
    pairs = [(a, b) for a in crowd.names for b in crowd.names if a != b and crowd.depth[a] > 1]
    lowest = dict.fromkeys(pairs, 0.0)
    for step in range(STEPS):
        crowd.arrive(step)
        crowd.withdraw()
        crowd.admit(step)
        crowd.end_one()
        for a, b in pairs:
            lead = crowd.served[b] - crowd.served[a]
            lowest[a, b] = min(lowest[a, b], lead)
            one, other = (crowd.largest[name] / crowd.weight[name] for name in (a, b))
            bound = (crowd.lanes + 1) * one + crowd.lanes * other
            assert lead - lowest[a, b] <= bound + 1e-6, (step, a, b)


def test_cancel_in_the_middle_of_a_step_pays_for_the_step() -> None:
    """The board does it all the same: else who always goes away in its prefill would have the board for nothing."""
    rig = Rig(config=SchedulerConfig(decode_cost_weight=4), facts=paged_facts(lanes=4)).up()
    rig.submit("gone", prompt=30, new=10, tenant="a")
    rig.submit("stays", prompt=8, new=1, tenant="b")
    rig.send(Cancel("gone", CancelCause.CLIENT_GONE))
    tenants = next(iter(rig.engine.supervisor.sessions.values())).worker.roster.clock.tenants
    assert tenants["a"].virtual == 30 * SCALE
