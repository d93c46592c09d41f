"""The production core and executor over each kind of board: lane KV with fixed rows, paged KV with free rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_rig import ExecutorRig, byte_tokenizer

from calserve.package.reader import open_package
from calserve.runtime.contract import Board, BoardPackage, Evidence
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE
from calserve.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))


def _sim() -> tuple[Board, BoardPackage, ExecutorRig]:
    from calserve.runtime.sim import SimBoard, VirtualClock, sim_package

    clock, package = VirtualClock(), sim_package()
    board = SimBoard(clock=clock)
    return board, package, ExecutorRig(board, package, clock.now_ns, byte_tokenizer(package.vocab_size))


def openvino_rig(path: Path) -> tuple[Board, BoardPackage, ExecutorRig]:
    """A rig over a package directory on the real board."""
    from calserve.runtime.openvino import OpenVinoBoard

    package = open_package(path)
    board = OpenVinoBoard.open()
    tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    return board, package, ExecutorRig(board, package, time.monotonic_ns, tokenizer)


@pytest.fixture(params=["lanes", "paged"])
def rig(request: pytest.FixtureRequest) -> Iterator[ExecutorRig]:
    """A loaded rig, exact numerics; nothing may be held when the test is over."""
    if request.param == "lanes":
        board, _, made = _sim()
    else:
        board, _, made = openvino_rig(request.getfixturevalue("tiny_package"))
    made.load()
    yield made
    board.close()


@pytest.fixture
def real_rig(exact_package: Path) -> Iterator[ExecutorRig]:
    """The real model in exact numerics."""
    board, _, made = openvino_rig(exact_package)
    made.load()
    yield made
    board.close()


def is_proven(rig: ExecutorRig, capability: str) -> bool:
    return rig.board.describe().capabilities.get(capability) is Evidence.C0
