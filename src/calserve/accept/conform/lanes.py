"""Proofs of rows: lanes with holes, lanes nobody uses, profiles, prefills beside decodes, two sequences in turn.

Owns: which sets of lanes are tried. Must not know: boards. A row's reference is the same step of its sequence alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.accept.conform.agree import Agreement
from calserve.accept.conform.hand import Hand, Line, Logits, Turn, best
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.evidence import Figure
from calserve.core.job import Task

MATE_LENGTHS = (5, 33, 2, 17, 31, 64, 9, 21)
TARGET_LENGTH = 21
ALTERNATING_TOKENS = 32
CHUNKS = (2, 16, 17, 40)


@dataclass(slots=True)
class _Filled:
    """A sequence in every lane, its next token, and the logits of that step alone."""

    lines: list[Line]
    tokens: list[int]
    alone: list[Logits]


def _fill(rig: Rig, hand: Hand, rows: int) -> _Filled:
    lines = [Line(lane) for lane in range(rows)]
    tokens = rig.prompt(rows, 100)
    alone = []
    for line, token in zip(lines, tokens, strict=True):
        # Right after its own prompt: what a later job does to the lane must not be in the reference.
        hand.prefill(line, rig.prompt(_mate_length(rig, line.lane), 10 + line.lane))
        alone.append(hand.again([line], [token])[0])
    return _Filled(lines, tokens, alone)


def _mate_length(rig: Rig, lane: int) -> int:
    return min(MATE_LENGTHS[lane % len(MATE_LENGTHS)], rig.package.context - 2)


def prove_lanes(rig: Rig) -> Outcome:
    """Every set of lanes against each of its lanes alone; and one prompt in every lane against the first."""
    agree = rig.agreement()
    with rig.session() as hand:
        rows = hand.rows_max
        if rows < 2:
            return not_supported("no graph decodes two rows", rows=rows)
        filled = _fill(rig, hand, rows)
        sets = lane_sets(rows)
        with rig.progress.step("Lanes in every position", len(sets) + rows, "jobs") as step:
            for lanes in sets:
                _check_set(hand, agree, filled, lanes)
                step.advance(1)
            first: Logits | None = None
            for line in filled.lines:
                hand.release(line)
                hand.prefill(line, rig.prompt(min(TARGET_LENGTH, rig.package.context - 2)))
                seen = hand.again([line], [filled.tokens[0]])[0]
                first = seen if first is None else first
                agree.check(f"one prompt in lane {line.lane}", first, seen)
                step.advance(1)
    figures: dict[str, Figure] = {"lanes": rows, "sets": len(sets)}
    return judged(agree, f"lanes 1 to {rows} in {len(sets)} sets with holes equal each alone", figures)


def lane_sets(rows: int) -> list[tuple[int, ...]]:
    """1..B lanes from the first, all but each one, every second, the two ends, the last, the upper half."""
    every = tuple(range(rows))
    sets = [every[:count] for count in range(1, rows + 1)]
    sets += [tuple(lane for lane in every if lane != hole) for hole in every]
    sets += [every[::2], every[1::2], (0, rows - 1), (rows - 1,), every[rows // 2 :]]
    return [lanes for at, lanes in enumerate(sets) if lanes and lanes not in sets[:at]]


def _check_set(hand: Hand, agree: Agreement, filled: _Filled, lanes: tuple[int, ...]) -> None:
    """The rows in order of their lanes, and where any row will do also turned: a full job until every lane was in
    every row, another by one."""
    turns = 0 if not hand.has_free_rows else len(lanes) - 1 if len(lanes) == len(filled.lines) else 1
    orders = [(*lanes[by:], *lanes[:by]) for by in range(min(turns, len(lanes) - 1) + 1)]
    for order in orders:
        seen = hand.again([filled.lines[lane] for lane in order], [filled.tokens[lane] for lane in order])
        for lane, row in zip(order, seen, strict=True):
            agree.check(f"lane {lane} of lanes {order}", filled.alone[lane], row)


def prove_inactive(rig: Rig) -> Outcome:
    """A lane that holds KV and is not in the job keeps it: jobs of the others, then its own next step."""
    agree = rig.agreement()
    with rig.session() as hand:
        rows = hand.rows_max
        if rows < 2:
            return not_supported("no graph decodes two rows, so none has an inactive one", rows=rows)
        filled = _fill(rig, hand, rows)
        holes = sorted({0, 1, rows // 2, rows - 1})
        for hole in holes:
            others = [lane for lane in range(rows) if lane != hole]
            for lanes in (others, others[-1:], others[:1]):
                hand.again([filled.lines[lane] for lane in lanes], [filled.tokens[lane] for lane in lanes])
            seen = hand.again([filled.lines[hole]], [filled.tokens[hole]])[0]
            agree.check(f"lane {hole} after jobs without it", filled.alone[hole], seen)
        # A lane nobody holds must not matter either: its memory is the next holder's.
        ids = rig.prompt(min(TARGET_LENGTH, rig.package.context - 2), 7)
        last = filled.lines[-1]
        hand.release(last)
        fresh = hand.prefill(last, ids)
        hand.release(last)
        hand.again(filled.lines[:-1], filled.tokens[:-1])
        agree.check("a prompt after jobs beside its empty lane", fresh, hand.prefill(last, ids))
    policies = {g.inactive_lane_policy.value for g in hand.session.graphs.values() if g.inactive_lane_policy}
    figures: dict[str, Figure] = {"lanes": rows, "policy": ", ".join(sorted(policies))}
    return judged(agree, f"lanes {holes} keep their KV while the others decode", figures)


def prove_profiles(rig: Rig) -> Outcome:
    """One sequence decoded by every profile in turn, on one configuration, against itself alone."""
    agree = rig.agreement()
    profiles = [count for count in rig.package.profiles if count <= rig.package.max_lanes]
    if len(profiles) < 2:
        return not_supported("the package has one profile, so none stays beside another", profiles=str(profiles))
    with rig.session() as hand:
        if hand.rows_max < profiles[-1]:
            return not_supported(f"no graph decodes {profiles[-1]} rows", rows=hand.rows_max)
        target, ids = Line(0), rig.prompt(min(TARGET_LENGTH, rig.package.context - 3 * len(profiles) - 2))
        rounds = profiles + profiles[::-1]
        logits = hand.prefill(target, ids)
        alone = [logits, *_alone(hand, target, best(logits), len(rounds))]
        hand.release(target)
        logits = hand.prefill(target, ids)
        mates = [Line(lane) for lane in range(1, profiles[-1])]
        for mate in mates:
            hand.prefill(mate, rig.prompt(_mate_length(rig, mate.lane), 10 + mate.lane))
        for at, count in enumerate(rounds):
            beside = mates[: count - 1]
            seen = hand.decode([target, *beside], [best(alone[at]), *rig.prompt(len(beside), 50)])
            for mate in beside:
                mate.length -= 1
            agree.check(f"step {at} by profile B{count}", alone[at + 1], seen[0])
    done = ", ".join(f"B{count}" for count in profiles)
    return judged(agree, f"profiles {done} on one configuration read each other's KV", {"profiles": done})


def _alone(hand: Hand, line: Line, token: int, steps: int) -> list[Logits]:
    rows = []
    for _ in range(steps):
        rows.append(hand.decode([line], [token])[0])
        token = best(rows[-1])
    return rows


def prove_mixed(rig: Rig) -> Outcome:
    """A prefill beside decodes, also as a second piece: every row against itself alone, in either order."""
    agree = rig.agreement()
    with rig.session() as hand:
        if not any(Task.MIXED in graph.profile.tasks for graph in hand.session.graphs.values()):
            return not_supported("no graph takes prefills and decodes in one job")
        if hand.session.lanes < 2:
            return not_supported("the session has one lane, so nothing can be beside another")
        decodes = [Line(lane) for lane in range(min(3, hand.session.lanes - 1))]
        tokens, alone = rig.prompt(len(decodes), 100), []
        for line, token in zip(decodes, tokens, strict=True):
            hand.prefill(line, rig.prompt(_mate_length(rig, line.lane), 10 + line.lane))
            alone.append(hand.again([line], [token])[0])
        second = Line(hand.session.lanes - 1)
        sizes = [max(size, hand.least_piece) for size in CHUNKS if size < rig.package.context // 2]
        for size in sizes:
            for before in (0, max(4, hand.least_piece)):
                ids = rig.prompt(before + size, 3)
                pieces = [before, size] if before else []
                expected = hand.prefill(second, ids, pieces)
                hand.release(second)
                for prefill_first in (False, True):
                    if before:
                        hand.prefill(second, ids[:before])
                    turns = [Turn(line, [token]) for line, token in zip(decodes, tokens, strict=True)]
                    chunk = Turn(second, ids[before:])
                    order = [chunk, *turns] if prefill_first else [*turns, chunk]
                    rows = dict(zip((turn.line.lane for turn in order), hand.step(order), strict=True))
                    _check_mixed(agree, rows, (second.lane, expected), alone, f"prefill of {size} after {before}")
                    for line in decodes:
                        line.length -= 1
                    hand.release(second)
    return judged(agree, f"prefills of {sizes} tokens beside {len(decodes)} decodes equal each alone")


def _check_mixed(
    agree: Agreement, rows: dict[int, Logits | None], prefilled: tuple[int, Logits], alone: list[Logits], what: str
) -> None:
    for lane, expected in ((prefilled[0], prefilled[1]), *enumerate(alone)):
        seen = rows[lane]
        assert seen is not None
        agree.check(f"{what}, lane {lane}", expected, seen)


def prove_alternating(rig: Rig) -> Outcome:
    """Two sequences in turn, job by job, against each alone; where there is one lane, that a second is refused."""
    agree = rig.agreement()
    count = min(ALTERNATING_TOKENS, rig.package.context // 2 - 1)
    prompts = [rig.prompt(min(length, rig.package.context - count - 1), length) for length in (12, 35)]
    with rig.session() as hand:
        if hand.session.lanes < 2:
            code = hand.session.kv.apply(1, (1,), 1)
            if not code:
                return failed("the session has one lane and its mirror takes a second sequence")
            return Outcome(Verdict.PASSED, f"one lane; a second sequence is refused with code {code}", {"code": code})
        alone = []
        for ids in prompts:
            line = Line(0)
            logits = hand.prefill(line, ids)
            alone.append([logits, *_alone(hand, line, best(logits), count)])
            hand.release(line)
        lines = [Line(0), Line(1)]
        for line, ids, expected in zip(lines, prompts, alone, strict=True):
            agree.check("prompt beside another", expected[0], hand.prefill(line, ids))
        for at in range(count):
            for line, expected in zip(lines, alone, strict=True):
                seen = hand.decode([line], [best(expected[at])])[0]
                agree.check(f"token {at} of lane {line.lane}", expected[at + 1], seen)
    return judged(agree, f"two sequences in turn for {count} tokens equal each alone", {"tokens": count})


def prove_reuse(rig: Rig) -> Outcome:
    """A lane and its units after another sequence give what fresh ones give."""
    agree = rig.agreement()
    context = rig.package.context
    with rig.session() as hand:
        line, ids = Line(0), rig.prompt(min(9, context - 2), 1)
        fresh = hand.prefill(line, ids)
        after = hand.decode([line], [5])[0]
        hand.release(line)
        hand.prefill(line, rig.prompt(min(100, context), 2))
        hand.release(line)
        agree.check("the prompt", fresh, hand.prefill(line, ids))
        agree.check("the token after it", after, hand.decode([line], [5])[0])
    return judged(agree, "a released lane and its units are as new")
