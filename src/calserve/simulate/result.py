"""What came of a run, and who may look on while it goes.

Owns: the data of a result. Must not know: how a run is carried out, how it is judged.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Protocol

from calserve.runtime.sim.facts import DeviceFact


@dataclass(frozen=True, slots=True)
class EraMark:
    """What one era came to: its virtual time, to the end of its shutdown, and what it was made of."""

    virtual_ns: int
    requests: int
    jobs: int
    events: int


@dataclass(slots=True)
class RunResult:
    """What came of a run. eras_begun: the last of them is the one that failed, if one did. hashes: of the record, after
    each era; marks: what each had in it. violations: sentences, the first ones."""

    eras_begun: int = 0
    hashes: list[str] = field(default_factory=list)
    marks: list[EraMark] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    violation_count: int = 0
    last_lines: list[str] = field(default_factory=list)
    virtual_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    sometimes: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)

    def end_era(self, now_ns: int, requests: int, record: Counts) -> None:
        """An era is over; the numbers are of the whole run so far."""
        whole = (now_ns, requests, record.jobs, record.events)
        before = (sum(each) for each in zip(*map(astuple, self.marks), strict=True)) if self.marks else (0,) * 4
        self.hashes.append(record.digest)
        self.marks.append(EraMark(*(now - then for now, then in zip(whole, before, strict=True))))

    @property
    def digest(self) -> str:
        return self.hashes[-1] if self.hashes else ""


class Counts(Protocol):
    """Who counts a run's events and jobs, and hashes them."""

    events: int
    jobs: int

    @property
    def digest(self) -> str: ...


class Watch(Protocol):
    """Somebody who looks on."""

    def fact(self, fact: DeviceFact) -> None: ...

    def session_state(self, session: str, state: str, at_ns: int) -> None: ...

    def ended(self, request: str, end: str, at_ns: int) -> None: ...
