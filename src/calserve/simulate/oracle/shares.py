"""I9 where sessions share a model: each has a line of its own, and who stood in which is known only afterwards.

Owns: for every session and pair (A, B) how far B was served ahead of A there, over stretches in which A surely had
somebody in that session's line. Must not know: how requests are routed. `fairness` has the bound and why it holds.

A request that began in a session stood in its line until it had a lane there. Of as many requests of A as there are
lanes and one more, not one of them seen on the board, at least one had none: from when the server surely knew of the
last of them until the first of them is seen. Stretches that overlap are one. A tenant that may not have every lane is
not judged: whether it was at its cap is not seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer
from calserve.simulate.oracle.fairness import bound_of, charge_of, least, most
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.world import World

_Account = tuple[dict[str, float], dict[str, float]]  # tenant -> cost per weight of what ended: at least, at most


@dataclass(frozen=True, slots=True)
class _Wait:
    """One request's wait in the line: from, to, and the session's accounts then."""

    from_ns: int
    before: _Account
    to_ns: int
    after: _Account


@dataclass(slots=True)
class _Line:
    """One tenant's in one session. last: the latest ones that began. A stretch was looked at up to to_ns."""

    last: deque[_Wait]
    to_ns: int = -1
    after: _Account = field(default_factory=lambda: ({}, {}))
    ahead: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Shares:
    """Only of models that more than one session serves. Told of every request by the oracle, in the order of time."""

    world: World
    findings: Findings
    _accounts: dict[str, _Account] = field(default_factory=dict)  # by session
    _young: deque[Answer] = field(default_factory=deque)
    _known: dict[str, tuple[int, dict[str, _Account]]] = field(default_factory=dict)  # request -> since, accounts then
    _lines: dict[tuple[str, str], _Line] = field(default_factory=dict)  # (session, tenant)
    _sizes: dict[str, tuple[float, float]] = field(default_factory=dict)  # see `bound_of`, by tenant

    def _is_judged(self, answer: Answer) -> bool:
        world = self.world
        own = world.tenant_max_active.get(answer.request.tenant, 0) or world.lanes_per_session
        copies = list(world.sessions.values()).count(answer.request.model)
        return world.is_fairness_checked and copies > 1 and min(own, world.lane_cap) >= world.lanes_per_session

    def _grow(self, answer: Answer, charge: float, beyond: float) -> None:
        was = self._sizes.get(answer.request.tenant, (0.0, 0.0))
        self._sizes[answer.request.tenant] = max(was[0], charge), max(was[1], beyond)

    def _weight(self, answer: Answer) -> int:
        return max(1, self.world.tenant_weights.get(answer.request.tenant, 1))

    def submitted(self, answer: Answer) -> None:
        if not self._is_judged(answer):
            return
        self._grow(answer, charge_of(self.world, answer) / self._weight(answer), 0.0)
        if len(answer.request.prompt) <= self.world.medium_prefill_max_tokens:
            self._young.append(answer)

    def ended(self, answer: Answer, at_ns: int) -> None:
        """It was on the board, and is told its end."""
        if not self._is_judged(answer):
            return
        self._grow_old(at_ns)  # as things stood before
        weight, tenant = self._weight(answer), answer.request.tenant
        at_least, at_most = self._accounts.setdefault(answer.session, ({}, {}))
        cost = most(self.world, answer)
        at_least[tenant] = at_least.get(tenant, 0.0) + least(answer) / weight
        at_most[tenant] = at_most.get(tenant, 0.0) + cost / weight
        self._grow(answer, 0.0, (cost - charge_of(self.world, answer)) / weight)

    def left_line(self, answer: Answer) -> None:
        """It ended without a lane, so nobody knows in which line it stood."""
        self._known.pop(answer.name, None)

    def started(self, answer: Answer, at_ns: int) -> None:
        """It is seen on the board: it stood in the line of its session until now."""
        self._grow_old(at_ns)
        since = self._known.pop(answer.name, None)
        if since is None or answer.run != 1:
            return
        session, tenant, lanes = answer.session, answer.request.tenant, self.world.lanes_per_session
        line = self._lines.get((session, tenant))
        if line is None:
            line = self._lines[session, tenant] = _Line(deque(maxlen=lanes + 1))
        line.last.append(_Wait(since[0], since[1].get(session, ({}, {})), at_ns, self._now(session)))
        latest, first = max(line.last, key=lambda wait: wait.from_ns), line.last[0]
        if len(line.last) <= lanes or latest.from_ns >= first.to_ns:
            return
        if latest.from_ns > line.to_ns:
            line.after, line.ahead = latest.before, {}
        before, line.to_ns, line.after = line.after, first.to_ns, first.after
        self._compare(session, tenant, line, before)

    def _compare(self, session: str, tenant: str, line: _Line, before: _Account) -> None:
        own = line.after[1].get(tenant, 0.0) - before[1].get(tenant, 0.0)
        for name, served in line.after[0].items():
            if name == tenant:
                continue
            lead = max(0.0, line.ahead.get(name, 0.0) + served - before[0].get(name, 0.0) - own)
            bound = bound_of(self.world.lanes_per_session, self._sizes[tenant], self._sizes[name])
            if lead > bound:
                sentence = (
                    f"until {line.to_ns} tenant {tenant} waited in session {session}, and {name} had {lead:.0f} more "
                    f"cost per weight, beyond {bound:.0f}"
                )
                self.findings.add("I9", line.to_ns, sentence)
                lead = 0.0
            line.ahead[name] = lead

    def _now(self, session: str) -> _Account:
        at_least, at_most = self._accounts.get(session, ({}, {}))
        return dict(at_least), dict(at_most)

    def _grow_old(self, at_ns: int) -> None:
        """Whoever was submitted long enough ago is in a line: the server knows of it."""
        slack_ns = self.world.told_slack_ns
        while self._young and self._young[0].request.submitted_ns <= at_ns - slack_ns:
            answer = self._young.popleft()
            if answer.run == 0 and not answer.has_ended:
                then = {session: self._now(session) for session in self._accounts}
                self._known[answer.name] = answer.request.submitted_ns + slack_ns, then

    def forget(self) -> None:
        """A session does not serve: its line may go elsewhere."""
        self._young.clear()
        self._known.clear()
        self._lines.clear()
