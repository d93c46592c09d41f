"""Proofs of prompts and lengths: one shot, in pieces, up to the last position and not beyond, and goldens.

Owns: the lengths of issue and seed, and how a prompt is cut. Must not know: boards.
"""

from __future__ import annotations

from calserve.accept.conform.hand import Declined, Hand, Line, Turn
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.evidence import Figure
from calserve.core.job import LogitsWanted
from calserve.core.outcomes import Failure
from calserve.executor.awaiting import drive
from calserve.executor.warmup import WarmAside, WarmTimes, warm_session

LENGTHS = (1, 2, 15, 16, 17, 127, 128, 1024, 4095, 4096)
# Greedy tokens compared after each prompt: what a wrong KV would change is read by every later step.
FOLLOWING = 4
PIECES = (16, 128)


def lengths_of(context: int) -> list[int]:
    """The lengths of the issue that a context has room for, its last two included."""
    return sorted({length for length in (*LENGTHS, context - 1, context) if 1 <= length <= context})


def prove_goldens(rig: Rig) -> Outcome:
    """The very warm-up a server does before a generation is Ready: each golden teacher-forced, then step times."""
    if not rig.package.goldens:
        return Outcome(Verdict.NOT_RUN, "the package has no goldens")
    with rig.session() as hand:
        times, aside = WarmTimes(rig.options.jobs.clock), WarmAside([])
        end = drive(warm_session(hand.session, rig.package, rig.generation, times, aside))
    if isinstance(end, Failure):
        return failed(f"{end.stage} gave code {end.code}: {end.detail}")
    steps = sum(len(golden.output_ids) for golden in rig.package.goldens)
    figures: dict[str, Figure] = {"goldens": len(rig.package.goldens), "steps": steps}
    for each in end:
        figures |= {f"{each.graph}_b{lanes}_ns": ns for lanes, ns in each.decode_ns}
    return Outcome(Verdict.PASSED, f"{steps} golden steps, each the recorded token", figures)


def prove_lengths(rig: Rig) -> Outcome:
    """A prompt in one job, against the same prompt less its last token and a decode of that token."""
    agree = rig.loose()
    lengths = lengths_of(rig.package.context)
    with rig.session() as hand, rig.progress.step("Prompts in one job", len(lengths), "lengths") as step:
        line = Line(0)
        for length in lengths:
            ids = rig.prompt(length)
            whole = hand.prefill(line, ids)
            hand.release(line)
            if length == 1:
                other = hand.prefill(line, ids)
            else:
                hand.prefill(line, ids[:-1])
                other = hand.decode([line], ids[-1:])[0]
            hand.release(line)
            agree.check(f"prompt of {length}", whole, other)
            step.advance(1)
    done = " ".join(map(str, lengths))
    return judged(agree, f"prompts of {done} tokens equal prefill and decode of the last", {"lengths": done})


def prove_limit(rig: Rig) -> Outcome:
    """The last position is used, and none beyond it: refused by the host's check, by the mirror, or by both."""
    context = rig.package.context
    with rig.session() as hand:
        line = Line(0)
        hand.prefill(line, rig.prompt(context - 1))
        hand.decode([line], rig.prompt(1, 5))
        held = line.units
        refusals: dict[str, Figure] = {"context": context}
        for name, turn in (
            ("decode", Turn(line, rig.prompt(1, 6))),
            ("prefill", Turn(Line(0, held), rig.prompt(context + 1))),
        ):
            try:
                hand.step([turn])
            except Declined as refusal:
                refusals[f"{name}_code"] = refusal.code
                refusals[f"{name}_said"] = str(refusal)
                continue
            return failed(f"a {name} of position {context} was accepted, and the context has {context}")
        code = hand.session.kv.apply(line.lane, held, context + 1)
        refusals["mirror_code"] = code
        hand.release(line)
    if not code:
        return failed(f"the mirror takes {context + 1} tokens in a lane of {context}", **refusals)
    return Outcome(Verdict.PASSED, f"position {context - 1} is used and {context} is refused", refusals)


def prove_incremental(rig: Rig) -> Outcome:
    """A prompt in pieces of each kind against the same prompt in one job: its logits, and the greedy tokens after."""
    agree = rig.agreement()
    lengths = lengths_of(rig.package.context)
    cuts = 0
    with rig.session() as hand, rig.progress.step("Prompts in pieces", len(lengths), "lengths") as step:
        if (said := _refused_pieces(rig, hand)) is not None:
            return said
        for length in lengths:
            ids, line = rig.prompt(length), Line(0)
            room = min(FOLLOWING, rig.package.context - length + 1)
            whole = hand.prefill(line, ids)
            after = hand.greedy(line, whole, room)
            hand.release(line)
            for pieces in cuts_of(length, hand.least_piece):
                seen = hand.prefill(line, ids, pieces)
                what = f"prompt of {length} in {len(pieces)} pieces"
                agree.check(what, whole, seen)
                agree.check_tokens(what, after, hand.greedy(line, seen, room))
                hand.release(line)
                cuts += 1
            step.advance(1)
    done = " ".join(map(str, lengths))
    return judged(agree, f"{cuts} ways of cutting prompts of {done} tokens equal one job", {"cuts": cuts})


def _refused_pieces(rig: Rig, hand: Hand) -> Outcome | None:
    """What a board says that takes no second piece; None where it takes one."""
    line, size = Line(0), max(4, hand.least_piece)
    hand.step([Turn(line, rig.prompt(size), LogitsWanted.NONE)])
    try:
        hand.step([Turn(line, rig.prompt(size, 1))])
    except Declined as refusal:
        hand.release(line)
        return not_supported(f"the second piece of a prompt is refused: {refusal}", code=refusal.code)
    hand.release(line)
    return None


def cuts_of(length: int, least: int) -> list[list[int]]:
    """Halves, pieces of each size, and all but the fewest; none where a prompt is too short to be cut."""
    if length < 2 * least:
        return []
    wanted = [_cut(length, -(-length // 2), least), [length - least, least]]
    wanted += [_cut(length, size, least) for size in PIECES if least <= size < length]
    return [cut for at, cut in enumerate(wanted) if cut not in wanted[:at]]


def _cut(length: int, size: int, least: int) -> list[int]:
    """Pieces of `size`; a rest below `least` borrows from the piece before it."""
    pieces = [size] * (length // size) + ([length % size] if length % size else [])
    if len(pieces) > 1 and pieces[-1] < least:
        lent = least - pieces[-1]
        pieces[-2:] = [pieces[-2] - lent, least]
    return pieces
