"""What is wrong with a package, a source or a download, in one sentence.

Must not know who asks. Life of the main object: a check that fails raises PackageError with one PackageFault; the
command line prints the sentence and exits, gates collect the fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackageFault:
    """rule: stable name of the check. sentence: for people. limit/given: what the check compared, as text."""

    rule: str
    sentence: str
    limit: str = ""
    given: str = ""

    def __str__(self) -> str:
        return self.sentence


class PackageError(Exception):
    """An expected refusal, never a bug of ours: `str()` is one clear sentence."""

    def __init__(self, rule: str, sentence: str, limit: object = "", given: object = "") -> None:
        super().__init__(sentence)
        self.fault = PackageFault(rule, sentence, str(limit), str(given))
