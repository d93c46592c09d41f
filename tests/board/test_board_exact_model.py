"""Exact numerics on the real model: the same bits alone, batched and chunked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from board_case import BoardCase
from harness import Hand, configure
from test_board_isolation import check_alone_equals_batched, check_chunks, cut

from calserve.package import open_package
from calserve.runtime.openvino import OpenVinoBoard

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def real(exact_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BoardCase, Hand]]:
    package = open_package(exact_package)
    board = OpenVinoBoard.open(lock_directory=tmp_path_factory.mktemp("lock"))
    yield BoardCase("real", lambda: board, package), Hand(configure(board, package))
    board.close()


def test_decode_with_any_mates_first_middle_and_last_equals_alone(real: tuple[BoardCase, Hand]) -> None:
    case, hand = real
    check_alone_equals_batched(hand, case, (0, 7, 15))
    for line in [hand.line(lane) for lane in range(hand.session.lanes)]:
        hand.session.kv.release(line.lane)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 127, 129])
def test_prefill_in_chunks_equals_whole(real: tuple[BoardCase, Hand], length: int) -> None:
    case, hand = real
    for size in (5, 16, 32):
        check_chunks(hand, case, length, cut(length, size, 2))
