"""Proofs of two chips: two sessions at once that do not see each other, and that really work at the same time.

Owns: the work of each side and what it is held against (seed 004, sections 9.4 and 13.2). Must not know: boards. Work
is a line of jobs; joint work keeps a job on each chip.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from calserve.accept.conform.agree import Agreement
from calserve.accept.conform.hand import Flying, Hand, Line, Logits, Turn
from calserve.accept.conform.proof import NotConfigured, Outcome, Rig, Verdict, failed, not_supported
from calserve.accept.driver import Stopped
from calserve.accept.evidence import Figure
from calserve.accept.overlap_ratio import overlap_ratio
from calserve.runtime.contract import TraceSpan

# Seed 004, section 13.2.
EFFICIENCY_MIN = 0.80
REPEATS = 5
JOBS = 6
PREFILL_TOKENS = 256
MIXES = (("prefill", "prefill"), ("prefill", "decode"), ("decode", "prefill"), ("decode", "decode"))


@dataclass(slots=True)
class _Side:
    """One chip's sequence and the logits of its jobs when it ran alone."""

    hand: Hand
    kind: str
    line: Line
    ids: list[int]
    expected: Logits

    def fly(self) -> Flying:
        return self.hand.fly(*self.hand.describe([Turn(self.line, self.ids)]))

    def land(self, flying: Flying) -> Logits:
        row = self.hand.land(flying)[0]
        assert row is not None
        return row


def prove_chips(rig: Rig) -> Outcome:
    """Two sessions on two chips, in each of the four mixes of prefill and decode."""
    chips = rig.one_chip_each
    if len(chips) < 2:
        return not_supported("the board was opened with one chip", chips=1)
    agree = rig.agreement()
    figures: dict[str, Figure] = {}
    wrong: list[str] = []
    if said := _without_one_chip(rig):
        return said
    with rig.session("chip0", chips[0]) as first:
        code, session = rig.configure("chip1", chips[1])
        if session is None:
            return not_supported(f"a session beside another on the other chip gave code {code}", code=code)
        second = Hand(session, rig.generation, rig.options.jobs.spend, jobs=1_000_000)
        try:
            with rig.progress.step("Two chips", len(MIXES), "mixes") as step:
                for kinds in MIXES:
                    sides = (_side(rig, first, kinds[0], 1), _side(rig, second, kinds[1], 2))
                    wrong += _measure(rig, sides, agree, figures)
                    step.advance(1)
        finally:
            if code := rig.clear(session):
                wrong.append(f"close of the second session gave code {code}")
    figures |= agree.figures()
    if agree.differing:
        return failed(f"one chip's results change with work on the other: {agree.first}", **figures)
    if wrong:
        return failed("; ".join(wrong), **figures)
    ratio = figures["prefill_prefill_overlap"]
    return Outcome(Verdict.PASSED, f"both chips work at once, each as if alone; overlap ratio {ratio}", figures)


def _without_one_chip(rig: Rig) -> Outcome | None:
    """What is said where a session cannot have a chip to itself."""
    try:
        with rig.session("chip0", rig.one_chip_each[0]):
            return None
    except NotConfigured as refusal:
        return not_supported(f"a session on one chip gave code {refusal.code}", code=refusal.code)


def _side(rig: Rig, hand: Hand, kind: str, salt: int) -> _Side:
    """Its reference is the second of two runs: the first pays for what is done once."""
    line = Line(0)
    if kind == "prefill":
        ids = rig.prompt(min(PREFILL_TOKENS, rig.package.context), salt)
        hand.prefill(line, ids)
        line.length = 0
        expected = hand.prefill(line, ids)
        line.length = 0
        return _Side(hand, kind, line, ids, expected)
    hand.prefill(line, rig.prompt(min(40, rig.package.context - 2), salt))
    ids = rig.prompt(1, salt + 5)
    hand.again([line], ids)
    return _Side(hand, kind, line, ids, hand.again([line], ids)[0])


def _measure(rig: Rig, sides: tuple[_Side, _Side], agree: Agreement, figures: dict[str, Figure]) -> list[str]:
    """Each alone, then both, in turn; what was wrong with their time."""
    clock = rig.options.jobs.clock
    serial_ns: list[int] = []
    joint_ns: list[int] = []
    efficiencies: list[float] = []
    name = f"{sides[0].kind}_{sides[1].kind}"
    spans: tuple[TraceSpan, ...] = ()
    for _ in range(REPEATS):
        alone = [_timed(clock, lambda side=side: _alone(side, agree)) for side in sides]  # type: ignore[misc]
        since = max((span.end_ns for span in rig.board.trace(0)), default=0)
        joint = _timed(clock, lambda: _joint(sides, agree))
        spans = tuple(span for span in rig.board.trace(since) if span.begin_ns >= since)
        serial_ns.append(sum(alone))
        joint_ns.append(joint)
        rates = [JOBS * len(side.ids) / took for side, took in zip(sides, alone, strict=True)]
        efficiencies.append(sum(JOBS * len(side.ids) for side in sides) / joint / sum(rates))
    shared = _shared(spans, (rig.one_chip_each[0][0], rig.one_chip_each[1][0]))
    ratio, efficiency = overlap_ratio(serial_ns, joint_ns), statistics.median(efficiencies)
    figures[f"{name}_overlap"] = round(ratio.mean, 4)
    figures[f"{name}_overlap_low"] = round(ratio.low, 4)
    figures[f"{name}_efficiency"] = round(efficiency, 4)
    figures[f"{name}_trace_shared_ns"] = shared
    for side in sides:
        if side.line.length:
            side.hand.release(side.line)
    if sides[0].kind != sides[1].kind:
        return []  # told, not judged: a mix of long and short work cannot fill both
    wrong = []
    if not shared:
        wrong.append(f"{name}: the trace shows no compute of both chips at once")
    if not ratio.is_proven:
        wrong.append(f"{name}: {ratio.words()}, which may be none")
    if efficiency < EFFICIENCY_MIN:
        wrong.append(f"{name}: throughput efficiency {efficiency:.2f}, bound {EFFICIENCY_MIN}")
    return wrong


def _timed(clock: Callable[[], int], work: Callable[[], None]) -> int:
    before = clock()
    work()
    return max(1, clock() - before)


def _alone(side: _Side, agree: Agreement) -> None:
    for _ in range(JOBS):
        agree.check(f"{side.kind} alone", side.expected, side.land(side.fly()))


def _joint(sides: tuple[_Side, _Side], agree: Agreement) -> None:
    """Each chip gets its next job as soon as it gave its last: the host works for one while the other computes."""
    what = f"a {sides[0].kind} and a {sides[1].kind}"
    flying = [side.fly() for side in sides]
    for number in range(JOBS):
        for at, side in enumerate(sides):
            row = side.land(flying[at])
            if number + 1 < JOBS:
                flying[at] = side.fly()
            agree.check(f"{side.kind} among {what}", side.expected, row)


def _shared(spans: tuple[TraceSpan, ...], chips: tuple[int, int]) -> int:
    """ns in which both chips computed. Every CalCore has a span of its own; a chip computes once."""
    one, other = ({(s.begin_ns, s.end_ns) for s in spans if s.chip == chip and s.phase == "compute"} for chip in chips)
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def prove_siblings(rig: Rig) -> Outcome:
    """What happens to a session while the other chip is configured, refused, reset and unloaded: nothing."""
    chips = rig.one_chip_each
    if len(chips) < 2:
        return not_supported("the board was opened with one chip", chips=1)
    agree = rig.agreement()
    figures: dict[str, Figure] = {}
    if said := _without_one_chip(rig):
        return said
    with rig.session("chip0", chips[0]) as hand:
        line = Line(0)
        hand.prefill(line, rig.prompt(min(20, rig.package.context - 2)))
        before = hand.again([line], [3])[0]
        code, session = rig.configure("chip1", chips[1])
        if session is None:
            agree.check("after a refused configure of the other chip", before, hand.again([line], [3])[0])
            if agree.differing:
                return failed(f"a refused configure changes a session: {agree.first}")
            return not_supported(f"a session on the other chip gave code {code}", configure_code=code)
        try:
            agree.check("after the other chip was configured", before, hand.again([line], [3])[0])
            other = Hand(session, rig.generation, rig.options.jobs.spend, jobs=1_000_000)
            other.prefill(Line(0), rig.prompt(min(20, rig.package.context - 2), 4))
            agree.check("after the other chip used the same lane and units", before, hand.again([line], [3])[0])
            figures["second_configure_code"] = rig.configure("third", chips[1])[0]
            agree.check("after a refused configure", before, hand.again([line], [3])[0])
            figures["order"] = _order(rig, hand, other)
        finally:
            if code := rig.clear(session):
                raise Stopped(f"close of the second session gave code {code}")
        agree.check("after the other chip was unloaded", before, hand.again([line], [3])[0])
    if agree.differing:
        return failed(f"a session changes with what happens on the other chip: {agree.first}", **figures)
    return Outcome(Verdict.PASSED, "a session is not changed by what happens on the other chip", figures)


def _order(rig: Rig, long: Hand, short: Hand) -> str:
    """Whether a short job on one chip waits for a long one on the other that was submitted first."""
    since = max((span.end_ns for span in rig.board.trace(0)), default=0)
    line = Line(1 % long.session.lanes, (), 0)
    ids = rig.prompt(min(1024, rig.package.context - 1), 6)
    first = long.fly(*long.describe([Turn(line, ids)])) if line.lane else None
    second = short.fly(*short.describe([Turn(Line(1 % short.session.lanes), rig.prompt(2, 8))]))
    short.land(second)
    if first is None:
        return "one lane: not looked at"
    long.land(first)
    spans = [span for span in rig.board.trace(since) if span.phase == "compute"]
    ends = {job: max((s.end_ns for s in spans if s.job == job), default=0) for job in (first.spec.job, second.spec.job)}
    is_blocked = ends[second.spec.job] >= ends[first.spec.job]
    return "the short job ended after the long one" if is_blocked else "the short job did not wait for the long one"
