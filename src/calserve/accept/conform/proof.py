"""What a proof is: an id, the capability it is of, and a run that ends in an outcome. And the rig it runs on.

Owns: verdicts, outcomes, and the sessions of a proof. Must not know: any particular proof. Life of a rig: made for an
open board and one package; each proof takes sessions from it, which are closed when the proof is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from calserve.accept.conform.agree import EXACT_DISTANCE_MAX, FAST_DISTANCE_MAX, Agreement
from calserve.accept.conform.hand import Hand, Ids
from calserve.accept.driver import Stopped
from calserve.accept.evidence import EvidenceRecord, Figure
from calserve.accept.pingpong import PingPongOptions
from calserve.core.commands import ResetScope
from calserve.progress import Progress
from calserve.runtime.contract import Board, BoardFacts, BoardPackage, LoadOptions, Session


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not_supported"  # the board, or the package's graphs, do not offer it; nothing ran
    NOT_RUN = "not_run"  # it cannot be answered here, and the sentence says why


@dataclass(frozen=True, slots=True)
class Outcome:
    """sentence: one, for people. figures: what was seen, for machines."""

    verdict: Verdict
    sentence: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """capability: whose state it decides; "" for what every board must do."""

    id: str
    capability: str
    title: str
    run: Callable[[Rig], Outcome]


class NotConfigured(Stopped):
    """The board gave no session."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"configure gave code {code}: {detail}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ConformOptions:
    """jobs: clock, host time, chips and lengths of the two-jobs proof; its clock and chips are everybody's.

    allow_board_reset: also reset the whole board.
    """

    jobs: PingPongOptions
    allow_board_reset: bool = False


@dataclass(slots=True, eq=False)
class Rig:
    """evidence: what the proof of two jobs in flight wrote, once it ran."""

    board: Board
    package: BoardPackage
    options: ConformOptions
    progress: Progress
    facts: BoardFacts
    generation: int = 0
    evidence: EvidenceRecord | None = None

    @contextmanager
    def session(self, name: str = "conform", chips: tuple[int, ...] = (), in_flight: int = 1) -> Iterator[Hand]:
        """A configured session in the hands of a naive user; closed at the end, by a reset where it must be.

        Raises NotConfigured where the board does not configure it.
        """
        code, session = self.configure(name, chips, in_flight)
        if session is None:
            raise NotConfigured(code, self.board.health().detail or "refused")
        hand = Hand(session, self.generation, self.options.jobs.spend)
        try:
            yield hand
        except BaseException:
            self.clear(session)
            raise
        if code := self.clear(session):
            raise Stopped(f"close gave code {code}")

    def configure(self, name: str, chips: tuple[int, ...] = (), in_flight: int = 1) -> tuple[int, Session | None]:
        self.generation += 1
        load = LoadOptions(
            chips or self.options.jobs.chips,
            self.package.numerics,
            self.package.max_lanes,
            self.package.max_lanes * self.package.context,
            max_in_flight=in_flight,
        )
        code, session = self.board.configure(self.package, load, name, self.generation)
        return code, None if code else session

    def clear(self, session: Session) -> int:
        """Close it; one that a job keeps open is ended by a reset of the configuration. The first code of close."""
        code = session.close()
        if code:
            self.board.reset(ResetScope.CONFIGURATION, None)
        return code

    def agreement(self) -> Agreement:
        """For two ways that are one computation where numerics are exact."""
        return Agreement(0.0 if self._is_exact else FAST_DISTANCE_MAX, self.package.golden_tolerance)

    def loose(self) -> Agreement:
        """For two ways that are the same only up to rounding, on any package."""
        bound = EXACT_DISTANCE_MAX if self._is_exact else FAST_DISTANCE_MAX
        return Agreement(bound, max(self.package.golden_tolerance, 0.01))

    @property
    def _is_exact(self) -> bool:
        return self.package.numerics == "exact"

    def prompt(self, length: int, salt: int = 0) -> Ids:
        """Ids by a formula, other for every salt, never an end token."""
        vocab, ends = self.package.vocab_size, self.package.eos_token_ids
        ids = [(7919 * (i + 1) + 104729 * (salt + 1) + i * i) % vocab for i in range(length)]
        return [(token + 1) % vocab if token in ends else token for token in ids]

    @property
    def one_chip_each(self) -> tuple[tuple[int, ...], ...]:
        return tuple((chip.chip,) for chip in self.facts.chips)


def judged(agreement: Agreement, passed: str, more: Mapping[str, Figure] | None = None) -> Outcome:
    """The outcome that follows from what was compared."""
    figures = {**(more or {}), **agreement.figures()}
    if agreement.compared == 0:
        return Outcome(Verdict.NOT_RUN, "there was nothing to compare in this context", figures)
    if agreement.differing:
        count = f"{agreement.differing} of {agreement.compared} comparisons differ; {agreement.first}"
        return Outcome(Verdict.FAILED, count, figures)
    return Outcome(Verdict.PASSED, passed, figures)


def not_supported(sentence: str, **figures: Figure) -> Outcome:
    return Outcome(Verdict.NOT_SUPPORTED, sentence, figures)


def failed(sentence: str, **figures: Figure) -> Outcome:
    return Outcome(Verdict.FAILED, sentence, figures)
