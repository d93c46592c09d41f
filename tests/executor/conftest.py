"""The production core and executor over each kind of board: lane KV with fixed rows, paged KV with free rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_rig import ExecutorRig, byte_tokenizer
from fault_rig import Make, fault_rigs

from calserve.core.config import SchedulerConfig
from calserve.package.reader import open_package
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE
from calserve.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))


def sim_rig(config: SchedulerConfig | None = None) -> ExecutorRig:
    """Lane KV, rows bound to lanes, on virtual time."""
    from calserve.runtime.sim import SimBoard, VirtualClock, sim_package

    clock, package = VirtualClock(), sim_package()
    return ExecutorRig(SimBoard(clock=clock), package, clock.now_ns, byte_tokenizer(package.vocab_size), config)


def openvino_rig(path: Path, config: SchedulerConfig | None = None) -> ExecutorRig:
    """Paged KV, free rows: a package directory on the real board."""
    from calserve.runtime.openvino import OpenVinoBoard

    package = open_package(path)
    tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    return ExecutorRig(OpenVinoBoard.open(), package, time.monotonic_ns, tokenizer, config)


@pytest.fixture(params=["lanes", "paged"])
def make_rig(request: pytest.FixtureRequest) -> Iterator[Callable[[SchedulerConfig | None], ExecutorRig]]:
    """A loaded rig in exact numerics over each kind of board, with a configuration of the test's own."""
    made: list[ExecutorRig] = []

    def make(config: SchedulerConfig | None = None) -> ExecutorRig:
        lanes = request.param == "lanes"
        rig = sim_rig(config) if lanes else openvino_rig(request.getfixturevalue("tiny_package"), config)
        made.append(rig)
        rig.load()
        return rig

    yield make
    for rig in made:
        rig.board.close()


@pytest.fixture
def rig(make_rig: Callable[[SchedulerConfig | None], ExecutorRig]) -> ExecutorRig:
    return make_rig(None)


@pytest.fixture
def real_rig(exact_package: Path) -> Iterator[ExecutorRig]:
    """The real model in exact numerics."""
    made = openvino_rig(exact_package)
    made.load()
    yield made
    made.board.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """A loaded rig over a simulated board; the faults count visits from the moment it is Ready."""
    with fault_rigs() as made:
        yield made
