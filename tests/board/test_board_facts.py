"""What a board says of itself, and opening and configuring it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from board_case import BoardCase
from harness import Hand, best, configure, every_chip, prompt, proves

from calserve.core.outcomes import FaultClass
from calserve.runtime.contract import (
    CAPABILITIES,
    Board,
    Evidence,
    InactiveLanePolicy,
    KvLayout,
    LoadOptions,
    Session,
)
from calserve.runtime.errors import classify
from calserve.runtime.lock import BoardBusy


def test_describe_an_open_board_names_chips_versions_and_proofs(board: Board) -> None:
    facts = board.describe()
    assert [chip.chip for chip in facts.chips] == list(range(len(facts.chips)))
    assert all(chip.cores >= 1 and chip.memory_bytes > 0 for chip in facts.chips)
    assert facts.versions
    assert set(facts.capabilities) <= set(CAPABILITIES)
    proven = {name for name, state in facts.capabilities.items() if state is Evidence.C0}
    assert proven == set(facts.proven_by)
    assert all(("simulated" in proof) == facts.simulated for proof in facts.proven_by.values())


def test_health_a_fresh_board_is_well(board: Board) -> None:
    assert board.health().ok


def test_telemetry_every_chip_reads_none_or_a_real_value(board: Board) -> None:
    for chip in board.describe().chips:
        seen = board.telemetry(chip.chip)
        for value in (seen.memory_total, seen.temperature_c, seen.power_w, seen.frequency_hz):
            assert value is None or value > 0
        assert seen.resets is None or seen.resets == 0
        if seen.memory_used is not None and seen.memory_total is not None:
            assert 0 <= seen.memory_used <= seen.memory_total


def test_open_a_board_already_open_is_one_clear_sentence(board: Board, case: BoardCase) -> None:
    with pytest.raises(BoardBusy) as refused:
        case.open()
    message = str(refused.value)
    assert "already open" in message
    assert "\n" not in message
    assert message.endswith(".")


def test_open_after_close_succeeds(case: BoardCase) -> None:
    case.open().close()
    again = case.open()
    assert again.health().ok
    again.close()


def test_configure_a_second_session_on_the_same_chips_gives_seven(
    board: Board, case: BoardCase, session: Session
) -> None:
    code, second = board.configure(case.package, every_chip(board), "second", 2)
    assert (code, second) == (7, None)
    assert best(Hand(session).prefill(Hand(session).line(0), prompt(case.package, 9))) >= 0


def test_configure_after_close_succeeds(board: Board, case: BoardCase, session: Session) -> None:
    assert session.close() == 0
    hand = Hand(configure(board, case.package, "main", 2), generation=2)
    hand.prefill(hand.line(0), prompt(case.package, 5))


def test_configure_two_sessions_follows_what_is_proven(board: Board, case: BoardCase) -> None:
    chips = [chip.chip for chip in board.describe().chips]
    if not proves(board, "concurrent_chips"):
        assert configure(board, case.package).close() == 0
        configure(board, case.package)
        code, second = board.configure(case.package, LoadOptions(chips=(chips[-1],)), "second", 2)
        assert code != 0
        assert second is None
        return
    hands = []
    for chip in chips:
        code, session = board.configure(case.package, LoadOptions(chips=(chip,)), f"chip{chip}", chip + 1)
        assert code == 0
        assert session is not None
        hands.append(Hand(session, generation=chip + 1))
    ids = prompt(case.package, 20)
    texts = [hand.greedy(hand.line(0), ids, 8) for hand in hands]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "change",
    [
        {"chips": ()},
        {"chips": (99,)},
        {"lanes": 10_000},
        {"lanes": -1},
        {"numerics": "nonsense"},
        {"dram_quota": 1},
        {"max_in_flight": 99},
    ],
    ids=str,
)
def test_configure_more_than_the_board_has_is_refused(board: Board, case: BoardCase, change: dict[str, object]) -> None:
    code, session = board.configure(case.package, replace(every_chip(board), **change), "main", 1)
    assert code != 0
    assert session is None
    configure(board, case.package)


def test_configure_a_package_of_another_board_is_an_artifact_fault(board: Board, case: BoardCase) -> None:
    alien = replace(case.package, board="no-such-board")
    code, session = board.configure(alien, every_chip(board), "main", 1)
    assert session is None
    assert classify(code) is FaultClass.ARTIFACT


def test_graphs_a_configured_session_declares_complete_contracts(session: Session, case: BoardCase) -> None:
    assert session.lanes >= 1
    assert session.kv_units >= session.lanes
    for name, graph in session.graphs.items():
        profile = graph.profile
        assert name == graph.name == profile.name
        assert profile.tasks
        assert 1 <= profile.batch <= session.lanes or profile.batch == 1
        assert profile.max_tokens == case.package.context
        assert 1 <= profile.max_row_tokens <= profile.max_job_tokens
        assert 1 <= profile.min_chunk_tokens <= profile.max_row_tokens
        assert graph.vocab_size == case.package.vocab_size
        shape, tile = graph.outputs["logits"].shape, graph.logits_tile
        assert tile >= 1
        if tile == 1:
            assert shape[-1] == graph.vocab_size
        else:
            assert (shape[0], shape[-1]) == (-(-graph.vocab_size // tile), tile)
        assert graph.inactive_lane_policy is not None or profile.batch == 1
        assert graph.inactive_lane_policy is not InactiveLanePolicy.OMIT or not profile.batch_is_fixed
        assert graph.min_flat_tokens == 1 or graph.scratch_units
        assert all(unit >= session.kv_units for unit in graph.scratch_units)
        paged = graph.kv_layout is KvLayout.PAGED
        assert {"block_indices", "past_lens"} <= set(graph.inputs) if paged else "tokens" in graph.inputs
        for key, tensor in (*graph.inputs.items(), *graph.outputs.items()):
            width = 2 if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype).itemsize
            assert key == tensor.name
            assert all(length >= 1 for length in tensor.shape)
            assert tensor.byte_size == width * int(np.prod(tensor.shape, dtype=np.int64))


def test_memory_a_configured_session_accounts_for_weights_and_kv(session: Session, case: BoardCase) -> None:
    use = session.memory()
    assert {"weights", "kv", "workspace", "io"} <= set(use)
    assert use["weights"] == case.package.weight_bytes
    assert use["kv"] > 0


def test_configure_zero_options_take_the_package_pool(session: Session, case: BoardCase) -> None:
    assert session.lanes == case.package.max_lanes
    assert session.kv_units * session.unit_tokens >= session.lanes * case.package.context
