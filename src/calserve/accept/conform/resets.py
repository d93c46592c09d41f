"""Proofs of resets: what each scope ends, what it leaves, and that the board can be used after it.

Owns: what is looked at after a reset. Must not know: boards. Whether KV survived is seen by reading positions that
nobody wrote since: the logits of before mean the memory is as it was. Life of a case: sessions, a job in flight, the
reset, what is left, a new configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.accept.conform.agree import FAST_DISTANCE_MAX, distance
from calserve.accept.conform.hand import Hand, Line, Logits, Turn
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.driver import STEP_TIMEOUT_NS, Stopped
from calserve.accept.evidence import Figure
from calserve.core.commands import ResetScope
from calserve.core.job import Bank
from calserve.runtime.contract import Session
from calserve.runtime.errors import CalCode

# What the contract says of a scope: whether the session it names, and one on another chip, are there afterwards.
STAYS = {
    ResetScope.CCU: (True, True),
    ResetScope.SESSION: (False, True),
    ResetScope.CONFIGURATION: (False, False),
    ResetScope.CHIP: (False, True),
    ResetScope.BOARD: (False, False),
}


def prove_session_reset(rig: Rig) -> Outcome:
    return _Case(rig, ResetScope.SESSION).run()


def prove_chip_reset(rig: Rig) -> Outcome:
    return _Case(rig, ResetScope.CHIP).run()


def prove_scopes(rig: Rig) -> Outcome:
    """Every scope once, for the table of what a reset destroys; that of the board only where it was allowed."""
    figures: dict[str, Figure] = {}
    for scope in ResetScope:
        if scope is ResetScope.BOARD and not rig.options.allow_board_reset:
            figures[scope.value] = "not answerable here: it is run with --board-reset"
            continue
        outcome = _Case(rig, scope).run()
        figures[scope.value] = outcome.sentence
        if outcome.verdict is Verdict.FAILED:
            return failed(f"scope {scope.value}: {outcome.sentence}", **figures)
    return Outcome(Verdict.PASSED, "every scope that is offered leaves a board that works", figures)


@dataclass(slots=True, eq=False)
class _Case:
    """One reset with a job in flight."""

    rig: Rig
    scope: ResetScope
    figures: dict[str, Figure] = field(default_factory=dict)
    open: list[Session] = field(default_factory=list)

    def run(self) -> Outcome:
        with self.rig.progress.step(f"Reset of scope {self.scope.value}"):
            try:
                return self._run()
            finally:
                for session in self.open:
                    self.rig.clear(session)

    def _run(self) -> Outcome:
        rig, agree = self.rig, self.rig.agreement()
        chips = rig.one_chip_each[0]
        hand = self._hand("conform", chips)
        if hand is None:
            chips = rig.options.jobs.chips
            hand = self._hand("conform", chips)
        if hand is None:
            raise Stopped("the board does not configure the package")
        others = [each for each in rig.one_chip_each if not set(each) & set(chips)]
        sibling = self._hand("sibling", others[0]) if others else None
        ids = rig.prompt(min(23, rig.package.context - 4))
        line, beside = Line(0), Line(0)
        expected = hand.prefill(line, ids)
        stale = hand.again([line], [3])[0]
        if sibling is not None:
            sibling.prefill(beside, ids)
        code, ended = self._reset(hand)
        if code == CalCode.NOT_SUPPORTED:
            return not_supported(f"a reset of scope {self.scope.value} gave code {code}", code=code)
        if code:
            return failed(f"the reset gave code {code}", code=code)
        if wrong := ended or self._wrong_reach(hand, sibling):
            return failed(wrong, **self.figures)
        if sibling is not None and STAYS[self.scope][1]:
            agree.check("the session on the other chip", stale, sibling.again([beside], [3])[0])
        if STAYS[self.scope][0]:
            self.figures["kv_survives"] = _is_same(stale, hand.again([line], [3])[0])
        for session in self.open:
            rig.clear(session)
        self.open.clear()
        return self._after(chips, line, (ids, expected, stale))

    def _after(self, chips: tuple[int, ...], held: Line, seen: tuple[list[int], Logits, Logits]) -> Outcome:
        """The next configuration: right tokens, a refusal of the old generation, counters closed."""
        rig, agree = self.rig, self.rig.agreement()
        ids, expected, stale = seen
        old = rig.generation
        again = self._hand("conform", chips)
        if again is None:
            return failed("the board does not configure the package after the reset", **self.figures)
        line = Line(0, held.units, len(ids))
        if not STAYS[self.scope][0] and again.session.lanes > 1:
            self.figures["kv_survives"] = _is_same(stale, again.again([line], [3])[0])
        again.release(line)
        fresh = Line(0)
        agree.check("the prompt after the reset", expected, again.prefill(fresh, ids))
        agree.check("the token after it", stale, again.again([fresh], [3])[0])
        assert rig.generation > old
        left = rig.board.counters().left
        if left:
            return failed(f"{left} jobs are left after the reset", **self.figures)
        return judged(agree, self._told(), self.figures)

    def _told(self) -> str:
        words = {True: "stays", False: "is gone"}
        parts = ["the session " + words[bool(self.figures["session_survives"])]]
        if "sibling_survives" in self.figures:
            parts.append("the other chip's " + words[bool(self.figures["sibling_survives"])])
        if "kv_survives" in self.figures:
            parts.append("KV memory is " + ("as it was" if self.figures["kv_survives"] else "cleared or overwritten"))
        parts.append(f"a job in flight ended with code {self.figures['job_code']}")
        return ", ".join(parts)

    def _hand(self, name: str, chips: tuple[int, ...]) -> Hand | None:
        code, session = self.rig.configure(name, chips)
        if code or session is None:
            return None
        self.open.append(session)
        return Hand(session, self.rig.generation, self.rig.options.jobs.spend, jobs=1_000_000 * len(self.open))

    def _reset(self, hand: Hand) -> tuple[int, str]:
        """Its code, and what is wrong with how the job in flight ended. The job is on a lane nobody reads."""
        line = Line(1 % hand.session.lanes)
        is_alone = line.lane == 0
        size = max(1, self.rig.package.context // 2)
        flying = None if is_alone else hand.fly(*hand.describe([Turn(line, self.rig.prompt(size, 9))]))
        named = None if self.scope in (ResetScope.CONFIGURATION, ResetScope.BOARD) else hand.session.name
        code = int(self.rig.board.reset(self.scope, named))
        self.figures["job_code"] = "none: one lane" if flying is None else 0
        if flying is None:
            return code, ""
        if code:
            hand.land(flying)
            return code, ""
        end, status = hand.session.wait(flying.ticket, STEP_TIMEOUT_NS)
        self.figures["job_code"] = end
        if end == CalCode.TIMEOUT:
            return code, "the job in flight does not end"
        if status is not None and status.ticket != flying.ticket:
            return code, f"the job in flight ends under the name of job {status.ticket.job}"
        if STAYS[self.scope][0]:
            hand.give_back(flying.buffers)
        return code, ""

    def _wrong_reach(self, hand: Hand, sibling: Hand | None) -> str:
        named, other = STAYS[self.scope]
        self.figures["session_survives"] = _is_alive(hand)
        if bool(self.figures["session_survives"]) is not named:
            return f"the session {'is gone' if named else 'is still there'} after a reset of scope {self.scope.value}"
        if sibling is None:
            return ""
        self.figures["sibling_survives"] = _is_alive(sibling)
        if bool(self.figures["sibling_survives"]) is not other:
            said = "is gone" if other else "is still there"
            return f"the session on the other chip {said} after a reset of scope {self.scope.value}"
        return ""


def _is_alive(hand: Hand) -> bool:
    code, buffers = hand.session.allocate(next(iter(hand.session.graphs)), Bank.AUTO)
    return not code and buffers is not None


def _is_same(before: Logits, after: Logits) -> bool:
    return distance(before, after) <= FAST_DISTANCE_MAX
