"""The boards under the contract suite, as cases: what to open and what to load, nothing about how it behaves.

A test gets one case at a time and asks the board itself what it can do. No test may look at a case's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from board_case import BoardCase
from harness import Hand, configure

from calserve.package import open_package
from calserve.runtime.contract import Board, Session
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE


def _openvino(chips: int) -> Callable[[pytest.FixtureRequest], BoardCase]:
    def make(request: pytest.FixtureRequest) -> BoardCase:
        from calserve.runtime.openvino import OpenVinoBoard

        package = open_package(request.getfixturevalue("tiny_package"))
        return BoardCase(f"openvino-{chips}", lambda: OpenVinoBoard.open(chips), package)

    return make


def _sim(profile_name: str) -> Callable[[pytest.FixtureRequest], BoardCase]:
    def make(request: pytest.FixtureRequest) -> BoardCase:
        from calserve.runtime.sim import PROFILES, SimBoard, sim_package

        profile = PROFILES[profile_name]
        return BoardCase(f"sim-{profile_name}", lambda: SimBoard(profile, lock_name="sim"), sim_package(profile))

    return make


CASES = {
    "openvino-1chip": _openvino(1),
    "openvino-2chip": _openvino(2),
    "sim-assumed-lanes": _sim("assumed-lanes"),
    "sim-assumed-pingpong": _sim("assumed-pingpong"),
    "sim-calculet-2chip": _sim("calculet-2chip"),
}


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs on this machine must not make the suite fail, nor the other way round."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> BoardCase:
    made: BoardCase = request.param(request)
    return made


@pytest.fixture
def board(case: BoardCase) -> Iterator[Board]:
    opened = case.open()
    yield opened
    opened.close()


@pytest.fixture
def session(board: Board, case: BoardCase) -> Session:
    return configure(board, case.package)


@pytest.fixture
def hand(session: Session) -> Hand:
    return Hand(session)
