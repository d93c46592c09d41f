"""What came of a run, and who may look on while it goes.

Owns: the data of a result. Must not know: how a run is carried out, how it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from calserve.runtime.sim.facts import DeviceFact


@dataclass(slots=True)
class RunResult:
    """What came of a run. eras_begun: the last of them is the one that failed, if one did. hashes: of the record, after
    each era. violations: sentences, the first ones."""

    eras_begun: int = 0
    hashes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    violation_count: int = 0
    last_lines: list[str] = field(default_factory=list)
    virtual_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    sometimes: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.hashes[-1] if self.hashes else ""


class Watch(Protocol):
    """Somebody who looks on."""

    def fact(self, fact: DeviceFact) -> None: ...

    def session_state(self, session: str, state: str, at_ns: int) -> None: ...

    def ended(self, request: str, end: str, at_ns: int) -> None: ...
