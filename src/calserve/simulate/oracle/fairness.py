"""I9: who waits gets its weighted share, and a tenant at its cap goes last, as far as it can be judged from outside.

Owns: for every pair (A, B) how far B was served ahead of A, in cost per weight, over the stretch in which that is most.
Must not know: virtual times, tags. A stretch lasts while A surely has somebody in the line: while more of its requests
than a session has lanes are seen waiting that were submitted so long ago that the server knows of them. (As many as
there are lanes may have one and not have been seen on the board yet. Ends are heard in the order in which they were
decided.) B need not wait: a tenant that was idle hoards nothing.

What is compared are requests that ended: B's at what they surely cost (prompt, decode rows and their share of unused
rows), A's at the most they can have cost (the stall of their prompt to others, and a job that was still in flight).

The bound, from the rule of start and finish tags. Let v be a tenant's virtual time, a and b the largest charge of a
request per weight, n the lanes. What a tenant was served by requests that ended is v less the charges of its running
ones.
- B is charged only where its finish is not after that of A's first in line, so then v_B <= v_A + a; and A has at most
  n - 1 running, for which v_A may come back: B is at most n a ahead.
- What B may make good is how far A was ahead when the stretch began: as much the other way round, n b, where B was
  waiting too. Where B joins later, it does at the last start tag or above: a + (n - 1) b.
- A charge is what was asked for. What was spent beyond it (e: unused rows, a stall) comes on top, for what runs at
  either end of the stretch: n e_a + n e_b.
So (n + 1) a + n b + n (e_a + e_b). Where A is held to less than all lanes, by the cap or by a limit of its own, others
go ahead without end while it is there: only stretches count in which nothing of A is seen on a lane. It may have lanes
already whose first job has not been seen: one more turnover of the lanes, n b.

The cap: a tenant gets no lane beyond it while another one that is below its own waits. With k lanes seen in use by B,
nobody else can have more than n - k. All of B's requests there got their lanes between the last one's submit and now,
so if A surely waited all that time and n - k is below what A may have, the last of them broke the cap. That each of
them had its lane still, though its end may be on its way to the client, is shown by a job that it has afterwards.

Sessions that share a model are judged by `shares`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.world import World


def least(answer: Answer) -> int:
    """What a request that ended surely cost of late: what it paid before it started over may have been long ago."""
    return answer.paid if answer.run == 1 else 0


def most(world: World, answer: Answer) -> int:
    """What it cost at most: every beginning stalled others by its prompt; a job in flight is a row of it, too."""
    prompt = len(answer.request.prompt)
    row = world.decode_cost_weight * max(world.graph_rows.values(), default=1)
    return answer.paid + prompt * max(1, answer.run) + (2 * prompt + row if answer.job else 0)


def charge_of(world: World, answer: Answer) -> int:
    return len(answer.request.prompt) + world.decode_cost_weight * answer.request.max_new_tokens


def bound_of(lanes: int, one: tuple[float, float], other: tuple[float, float]) -> float:
    """How far `other` may be ahead of `one`; each (largest charge, most beyond a charge), per weight."""
    return (lanes + 1) * one[0] + lanes * other[0] + lanes * (one[1] + other[1])


@dataclass(slots=True)
class _Suspects:
    """those: answers, each with as many committed tokens as only a job gives that was submitted later."""

    those: list[tuple[Answer, int]]
    sentence: str


@dataclass(slots=True)
class _Payer:
    """One tenant at one model. charge, beyond: largest of a request, per weight. young: submitted of late. known: names
    of those surely in the line. since_ns: since when `known` are more than the lanes. running: those seen on a
    lane. ahead: of others, by their name. suspects: what would break the cap, if all of them had their lanes."""

    weight: int
    limit: int
    charge: float = 0.0
    beyond: float = 0.0
    young: deque[Answer] = field(default_factory=deque)
    known: set[str] = field(default_factory=set)
    since_ns: int | None = None
    running: dict[str, Answer] = field(default_factory=dict)
    ahead: dict[str, float] = field(default_factory=dict)
    suspects: _Suspects | None = None

    @property
    def sizes(self) -> tuple[float, float]:
        return self.charge, self.beyond


@dataclass(slots=True)
class Fairness:
    """Invariants: `ahead[b]` of payer a is at least 0, and nothing is in it unless a surely waits."""

    world: World
    findings: Findings
    _payers: dict[str, dict[str, _Payer]] = field(default_factory=dict)

    def _payer(self, answer: Answer) -> _Payer:
        payers = self._payers.setdefault(answer.request.model, {})
        tenant = answer.request.tenant
        found = payers.get(tenant)
        if found is None:
            world = self.world
            own = world.tenant_max_active.get(tenant, 0) or world.lanes_per_session
            found = payers[tenant] = _Payer(max(1, world.tenant_weights.get(tenant, 1)), min(own, world.lane_cap))
        return found

    def _is_judged(self, model: str) -> bool:
        return self.world.is_fairness_checked and list(self.world.sessions.values()).count(model) == 1

    def submitted(self, answer: Answer) -> None:
        if not self._is_judged(answer.request.model):
            return
        payer = self._payer(answer)
        payer.charge = max(payer.charge, charge_of(self.world, answer) / payer.weight)
        if len(answer.request.prompt) <= self.world.medium_prefill_max_tokens:
            payer.young.append(answer)

    def started(self, answer: Answer, at_ns: int) -> None:
        """It is seen on the board, and still counts in its line: it was waiting until now."""
        if not self._is_judged(answer.request.model):
            return
        payer = self._payer(answer)
        payer.running[answer.name] = answer
        self._confirm(payer, at_ns)
        self._suspect(answer, payer, at_ns)
        if payer.limit < self.world.lanes_per_session:
            payer.ahead.clear()

    def left_line(self, answer: Answer, at_ns: int) -> None:
        """Its tenant has one request less waiting: its backlog may be over."""
        if self._is_judged(answer.request.model):
            payer = self._payer(answer)
            self._grow_old(payer, at_ns)
            payer.known.discard(answer.name)
            self._end_if_short(payer)

    def stopped(self, answer: Answer, at_ns: int, *, is_end: bool) -> None:
        """It is on the board no more: at its end, or to start over."""
        if not self._is_judged(answer.request.model):
            return
        payer = self._payer(answer)
        self._confirm(payer, at_ns)
        payer.running.pop(answer.name, None)
        if not is_end:
            return
        cost = most(self.world, answer)
        payer.beyond = max(payer.beyond, (cost - charge_of(self.world, answer)) / payer.weight)
        share = cost / payer.weight
        payer.ahead = {name: lead - share for name, lead in payer.ahead.items() if lead > share}
        self._was_served(answer, payer, at_ns)

    def _was_served(self, answer: Answer, payer: _Payer, at_ns: int) -> None:
        tenant, lanes = answer.request.tenant, self.world.lanes_per_session
        for name, other in self._payers[answer.request.model].items():
            if other is payer or not self._surely_waits(other, at_ns):
                continue
            is_held = other.limit < lanes
            if is_held and other.running:
                continue
            lead = other.ahead.get(tenant, 0.0) + least(answer) / payer.weight
            bound = bound_of(lanes, other.sizes, payer.sizes) + (lanes * payer.charge if is_held else 0.0)
            if lead > bound:
                self.findings.add(
                    "I9",
                    at_ns,
                    f"tenant {name} waited, and {tenant} had {lead:.0f} more cost per weight, beyond {bound:.0f}; "
                    f"the last was {answer.name}",
                )
                lead = 0.0
            other.ahead[tenant] = lead

    # --- the cap ----------------------------------------------------------------------------------------

    def _suspect(self, answer: Answer, payer: _Payer, at_ns: int) -> None:
        lanes, held = self.world.lanes_per_session, len(payer.running)
        if held <= self.world.lane_cap or payer.suspects is not None:
            return
        since_ns = max(each.request.submitted_ns for each in payer.running.values())
        for name, other in self._payers[answer.request.model].items():
            if other is payer or lanes - held >= other.limit or not self._surely_waits(other, at_ns):
                continue
            if other.since_ns is not None and other.since_ns <= since_ns:
                those = [(each, each.committed + 1 + bool(each.job)) for each in payer.running.values()]
                sentence = (
                    f"tenant {answer.request.tenant} had {held} lanes when {answer.name} began at {at_ns}, and may "
                    f"have {self.world.lane_cap} while {name} waits"
                )
                payer.suspects = _Suspects([one for one in those if one[0] is not answer], sentence)
                return

    def _confirm(self, payer: _Payer, at_ns: int) -> None:
        suspects = payer.suspects
        if suspects is None:
            return
        suspects.those = [(each, due) for each, due in suspects.those if each.committed < due]
        if not suspects.those:
            self.findings.add("I9", at_ns, suspects.sentence)
            payer.suspects = None
        elif any(each.has_ended for each, _ in suspects.those):
            payer.suspects = None

    # --- who surely waits -------------------------------------------------------------------------------

    def _surely_waits(self, payer: _Payer, at_ns: int) -> bool:
        self._grow_old(payer, at_ns)
        return payer.since_ns is not None

    def _grow_old(self, payer: _Payer, at_ns: int) -> None:
        """Whoever was submitted long enough ago and is not seen on the board is in the line: the server knows of it."""
        young, slack_ns = payer.young, self.world.told_slack_ns
        while young and young[0].request.submitted_ns <= at_ns - slack_ns:
            answer = young.popleft()
            if answer.run == 0 and not answer.has_ended:
                payer.known.add(answer.name)
                if payer.since_ns is None and len(payer.known) > self.world.lanes_per_session:
                    payer.since_ns = answer.request.submitted_ns + slack_ns

    def _end_if_short(self, payer: _Payer) -> None:
        if len(payer.known) <= self.world.lanes_per_session:
            payer.since_ns = None
            payer.ahead.clear()

    def forget(self, model: str) -> None:
        """A session of the model does not serve: who waits where is not known any more."""
        for payer in self._payers.get(model, {}).values():
            payer.suspects = None
            payer.young.clear()
            payer.known.clear()
            self._end_if_short(payer)
