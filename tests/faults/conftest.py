"""Rigs for the fault table: the simulated board with faults, and either kind of board where no hook is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from executor_rig import ExecutorRig, byte_tokenizer
from fault_rig import Make, MakeAny, fault_rigs

from calserve.package.reader import open_package
from calserve.runtime.contract import BoardPackage
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE
from calserve.text.tokenizer import Tokenizer

Change = Callable[[BoardPackage], BoardPackage]


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))


@pytest.fixture
def make() -> Iterator[Make]:
    """make(*faults, profile=, jobs=, config=): over the simulated board; visits count from Ready."""
    with fault_rigs() as made:
        yield made


def _sim(package: Change) -> ExecutorRig:
    from calserve.runtime.sim import SimBoard, VirtualClock, sim_package

    clock, made = VirtualClock(), package(sim_package())
    return ExecutorRig(SimBoard(clock=clock), made, clock.now_ns, byte_tokenizer(made.vocab_size))


def _openvino(path: Path, package: Change) -> ExecutorRig:
    from calserve.runtime.openvino import OpenVinoBoard

    made = package(open_package(path))
    tokenizer = Tokenizer.from_file(made.files["tokenizer"], eos_ids=made.eos_token_ids)
    return ExecutorRig(OpenVinoBoard.open(), made, time.monotonic_ns, tokenizer)


@pytest.fixture(params=["sim", "openvino"])
def make_any(request: pytest.FixtureRequest) -> Iterator[MakeAny]:
    """make_any(package=change): a rig over each kind of board, loaded unless its package was changed."""
    rigs: list[ExecutorRig] = []

    def made(package: Change | None = None) -> ExecutorRig:
        change = package or replace
        rig = _sim(change) if request.param == "sim" else _openvino(request.getfixturevalue("tiny_package"), change)
        rigs.append(rig)
        if package is None:
            rig.load()
        return rig

    yield made
    for rig in rigs:
        rig.board.close()
