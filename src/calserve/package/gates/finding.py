"""What a gate found, one sentence each.

Owns the form of a finding and how many are kept: a hostile package may break one rule a million times. Must not know
rules' checks. Life of the main object: a gate fills one `Findings`; the run puts it into the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.package.gates.rules import RULES, Rule

# A report of a thousand sentences helps nobody; the rest is counted.
MAX_FINDINGS = 100
MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """A breach of `rule`. file, model, graph: what it is about, "" where it is about none. limit, given: compared."""

    rule: Rule
    sentence: str
    file: str = ""
    model: str = ""
    graph: str = ""
    limit: str = ""
    given: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What a check looks at."""

    file: str = ""
    model: str = ""
    graph: str = ""


NOWHERE = Place()


@dataclass(slots=True)
class Findings:
    """Findings of one gate. dropped: how many more there were. Invariants: at most MAX_FINDINGS are kept, and a fail
    is never dropped for a warning."""

    kept: list[Finding] = field(default_factory=list)
    dropped: int = 0
    has_failed: bool = False

    def add(self, rule: str, sentence: str, at: Place = NOWHERE, limit: object = "", given: object = "") -> None:
        """Note a breach. Names and values come from the package, so what does not print is escaped."""
        found = RULES[rule]
        if len(self.kept) >= MAX_FINDINGS and not (found.severity == "fail" and not self.has_failed):
            self.dropped += 1
            return
        self.has_failed |= found.severity == "fail"
        parts = (sentence, at.file, at.model, at.graph, str(limit), str(given))
        self.kept.append(Finding(found, *(printable(part) for part in parts)))


def printable(text: str) -> str:
    """`text` for a terminal or a log: no control characters, no lone surrogates, of bounded length."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 3]}..."
