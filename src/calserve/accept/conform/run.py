"""Every proof in turn on one open board with one package, into one record.

Owns: the order, and what a proof that stops or a board that raises counts as. Must not know: which board, and where
the record goes. Life: one call.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from calserve.accept.conform.answers import answers_of
from calserve.accept.conform.proof import ConformOptions, Outcome, Proof, Rig, Verdict, failed
from calserve.accept.conform.proofs import OF, PROOFS
from calserve.accept.conform.record import CapabilityRecord, Conformance, MadeBy, ProofRecord, State, state_of
from calserve.accept.driver import Stopped
from calserve.core.commands import ResetScope
from calserve.progress import Progress
from calserve.runtime.contract import CAPABILITIES, Board, BoardPackage, Evidence

_STATES: Mapping[Evidence, State] = {
    Evidence.C0: "C0",
    Evidence.C1: "C1",
    Evidence.C2: "C2",
    Evidence.C3: "C3",
    Evidence.C4: "C4",
}


def run_conformance(
    board: Board, package: BoardPackage, options: ConformOptions, made: MadeBy, progress: Progress
) -> Conformance:
    """Never raises for what a board does: a proof that stops has failed, and says where."""
    rig = Rig(board, package, options, progress, board.describe())
    records: list[ProofRecord] = []
    for proof in PROOFS:
        records.append(prove_one(proof, rig))
        progress.line(f"{proof.id}: {records[-1].verdict.replace('_', ' ')}: {records[-1].sentence}")
    return conclude(rig, tuple(records), made)


def prove_one(proof: Proof, rig: Rig) -> ProofRecord:
    """Run it; whatever the board does is an outcome."""
    outcome = _bounded(proof, rig)
    return ProofRecord(proof.id, outcome.verdict.value, outcome.sentence[:4000], dict(outcome.figures))


def conclude(rig: Rig, records: tuple[ProofRecord, ...], made: MadeBy) -> Conformance:
    """States and answers that follow from the proofs."""
    facts = rig.facts
    verdicts = {record.id: record.verdict for record in records}
    capabilities = []
    for name in CAPABILITIES:
        declared = _STATES[facts.capabilities.get(name, Evidence.C4)]
        state = state_of(declared, [verdicts[proof_id] for proof_id in OF[name]])
        capabilities.append(CapabilityRecord(name, declared, state))
    return Conformance(
        board=facts.name,
        simulated=facts.simulated,
        package_hash=rig.package.hash,
        model=rig.package.model,
        versions=dict(facts.versions),
        made=made,
        capabilities=tuple(capabilities),
        proofs=records,
        answers=answers_of({record.id: record for record in records}),
        concurrent_jobs=rig.evidence,
        figures_sha256=facts.figures_sha256,
    )


def _bounded(proof: Proof, rig: Rig) -> Outcome:
    """The outcome, whatever the board does. The contract lets nothing raise for an operating failure."""
    try:
        return _claimed(proof, rig, proof.run(rig))
    except Stopped as stop:
        return failed(str(stop))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        with suppress(Exception):  # a board that raises here too has nothing to add
            rig.board.reset(ResetScope.CONFIGURATION, None)
        return failed(f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}"[:500])


def _claimed(proof: Proof, rig: Rig, outcome: Outcome) -> Outcome:
    """A capability the board says is proven must be there at all."""
    is_claimed = rig.facts.capabilities.get(proof.capability) is Evidence.C0
    if is_claimed and outcome.verdict is Verdict.NOT_SUPPORTED:
        return failed(f"the board says that {proof.capability} is proven, but {outcome.sentence}", **outcome.figures)
    return outcome
