"""A side in its own process: loads once, then answers one JSON line with one JSON line.

Started by `calserve bench-worker`; the composition root hands in how to open a board. The request is a Work;
the answer a Run, or `{"error": ...}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calserve.bench.workload import Work
from calserve.package.reader import open_package
from calserve.runtime.contract import Board, BoardPackage, LoadOptions

SIDES = ("raw", "bare", "genai", "genai-hints", "client", "overhead")

Side = Callable[[Work], dict[str, Any]]
OpenBoard = Callable[[BoardPackage], Board]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """ir: directory of the IR the package was made from (genai). port, alias: where the server is (client)."""

    side: str
    model: Path
    ir: Path | None = None
    port: int = 0
    alias: str = ""


def run_worker(options: WorkerOptions, open_board: OpenBoard) -> None:
    """Load, say so, then answer until standard input ends."""
    side = _side(options, open_board)
    print(json.dumps({"ready": options.side}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        work = Work(tuple(map(tuple, asked.pop("prompts"))), **asked)
        try:
            answer = side(work)
        except Exception as error:  # told to the orchestrator, which stops; a worker never dies half way
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _side(options: WorkerOptions, open_board: OpenBoard) -> Side:
    if options.side not in SIDES:
        raise SystemExit(f"there is no side {options.side!r}; there are {', '.join(SIDES)}")
    if options.side == "client":
        from calserve.bench.client import measure

        return lambda work: measure("127.0.0.1", options.port, options.alias, work)
    package = open_package(options.model)
    if options.side == "bare":
        from calserve.bench.bare import BareLoop

        return _timed(BareLoop(package).run)
    if options.side.startswith("genai"):
        from calserve.bench.peers import GenAiLoop

        assert options.ir is not None
        hints = package.settings if options.side == "genai-hints" else {}
        return _timed(GenAiLoop(options.ir, hints, package.max_lanes * package.context).run)
    if options.side == "overhead":
        from calserve.bench.overhead import OverheadSide

        return OverheadSide(package, open_board(package)).run
    return _timed(_raw_loop(package, open_board(package)))


def _timed(run: Callable[[Work], Any]) -> Side:
    return lambda work: asdict(run(work))


def _raw_loop(package: BoardPackage, board: Board) -> Callable[[Work], Any]:
    from calserve.bench.raw import RawLoop

    code, session = board.configure(package, LoadOptions(chips=(0,)), "raw", 1)
    if session is None:
        raise SystemExit(f"configure: code {code}: {board.health().detail}")
    return RawLoop(session, 1).run
