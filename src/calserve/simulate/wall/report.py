"""The record of a soak: written while it runs, so that a crash leaves what there was.

Owns the JSON form, the file, and the table a person reads. Must not judge. Life: `begin` writes a record whose verdict
is "crashed"; `save` writes what is known so far under the same verdict; only `finish` writes another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from calserve.simulate.wall.plot import svg
from calserve.simulate.wall.samples import Sample
from calserve.simulate.wall.verdict import Check
from calserve.whole_file import replace_file

JSON_NAME, SVG_NAME, LOG_NAME = "soak-wall.json", "soak-wall.svg", "soak-wall-server.log"
SCHEMA = "calserve-soak-wall/v1"
CRASHED, PASSED, FAILED, STOPPED = "crashed", "passed", "failed", "stopped"
WRONG_SHOWN = 20
_WORDS = {True: "ok", False: "FAILED", None: "not judged"}


@dataclass(slots=True)
class WallReport:
    """Everything a soak found. outcomes: exchanges by kind and end. told: error codes clients were given.
    wrong: sentences of what no client may see; wrong_count counts those that are not kept too.
    unwritten: why the record could not be written, "" where it was.
    golden: "passed", "failed", or "model failed" (which it may be after faults). state: of the model at the end.
    """

    options: Mapping[str, Any]
    versions: Mapping[str, str]
    verdict: str = CRASHED
    reason: str = "the soak did not come to its end"
    seconds: float = 0.0
    sent: int = 0
    ended: int = 0
    injected: int = 0
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    wrong_count: int = 0
    golden: str = "not asked"
    golden_rounds: int = 0
    state: str = ""
    restarts: int = 0  # after 75
    replaced: int = 0  # because the model was out of service
    failed_loads: int = 0
    exits: list[int] = field(default_factory=list)
    exit_code: int | None = None
    checks: list[Check] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unwritten: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    def add_wrong(self, sentence: str) -> None:
        self.wrong_count += 1
        if len(self.wrong) < WRONG_SHOWN:
            self.wrong.append(sentence)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["checks"] = [{"name": c.name, "ok": c.ok, "limit": c.limit, "given": c.given} for c in self.checks]
        plain["samples"] = [_sample(sample) for sample in self.samples]
        return {"schema": SCHEMA, **plain}


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "at_s": round(sample.at_s, 2),
        "life": sample.life,
        "rss": sample.rss,
        "descriptors": sample.descriptors,
        "threads": sample.threads,
        "open_requests": sample.open_requests,
        **sample.values,
    }


class Record:
    """The file of one soak in `directory`. Invariant: at every moment it holds one whole JSON document."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / JSON_NAME
        self._svg = directory / SVG_NAME

    def save(self, report: WallReport) -> None:
        replace_file(self.path, json.dumps(report.to_json(), indent=1))

    def finish(self, report: WallReport) -> None:
        self.save(report)
        replace_file(self._svg, svg(report.samples))


def print_report(report: WallReport, console: Console) -> None:
    """What a person wants to know, on some thirty lines."""
    ends = sorted({end for by_end in report.outcomes.values() for end in by_end})
    table = Table("client", *ends, title=f"{report.sent} requests in {report.seconds:.0f} s")
    for kind, by_end in sorted(report.outcomes.items()):
        table.add_row(kind, *(str(by_end.get(end, 0)) for end in ends))
    console.print(table)
    checks = Table("check", "limit", "given", "")
    for check in report.checks:
        checks.add_row(check.name, check.limit, check.given, _WORDS[check.ok])
    console.print(checks)
    told = ", ".join(f"{code} {count}" for code, count in sorted(report.told.items())) or "none"
    console.print(f"errors told: {told}")
    console.print(
        f"injected {report.injected}, restarts on 75 {report.restarts}, replaced {report.replaced}, "
        f"model {report.state or 'unknown'}, golden {report.golden} ({report.golden_rounds} rounds)"
    )
    for sentence in report.wrong:
        console.print(f"wrong: {sentence}", markup=False)
    console.print(f"{report.verdict}: {report.reason}", markup=False)
