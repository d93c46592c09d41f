"""Evidence of a capability as a file, and what a server may do with it.

Owns: the format `calserve-evidence/v1`, and the rule that turns evidence into a number of jobs in flight. Must not
know: how a proof is run, what a soak proves (`soak_record`). Evidence is for one package hash, one set of versions and
the figures of one board; for any other it counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from calserve import strict_yaml
from calserve.runtime.contract import BoardFacts
from calserve.whole_file import replace_file

SCHEMA = "calserve-evidence/v1"
CONCURRENT_JOBS: Literal["concurrent_jobs"] = "concurrent_jobs"
# There are two job banks (seed 003, section 5).
JOBS_PROVEN = 2
BANK_MODES = ("fixed", "auto")
KINDS = ("correct", "overlap", "gain", "tpot")
# What C0 needs: fixed banks and the board's own choice are both proven, as `executor.fixed_engine` may be either.
REQUIRED = tuple(f"{kind}_{mode}" for mode in BANK_MODES for kind in KINDS)
SOAK_CHECK = "soak_24h"

Figure = int | float | str | bool
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
MaybeSha256 = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class EvidenceError(ValueError):
    """A file cannot be used as evidence; `str()` is one sentence that names it."""


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that was looked at. bound: what it was held against, in words; figures: what was seen."""

    name: Word
    passed: bool
    bound: str
    figures: dict[str, Figure]


class EvidenceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """state: C0 when every check in `REQUIRED` passed, else C1. missing: checks that did not pass, or were not run.

    simulated: proven on a simulated board, which is never the hardware's C0. method: how it was measured.
    figures_sha256: of the board, as `BoardFacts` has it.
    """

    capability: Literal["concurrent_jobs"]
    state: Literal["C0", "C1"]
    board: Word
    simulated: bool
    package_hash: Sha256
    versions: dict[str, str]
    method: dict[str, Figure]
    checks: tuple[Check, ...]
    missing: tuple[str, ...]
    figures_sha256: MaybeSha256 = ""
    schema: Literal["calserve-evidence/v1"] = "calserve-evidence/v1"

    @property
    def has_soak(self) -> bool:
        return not self.soak_doubt

    @property
    def soak_doubt(self) -> str:
        """Why its soak does not make two jobs in flight the default; "" when it does."""
        without = f"the evidence is without {SOAK_CHECK}, which two jobs in flight need to be on by default"
        check = next((check for check in self.checks if check.name == SOAK_CHECK), None)
        if check is None:
            return without
        figure = check.figures.get
        doubt = doubt_about_commit(str(figure("commit", "unknown"))) if check.passed else str(figure("doubt", "failed"))
        return f"{without}: of the soak that was given, {doubt}" if doubt else ""


def judge_checks(checks: tuple[Check, ...]) -> tuple[Literal["C0", "C1"], tuple[str, ...]]:
    """State and missing names that follow from the checks; the only way either comes about."""
    passed = {check.name for check in checks if check.passed}
    missing = tuple(name for name in (*REQUIRED, SOAK_CHECK) if name not in passed)
    return ("C0" if passed.issuperset(REQUIRED) else "C1"), missing


def write_evidence(record: EvidenceRecord, path: Path) -> None:
    """Replace `path` in one piece. Raises OSError that names it."""
    tree = {"schema": SCHEMA, **msgspec.to_builtins(record)}  # first, as a person reads it
    replace_file(path, json.dumps(tree, indent=1) + "\n")


def load_evidence(path: Path) -> EvidenceRecord:
    """Read and check, also that state and missing follow from the checks.

    Raises:
        EvidenceError: one sentence.
    """
    return evidence_of(read_tree(path, "evidence", (SCHEMA,)), path)


def evidence_of(tree: Mapping[str, object], path: Path) -> EvidenceRecord:
    """As `load_evidence`, of a file already read."""
    try:
        record = strict_yaml.convert(tree, EvidenceRecord)
    except strict_yaml.Wrong as error:
        raise EvidenceError(f"{path}: {error}") from None
    check_record(record, path)
    return record


def check_record(record: EvidenceRecord, path: Path) -> None:
    """That its checks are ours and its state follows from them. Raises EvidenceError."""
    names = [check.name for check in record.checks]
    unknown = next((name for name in names if name not in (*REQUIRED, SOAK_CHECK)), None)
    if unknown is not None:
        raise EvidenceError(f"{path}: there is no check {unknown!r}.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EvidenceError(f"{path}: the check {twice} stands twice.")
    state, missing = judge_checks(record.checks)
    if (record.state, record.missing) != (state, missing):
        raise EvidenceError(
            f"{path}: says {record.state} with {len(record.missing)} missing, but its checks give {state} "
            f"with {len(missing)}{': ' + ', '.join(missing) if missing else ''}."
        )


def doubt_about_commit(commit: str) -> str:
    """Why a record made at `commit` cannot be made again; "" when it can."""
    if commit == "unknown":
        return "the commit is not known"
    if commit.endswith("+"):
        return f"the source had changes that commit {commit[:12].rstrip('+')} does not have, so nobody can run it again"
    return ""


class Identified(Protocol):
    """What evidence is for."""

    @property
    def board(self) -> str: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def package_hash(self) -> str: ...
    @property
    def versions(self) -> dict[str, str]: ...
    @property
    def figures_sha256(self) -> str: ...


def why_void(record: Identified, facts: BoardFacts, package_hash: str | None) -> str:
    """Why evidence is for another board or package, and counts as none; "" where it is for these.

    package_hash: None where there is no package to hold it against.
    """
    if (record.board, record.simulated) != (facts.name, facts.simulated):
        kind = "simulated " if record.simulated else ""
        return f"the evidence is for the {kind}board {record.board}"
    if package_hash is not None and record.package_hash != package_hash:
        return f"the evidence is for package {record.package_hash[:12]}, not {package_hash[:12]}"
    if record.versions != dict(facts.versions):
        return f"the evidence is for {_differing(record.versions, facts.versions)}"
    if record.figures_sha256 != facts.figures_sha256:
        return other_figures("the evidence is for", record.figures_sha256, facts)
    return ""


def doubt_about(record: EvidenceRecord, facts: BoardFacts, package_hash: str) -> str:
    """Why `record` does not prove its capability on this board with this package; "" when it does."""
    void = why_void(record, facts, package_hash)
    if void or record.state == "C0":
        return void
    return f"the evidence says {record.state}, without {', '.join(record.missing)}"


def allowed_in_flight(
    asked: int | None, facts: BoardFacts, package_hash: str, evidence: EvidenceRecord | None
) -> int | str:
    """Jobs in flight a server may have on this board with this package, or the sentence that refuses.

    asked: `executor.max_inflight` where the operator set it, None where not. Then it is two only if the evidence
    includes the soak, and one otherwise. Asked for, two need evidence with or without the soak.
    """
    if asked == 1:
        return 1
    doubt = "there is no evidence" if evidence is None else doubt_about(evidence, facts, package_hash)
    if asked is None:
        is_default = evidence is not None and not doubt and evidence.has_soak
        return JOBS_PROVEN if is_default else 1
    if not doubt and 0 < asked <= JOBS_PROVEN:
        return asked
    doubt = doubt or f"{JOBS_PROVEN} are proven"
    return f"executor.max_inflight is {asked}, but the capability {CONCURRENT_JOBS} is not proven here: {doubt}."


def why_unused(asked: int | None, facts: BoardFacts, package_hash: str, evidence: EvidenceRecord | None) -> str:
    """Why evidence that was given leaves a server at one job in flight, for people; "" where it does not, or where one
    was asked for."""
    if evidence is None or asked is not None:
        return ""
    return doubt_about(evidence, facts, package_hash) or evidence.soak_doubt


def other_figures(what: str, theirs: str, facts: BoardFacts) -> str:
    profile = facts.versions.get("profile", facts.name)
    then, now = (sha[:12] or "none" for sha in (theirs, facts.figures_sha256))
    return f"{what} other figures of board profile {profile}: their digest was {then}, now it is {now}"


def _differing(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    name = min(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
    return f"{name} {theirs.get(name, 'unknown')}, not {ours.get(name, 'unknown')}"


def read_tree(path: Path, what: str, schemas: tuple[str, ...]) -> dict[str, Any]:
    """The mapping in `path`, whose `schema` is one of `schemas`. Raises EvidenceError: one sentence."""
    try:
        tree = strict_yaml.parse(strict_yaml.read_text(path, what))
    except strict_yaml.Wrong as error:
        raise EvidenceError(f"{path}: {error}") from None
    found = tree.get("schema") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or found not in schemas:
        raise EvidenceError(f"{path}: schema must be {' or '.join(schemas)}, not {str(found)[:60]!r}.")
    return tree
