"""What a mutant of the soak is: one guard taken out of the production code, and who must notice.

Owns: the form of a mutant and how its patches are applied to a copy of the source. Must not know: any mutant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Patch:
    """file: under `src/calserve`. old: stands there exactly once."""

    file: str
    old: str
    new: str

    def apply(self, source: Path) -> None:
        """Change the copy at `source`, the folder that holds `calserve`. Raises ValueError where `old` does not fit."""
        path = source / "calserve" / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: the patched text stands there {count} times, not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    """why: what the guard is there for. caught_by: invariants, one of which the first violation breaks. scenario: in
    which it shows, see `mutant_plans`."""

    name: str
    why: str
    caught_by: tuple[str, ...]
    scenario: str
    patches: tuple[Patch, ...]
