"""What a server may do with an evidence file: which capabilities it raises and lowers, and by which run.

Owns: the rule. Must not know: how a file was made. Without evidence a board's own declaration stands, but for two jobs
in flight, which need evidence. A conformance record for this board, package, versions and figures replaces the
declaration where its proofs came to a verdict: passed is C0, anything else is less. One that is void changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calserve.accept.conform.record import SCHEMA as CONFORMANCE_SCHEMA
from calserve.accept.conform.record import Conformance, conformance_of, is_judged
from calserve.accept.evidence import (
    CONCURRENT_JOBS,
    SCHEMA,
    EvidenceRecord,
    evidence_of,
    read_tree,
    why_unused,
    why_void,
)
from calserve.runtime.contract import BoardFacts, Evidence


@dataclass(frozen=True, slots=True)
class Claims:
    """A file given as evidence: of two jobs in flight alone, or of everything."""

    path: Path
    jobs: EvidenceRecord | None
    conformance: Conformance | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """state of a capability, and the run behind it; "" where it is not C0."""

    state: Evidence
    proof: str


def load_claims(path: Path) -> Claims:
    """What `calserve prove` or `calserve conform` wrote.

    Raises:
        EvidenceError: one sentence.
    """
    tree = read_tree(path, "evidence", (SCHEMA, CONFORMANCE_SCHEMA))
    if tree["schema"] == SCHEMA:
        return Claims(path, evidence_of(tree, path))
    record = conformance_of(tree, path)
    return Claims(path, record.concurrent_jobs, record)


def claims_of(claims: Claims | None, facts: BoardFacts, package_hash: str | None) -> Mapping[str, Claim]:
    """What replaces the board's declaration, by capability. Two jobs in flight are not among them: how many a server
    has is `allowed_in_flight`'s to say."""
    record = claims.conformance if claims is not None else None
    if claims is None or record is None or why_void(record, facts, package_hash):
        return {}
    return {
        each.name: Claim(Evidence[each.state], f"{claims.path} of {record.made.date}" if each.state == "C0" else "")
        for each in record.capabilities
        if each.name != CONCURRENT_JOBS and is_judged(record, each.name)
    }


def why_no_claims(claims: Claims | None, facts: BoardFacts, package_hash: str | None) -> str:
    """Why a conformance record changes nothing here, for people; "" where it counts or there is none."""
    record = claims.conformance if claims is not None else None
    return why_void(record, facts, package_hash) if record is not None else ""


def why_one_job(claims: Claims | None, asked: int | None, facts: BoardFacts, package_hash: str) -> str:
    """Why a server with this evidence has one job in flight, for people; "" where nobody would expect two.

    A conformance record is given for all it says: that it does not prove two jobs is nothing to be warned of.
    """
    if claims is None or (claims.conformance is not None and (claims.jobs is None or claims.jobs.state != "C0")):
        return ""
    return why_unused(asked, facts, package_hash, claims.jobs)
