"""Proofs of configuring: what is refused, what a refusal leaves, and two packages on one chip.

Owns: the configurations that must not be. Must not know: boards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calserve.accept.conform.hand import Hand, Line
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.evidence import Figure
from calserve.core.outcomes import FaultClass
from calserve.runtime.contract import LoadOptions
from calserve.runtime.errors import classify

BAD: dict[str, dict[str, Any]] = {
    "no_chips": {"chips": ()},
    "unknown_chip": {"chips": (99,)},
    "too_many_lanes": {"lanes": 10_000},
    "unknown_numerics": {"numerics": "nonsense"},
    "quota_of_one_byte": {"dram_quota": 1},
    "99_in_flight": {"max_in_flight": 99},
}


def prove_configure(rig: Rig) -> Outcome:
    """More than the board has, and another board's package, are refused by a code; the board configures right after."""
    codes: dict[str, Figure] = {}
    load = LoadOptions(rig.options.jobs.chips, rig.package.numerics)
    for name, change in BAD.items():
        code, session = rig.board.configure(rig.package, replace(load, **change), "conform", rig.generation + 1)
        codes[name] = code
        if session is not None or not code:
            if session is not None:
                rig.clear(session)
            return failed(f"a configure with {name.replace('_', ' ')} is not refused", **codes)
    alien = replace(rig.package, board="no-such-board")
    code, session = rig.board.configure(alien, load, "conform", rig.generation + 1)
    codes["another_boards_package"] = code
    if session is not None or classify(code) is not FaultClass.ARTIFACT:
        if session is not None:
            rig.clear(session)
        return failed(f"another board's package gives code {code}, which blames no artifact", **codes)
    with rig.session() as hand:
        hand.prefill(Line(0), rig.prompt(min(5, rig.package.context)))
    if not rig.board.health().ok:
        return failed(f"the board is ill after refused configures: {rig.board.health().detail}", **codes)
    return Outcome(Verdict.PASSED, f"{len(codes)} wrong configures are refused, and the next right one works", codes)


def prove_packages(rig: Rig) -> Outcome:
    """A second package beside the first on the same chips: refused, or each as if alone and unloaded alone."""
    agree = rig.agreement()
    ids = rig.prompt(min(20, rig.package.context - 2))
    with rig.session() as hand:
        line = Line(0)
        expected = hand.prefill(line, ids)
        before = hand.again([line], [3])[0]
        code, session = rig.configure("second")
        if session is None:
            agree.check("after the refusal", before, hand.again([line], [3])[0])
            if agree.differing:
                return failed(f"a refused second package changes the first: {agree.first}", code=code)
            return not_supported(f"a second package on the same chips gave code {code}", code=code)
        other = Hand(session, rig.generation, rig.options.jobs.spend, jobs=1_000_000)
        agree.check("the second package's prompt", expected, other.prefill(Line(0), ids))
        other.release(Line(0))
        other.prefill(Line(0), rig.prompt(len(ids), 4))
        agree.check("the first after the second used its lane", before, hand.again([line], [3])[0])
        code = rig.clear(session)
        if code:
            return failed(f"the second package cannot be unloaded alone: code {code}")
        agree.check("the first after the second was unloaded", before, hand.again([line], [3])[0])
    return judged(agree, "two packages on the same chips, each as if alone")
