"""`calserve-conformance/v1`: what a run of the proofs saw, as a file, and what follows from it.

Owns: the format, how verdicts give a state, and for what a record counts. Must not know: how a proof is run. A record
is for one board, its versions and figures, and one package hash; for any other it counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from calserve import strict_yaml
from calserve.accept.conform.proofs import BY_ID, OF
from calserve.accept.evidence import (
    EvidenceError,
    EvidenceRecord,
    Figure,
    MaybeSha256,
    Sha256,
    Word,
    check_record,
    read_tree,
)
from calserve.runtime.contract import CAPABILITIES
from calserve.whole_file import replace_file

SCHEMA: Literal["calserve-conformance/v1"] = "calserve-conformance/v1"
State = Literal["C0", "C1", "C2", "C3", "C4"]
VerdictName = Literal["passed", "failed", "not_supported", "not_run"]
Sentence = Annotated[str, msgspec.Meta(max_length=4000)]


class ProofRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Word
    verdict: VerdictName
    sentence: Sentence
    figures: dict[str, Figure]


class CapabilityRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """declared: by the board. state: what declaration and proofs give together, see `state_of`."""

    name: Word
    declared: State
    state: State


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of seed 004, section 7.1. is_measured: false where it cannot be answered here; `answer` says why."""

    row: Word
    question: Sentence
    is_measured: bool
    answer: Sentence


class MadeBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """commit: of the source, with a + where files differed from it; "unknown" outside a repository. date: UTC."""

    calserve: Word
    commit: Word
    date: Word


class Conformance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """simulated: never the hardware's C0. figures_sha256: of the board, as `BoardFacts` has it.

    concurrent_jobs: the evidence of two jobs in flight, as `calserve prove concurrent-jobs` writes it.
    """

    board: Word
    simulated: bool
    package_hash: Sha256
    model: Word
    versions: dict[str, str]
    made: MadeBy
    capabilities: tuple[CapabilityRecord, ...]
    proofs: tuple[ProofRecord, ...]
    answers: tuple[Answer, ...]
    concurrent_jobs: EvidenceRecord | None = None
    figures_sha256: MaybeSha256 = ""
    schema: Literal["calserve-conformance/v1"] = SCHEMA

    def proof(self, proof_id: str) -> ProofRecord:
        return next(proof for proof in self.proofs if proof.id == proof_id)

    @property
    def broken(self) -> tuple[ProofRecord, ...]:
        """Failed proofs of what every board must do."""
        return tuple(p for p in self.proofs if p.verdict == "failed" and not BY_ID[p.id].capability)

    @property
    def unproven_claims(self) -> tuple[CapabilityRecord, ...]:
        return tuple(each for each in self.capabilities if each.declared == "C0" != each.state)


def state_of(declared: State, verdicts: Sequence[str]) -> State:
    """C0 when every proof passed. A failure, or a claim of C0 that no proof bears out, is C1: there, and not proven.
    Where nothing was judged otherwise the declaration stands."""
    if verdicts and all(verdict == "passed" for verdict in verdicts):
        return "C0"
    return "C1" if declared == "C0" else declared


def is_judged(record: Conformance, capability: str) -> bool:
    """Whether a proof of it came to a verdict here, or it was claimed and could not be proven."""
    ran = [record.proof(proof_id).verdict for proof_id in OF[capability]]
    claimed = next(each for each in record.capabilities if each.name == capability).declared == "C0"
    return claimed or any(verdict in ("passed", "failed") for verdict in ran)


def write_conformance(record: Conformance, path: Path) -> None:
    """Replace `path` in one piece. Raises OSError that names it."""
    replace_file(path, conformance_json(record) + "\n")


def conformance_json(record: Conformance) -> str:
    return json.dumps({"schema": SCHEMA, **msgspec.to_builtins(record)}, indent=1)


def load_conformance(path: Path) -> Conformance:
    """Read and check, also that every state follows from the proofs.

    Raises:
        EvidenceError: one sentence.
    """
    return conformance_of(read_tree(path, "evidence", (SCHEMA,)), path)


def conformance_of(tree: Mapping[str, object], path: Path) -> Conformance:
    """As `load_conformance`, of a file already read."""
    try:
        record = strict_yaml.convert(tree, Conformance)
    except strict_yaml.Wrong as error:
        raise EvidenceError(f"{path}: {error}") from None
    for what, given, wanted in (
        ("proof", [proof.id for proof in record.proofs], list(BY_ID)),
        ("capability", [each.name for each in record.capabilities], list(CAPABILITIES)),
    ):
        if given != wanted:
            odd = next((n for n in given if n not in wanted or given.count(n) > 1), None)
            odd = odd or next((n for n in wanted if n not in given), given[0])
            raise EvidenceError(f"{path}: the {what} {odd!r} is not there once, in its place.")
    for each in record.capabilities:
        state = state_of(each.declared, [record.proof(proof_id).verdict for proof_id in OF[each.name]])
        if state != each.state:
            raise EvidenceError(f"{path}: says {each.state} of {each.name}, but its proofs give {state}.")
    _check_jobs(record, path)
    return record


def _check_jobs(record: Conformance, path: Path) -> None:
    """The evidence inside is of the same board and package, and says what the proof says."""
    inner = record.concurrent_jobs
    passed = record.proof("concurrent_jobs").verdict == "passed"
    if inner is None:
        if passed:
            raise EvidenceError(f"{path}: concurrent_jobs passed and its evidence is not there.")
        return
    check_record(inner, path)
    for name in ("board", "simulated", "package_hash", "versions", "figures_sha256"):
        if getattr(inner, name) != getattr(record, name):
            raise EvidenceError(f"{path}: the evidence of concurrent_jobs is for another {name}.")
    if passed is not (inner.state == "C0"):
        said = "passed" if passed else "did not pass"
        raise EvidenceError(f"{path}: concurrent_jobs {said}, and its evidence says {inner.state}.")
