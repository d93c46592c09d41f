"""The proofs on the board that computes, with the tiny model. No time is judged here: this machine has other work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conform_rig import MADE, SpoiledBoard, prove

from calserve.accept.conform.proof import ConformOptions, Rig
from calserve.accept.conform.record import Conformance
from calserve.accept.conform.run import run_conformance
from calserve.accept.pingpong import PingPongOptions
from calserve.package import open_package
from calserve.progress import SilentProgress
from calserve.runtime.contract import BoardPackage
from calserve.runtime.openvino import OpenVinoBoard

pytestmark = pytest.mark.slow


def counter() -> Any:
    """A clock that only counts: nothing here is about time."""
    ticks = iter(range(1, 1 << 40))
    return lambda: next(ticks)


@pytest.fixture(scope="module")
def package(tiny_package: Path) -> BoardPackage:
    return open_package(tiny_package)


@pytest.fixture(scope="module")
def record(package: BoardPackage, tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    board = OpenVinoBoard.open(1, lock_directory=tmp_path_factory.mktemp("lock"))
    try:
        return run_conformance(board, package, ConformOptions(PingPongOptions(counter())), MADE, SilentProgress())
    finally:
        board.close()


def test_board_with_a_real_model_proves_everything_it_declares(record: Conformance) -> None:
    assert [(proof.id, proof.sentence) for proof in record.proofs if proof.verdict == "failed"] == []
    assert record.unproven_claims == ()
    states = {each.name: each.state for each in record.capabilities}
    for name in ("batch_lanes", "incremental_prefill", "mixed_batch", "session_reset", "resident_profiles"):
        assert states[name] == "C0"


def test_board_with_one_chip_and_one_job_says_what_it_does_not_offer(record: Conformance) -> None:
    said = {proof.id: (proof.verdict, proof.sentence) for proof in record.proofs}
    assert said["concurrent_chips"] == ("not_supported", "the board was opened with one chip")
    assert "code 27" in said["concurrent_jobs"][1]
    assert "code 27" in said["job_cancel"][1]
    assert "code 7" in said["multi_package"][1]


def test_exact_package_is_compared_bit_for_bit(record: Conformance) -> None:
    figures = record.proof("batch_lanes").figures
    assert (figures["bound"], figures["differing"], figures["max_abs"]) == ("equal bits", 0, 0.0)
    assert int(figures["compared"]) > 700


@pytest.fixture
def halves(package: BoardPackage, tmp_path: Path) -> Iterator[Rig]:
    board = OpenVinoBoard.open(2, lock_directory=tmp_path)
    options = ConformOptions(PingPongOptions(counter()))
    yield Rig(board, package, options, SilentProgress(), board.describe())
    board.close()


def test_two_chips_are_not_changed_by_one_another(halves: Rig) -> None:
    assert prove("siblings", halves).verdict == "passed"
    seen = prove("concurrent_chips", halves)
    assert (seen.figures["compared"], seen.figures["differing"]) == (480, 0)


def test_half_a_board_can_be_configured_again_and_again(halves: Rig) -> None:
    """The library keeps cores it reserved for as long as its own root object lives."""
    for _ in range(8):
        with halves.session("again", (0,)):
            pass


class SwapsBlocks(SpoiledBoard):
    """Jobs of three rows or more: the first blocks of the first two rows change places."""


class _Swapping:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def submit(self, spec: Any, buffers: Any) -> Any:
        if len(spec.rows) > 2:
            begins, blocks = buffers.host("block_indices_begins"), buffers.host("block_indices")
            first, second = int(begins[0]), int(begins[1])
            blocks[[first, second]] = blocks[[second, first]]
        return self._session.submit(spec, buffers)


def test_board_that_swaps_blocks_of_two_rows_fails_lanes_and_profiles(package: BoardPackage, tmp_path: Path) -> None:
    board: Any = SwapsBlocks(OpenVinoBoard.open(1, lock_directory=tmp_path), _Swapping)
    rig = Rig(board, package, ConformOptions(PingPongOptions(counter())), SilentProgress(), board.describe())
    try:
        assert prove("batch_lanes", rig).verdict == "failed"
        assert prove("mixed_batch", rig).verdict == "failed"
        fast = replace(package, numerics="fast", golden_tolerance=0.5)
        assert prove("batch_lanes", replace(rig, package=fast)).verdict == "failed"
    finally:
        board.close()
