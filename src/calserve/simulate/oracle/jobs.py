"""One job as the board told of it, and how it is named in a sentence.

Must not know: what is right about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.simulate.oracle.answers import Answer


@dataclass(slots=True, eq=False)
class BoardRow:
    """One row as the job's description has it. answer: None in the server's own jobs. run: of the answer, then."""

    answer: Answer | None
    name: str
    lane: int
    first: int
    count: int
    wants_output: bool
    run: int


@dataclass(slots=True, eq=False)
class BoardJob:
    """keys: (chip, lane) as one number, of every lane it names. is_current: its session may still hear of it.
    is_sound: it retired with a good code and status."""

    ticket: int
    number: int
    session: str
    generation: int
    graph: str
    chips: tuple[int, ...]
    rows: list[BoardRow]
    keys: list[int]
    is_current: bool = True
    is_retired: bool = False
    is_sound: bool = False

    def __str__(self) -> str:
        return f"job {self.number} (ticket {self.ticket}, session {self.session}, generation {self.generation})"


def names_of(job: BoardJob, row: BoardRow) -> str:
    return f"{job} names lane {row.lane} for {row.name}"


def place_of(job: BoardJob, row: BoardRow) -> str:
    return f"{job}, lane {row.lane}, {row.name} at position {row.first}"


def short(values: tuple[int, ...]) -> str:
    return str(values) if len(values) <= 6 else f"({', '.join(map(str, values[:6]))}, ... {len(values)} in all)"
