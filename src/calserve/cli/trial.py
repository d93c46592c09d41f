"""Gate F's board: opened for the package, each model configured, its goldens run, and released again.

Owns which board that is. Must not judge: the gate does. Life of the main object: a `Trial` is made with an open board,
tries models one after the other, and the board is closed behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from calserve.cli.boards import open_board, package_profile
from calserve.core.commands import ResetScope
from calserve.core.outcomes import Failure
from calserve.executor.awaiting import drive
from calserve.executor.clock import Clock
from calserve.executor.warmup import WarmAside, WarmTimes, warm_session
from calserve.package.gates.compatibility import NoSuchProfile
from calserve.progress import Progress
from calserve.runtime.contract import Board, BoardFacts, BoardPackage, LoadOptions, Session
from calserve.runtime.errors import meaning

Wrong = tuple[Literal["configure", "warm"], str]
SESSION = "validate"
GENERATION = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """`gates.compatibility.BoardTrial` over an open board."""

    board: Board
    clock: Clock
    progress: Progress

    @property
    def facts(self) -> BoardFacts:
        return self.board.describe()

    def attempt(self, package: BoardPackage, chips: tuple[int, ...]) -> Wrong | None:
        with self.progress.step(f"Configuring {package.model} on board {self.facts.name}"):
            options = LoadOptions(
                chips=chips,
                numerics=package.numerics,
                lanes=package.max_lanes,
                kv_tokens=package.max_lanes * package.context,
            )
            try:
                code, session = self.board.configure(package, options, SESSION, GENERATION)
            except Exception as error:  # a graph is hostile input to the board's own library
                return "configure", f"the board stopped configuring it: {type(error).__name__}: {_first_line(error)}"
        if code or session is None:
            return "configure", f"the board did not configure it (code {code}, {meaning(code).name})"
        with self.progress.step(f"Goldens and warm-up of {package.model}"):
            failed = self._warm(session, package)
        return None if failed is None else ("warm", failed.detail.rstrip("."))

    def _warm(self, session: Session, package: BoardPackage) -> Failure | None:
        """A release that fails is a reset: the next model must not find this one's session."""
        aside = WarmAside()
        try:
            warmed = drive(warm_session(session, package, GENERATION, WarmTimes(self.clock, is_thorough=True), aside))
        finally:
            if session.close():
                self.board.reset(ResetScope.SESSION, SESSION)
        return warmed if isinstance(warmed, Failure) else None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


@contextmanager
def open_trial(packages: tuple[BoardPackage, ...], chips: int, progress: Progress) -> Iterator[Trial]:
    """A board of at least `chips` chips for what the packages are compiled for. Raises NoSuchProfile, Refusal,
    BoardBusy."""
    first = packages[0]
    if first.board == "sim":
        with closing(_simulated(first)) as board:
            yield Trial(board, time.monotonic_ns, progress)
        return
    with closing(open_board(first.board, chips)) as board:
        yield Trial(board, time.monotonic_ns, progress)


def _simulated(package: BoardPackage) -> Board:
    """On virtual time: a golden run of a simulated board has nothing to wait for."""
    from calserve.runtime.sim import SimBoard
    from calserve.runtime.sim.figures import ProfileError

    try:
        profile = package_profile(package, None)
    except ProfileError as error:
        raise NoSuchProfile(str(error).rstrip(".")) from None
    return SimBoard(profile)
