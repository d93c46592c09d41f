"""The gates in order: the one way a package is judged, by `calserve validate` and by whoever opens it.

Owns the order, and that a gate that fails stops those behind it: what a broken manifest says of its graphs is no news.
Must not know what a gate looks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from calserve.package.gates.compatibility import OpenTrial, check_compatibility, check_on_board
from calserve.package.gates.files import check_files
from calserve.package.gates.finding import Finding, Findings
from calserve.package.gates.graphs import check_graphs
from calserve.package.gates.memory import check_memory
from calserve.package.gates.rules import GATES, GateName
from calserve.package.gates.schema import check_schema
from calserve.package.gates.text import check_text
from calserve.package.gates.work import PackageFiles, Work
from calserve.package.sealed import Sealed
from calserve.package.tree import PackageTree
from calserve.progress import Progress, SilentProgress

Mode = Literal["fast", "default", "full"]
Status = Literal["passed", "warned", "failed", "not_run"]

_CHECKS: Final[dict[GateName, Callable[[Work, Findings], None]]] = {
    "A": check_files,
    "B": check_schema,
    "C": check_graphs,
    "D": check_memory,
    "E": check_text,
    "F": check_compatibility,
}


@dataclass(frozen=True, slots=True)
class GateResult:
    """dropped: findings beyond those that are kept."""

    gate: GateName
    status: Status
    findings: tuple[Finding, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the gates found. files: None unless gate A passed. tree: None unless gate B passed."""

    path: Path
    mode: Mode
    gates: tuple[GateResult, ...]
    files: PackageFiles | None
    tree: PackageTree | None
    bytes_hashed: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for gate in self.gates for finding in gate.findings)

    @property
    def failure(self) -> Finding | None:
        """The first finding that refuses the package."""
        return next((finding for finding in self.findings if finding.rule.severity == "fail"), None)


@dataclass(frozen=True, slots=True)
class How:
    """is_hashed: whether contents are held against their checksums. last: the last gate that is run. progress: where
    hashing is shown. sealed: read this copy instead of the path. open_trial: a board for gate F."""

    is_hashed: bool = True
    last: GateName = "F"
    progress: Progress = field(default_factory=SilentProgress)
    sealed: Sealed | None = None
    open_trial: OpenTrial | None = None

    @property
    def mode(self) -> Mode:
        if self.open_trial is not None:
            return "full"
        return "default" if self.is_hashed else "fast"


DEFAULT = How()


def inspect(path: Path, how: How = DEFAULT) -> Inspection:
    """Put the package at `path` through the gates. Whatever is in it gives findings; only opening a board raises."""
    work = Work(path, how.is_hashed, how.progress, how.sealed)
    results: list[GateResult] = []
    has_failed = False
    for gate in GATES:
        if has_failed or gate > how.last:
            results.append(GateResult(gate, "not_run"))
            continue
        findings = Findings()
        _CHECKS[gate](work, findings)
        if gate == "F" and how.open_trial is not None and not findings.has_failed:
            check_on_board(work, how.open_trial, findings)
        has_failed = findings.has_failed
        status: Status = "failed" if has_failed else "warned" if findings.kept else "passed"
        results.append(GateResult(gate, status, tuple(findings.kept), findings.dropped))
    return Inspection(path, how.mode, tuple(results), work.files, work.tree, work.bytes_hashed)
