"""Proofs of KV operations, as far as the contract can ask for them: share and trim by the mirror; the rest has no call.

Owns: what each operation would have to give. Must not know: boards. What the contract cannot say is answered "not run",
with the reason; nothing is made up for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calserve.accept.conform.hand import Declined, Hand, Line, Turn
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.evidence import Figure
from calserve.core.job import JobSpec
from calserve.runtime.encoding import encode

NO_CALL = {
    "kv_copy": "the contract has no call that copies KV from one lane to another",
    "kv_shift": "the contract has no call that moves KV to other positions",
    "kv_state": "the contract has no call that reads KV out or writes it back",
    "calcore_affinity": "the contract has no call that names a CalCore for a job",
    "lane_fault_isolation": "the contract has no call that makes one row fail; the vendor's error injection is needed",
}


def no_call(capability: str) -> Callable[[Rig], Outcome]:
    return lambda rig: Outcome(Verdict.NOT_RUN, NO_CALL[capability])


def prove_share(rig: Rig) -> Outcome:
    """A second lane over the full units of a first: refused, or right and without harm to the first."""
    agree = rig.agreement()
    with rig.session() as hand:
        if hand.session.lanes < 2:
            return not_supported("the session has one lane")
        unit = hand.session.unit_tokens
        whole = unit if unit < rig.package.context // 2 else min(16, rig.package.context // 2)
        first, ids = Line(0), rig.prompt(whole)
        hand.prefill(first, ids)
        before = hand.again([first], [3])[0]
        code = hand.session.kv.apply(1, first.units[:1], whole)
        if code:
            return not_supported(f"a unit of lane 0 in lane 1 too is refused with code {code}", code=code)
        second = Line(1, first.units[:1], whole)
        agree.check("the second lane's next token", before, hand.again([second], [3])[0])
        hand.again([second], [8])
        agree.check("the first lane after the second went on", before, hand.again([first], [3])[0])
    return judged(agree, "two lanes read one unit, and neither changes the other")


def prove_trim(rig: Rig) -> Outcome:
    """A lane cut back to fewer tokens goes on as if the others had never been."""
    agree = rig.agreement()
    with rig.session() as hand:
        line, long = Line(0), min(60, rig.package.context - 2)
        kept = long // 2
        hand.prefill(line, rig.prompt(kept))
        expected = hand.decode([line], [3])[0]
        hand.release(line)
        hand.prefill(line, [*rig.prompt(kept), *rig.prompt(long - kept, 9)])
        if code := hand.trim(line, kept):
            return not_supported(f"a lane cut from {long} to {kept} tokens is refused with code {code}", code=code)
        agree.check(f"the token after {kept} of {long}", expected, hand.decode([line], [3])[0])
        used = hand.session.kv.can_allocate(hand.session.kv_units - len(line.units))
    if not used:
        return failed(f"the units beyond {kept} tokens are not free after the cut", **agree.figures())
    return judged(agree, f"a lane cut from {long} to {kept} tokens goes on from there", {"kept": kept, "of": long})


def prove_refused_submit(rig: Rig) -> Outcome:
    """Submits that must fail, each followed by the step whose logits would show a change of KV."""
    agree = rig.agreement()
    codes: dict[str, Figure] = {}
    with rig.session() as hand:
        line = Line(0)
        hand.prefill(line, rig.prompt(min(12, rig.package.context - 2)))
        before = hand.again([line], [3])[0]
        for name in ("generation", "session", "unfilled", "busy"):
            code = _refusal(rig, hand, line, name)
            if code is None:
                return failed(f"a submit that must be refused ({_ABOUT[name]}) was accepted", **codes)
            codes[f"{name}_code"] = code
            agree.check(f"after a refused submit ({_ABOUT[name]})", before, hand.again([line], [3])[0])
    return judged(agree, "KV is what it was after each of four refused submits", codes)


_ABOUT = {
    "generation": "another generation",
    "session": "another session",
    "unfilled": "buffers nobody filled",
    "busy": "a second job on buffers in flight",
}


def _refusal(rig: Rig, hand: Hand, line: Line, name: str) -> int | None:
    """The code of a submit that must be refused; None where it was not. `line` stays as it was."""
    held = line.length
    spec, tokens = hand.describe([Turn(line, [11])])
    buffers = hand.buffers(spec.graph, spec.bank)
    if name == "busy":
        flying = hand.fly(spec, tokens)
        code, ticket = hand.session.submit(spec, buffers)
        hand.land(flying)
    else:
        wrong = {
            "generation": replace(spec, generation=spec.generation + 1000),
            "session": replace(spec, session="somebody-else"),
            "unfilled": spec,
        }[name]
        if name != "unfilled":
            _encode(hand, spec, tokens)
        code, ticket = hand.session.submit(wrong, buffers)
        if ticket is not None:
            hand.session.wait(ticket, 1_000_000_000)
        hand.give_back(buffers)
    line.length = held
    return code if code and ticket is None else None


def _encode(hand: Hand, spec: JobSpec, tokens: list[list[int]]) -> None:
    if fault := encode(hand.session.graphs[spec.graph], spec, tokens, hand.buffers(spec.graph, spec.bank)):
        raise Declined(f"{fault.operation} of {fault.tensor} gave code {fault.code}", fault.code)
