"""What `calserve validate --json` writes: the schema `calserve-verdict/v1`.

Owns names and meaning of its fields; machines read them, so a field only ever comes, never goes or changes meaning
within a version. Must not decide anything beyond the verdict itself.
"""

from __future__ import annotations

from typing import Final, Literal

from calserve.package.gates.finding import Finding
from calserve.package.gates.rules import GATES
from calserve.package.gates.run import GateResult, Inspection, Mode
from calserve.package.manifest import Record
from calserve.package.tree import model_hash

SCHEMA: Final = "calserve-verdict/v1"
EXIT_CODES: Final = {"pass": 0, "pass_with_warnings": 0, "fail": 2}


class FindingRecord(Record, frozen=True):
    """A rule that does not hold.

    rule: its id. severity: "fail" refuses the package. gate: the rule's letter. sentence: what is wrong, for people.
    file, model, graph: where, "" where it is about none. limit, given: what was compared, as text.
    """

    rule: str
    severity: Literal["fail", "warning"]
    gate: str
    sentence: str
    file: str
    model: str
    graph: str
    limit: str
    given: str


class GateRecord(Record, frozen=True):
    """A gate. gate: its letter. title: what it looks at. status: how it went; "not_run" after a gate that failed.
    findings: how many there are. dropped: how many more than the report holds."""

    gate: str
    title: str
    status: Literal["passed", "warned", "failed", "not_run"]
    findings: int
    dropped: int


class ModelRecord(Record, frozen=True):
    """A model. name: its alias. hash: what evidence and generations are bound to."""

    name: str
    hash: str


class Verdict(Record, frozen=True):
    """The whole report.

    schema: always "calserve-verdict/v1". path: as it was given. package_hash: sha256 of the list of checksums, ""
    before gate A passed. target: "" before gate B passed. models: none before gate B passed. mode: what was asked for:
    "fast" (contents are not hashed), "default", "full" (also on a board). strict: whether warnings fail. bytes_hashed:
    contents read by gate A. gates: all six, in order. findings: in the order of the gates. verdict: the answer.
    exit_code: what the command ends with, 0 or 2.
    """

    schema: Literal["calserve-verdict/v1"]
    path: str
    package_hash: str
    target: str
    models: tuple[ModelRecord, ...]
    mode: Mode
    strict: bool
    bytes_hashed: int
    gates: tuple[GateRecord, ...]
    findings: tuple[FindingRecord, ...]
    verdict: Literal["pass", "pass_with_warnings", "fail"]
    exit_code: int


def verdict_of(inspection: Inspection, is_strict: bool = False) -> Verdict:
    """The verdict on what the gates found. is_strict: a warning fails it too."""
    found = inspection.findings
    answer: Literal["pass", "pass_with_warnings", "fail"] = "pass_with_warnings" if found else "pass"
    if any(is_strict or finding.rule.severity == "fail" for finding in found):
        answer = "fail"
    files, tree = inspection.files, inspection.tree
    models = () if tree is None else tuple(ModelRecord(m.name, model_hash(tree, m.name)) for m in tree.manifest.models)
    return Verdict(
        schema=SCHEMA,
        path=str(inspection.path),
        package_hash="" if files is None else files.digest,
        target="" if tree is None else tree.manifest.target,
        models=models,
        mode=inspection.mode,
        strict=is_strict,
        bytes_hashed=inspection.bytes_hashed,
        gates=tuple(_gate(result) for result in inspection.gates),
        findings=tuple(_finding(finding) for finding in found),
        verdict=answer,
        exit_code=EXIT_CODES[answer],
    )


def _gate(result: GateResult) -> GateRecord:
    return GateRecord(result.gate, GATES[result.gate], result.status, len(result.findings), result.dropped)


def _finding(finding: Finding) -> FindingRecord:
    rule = finding.rule
    return FindingRecord(
        rule.id, rule.severity, rule.gate, finding.sentence, finding.file, finding.model, finding.graph, finding.limit,
        finding.given,
    )  # fmt: skip
