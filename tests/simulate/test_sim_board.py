"""What the board says of itself, what it refuses to configure, and what host buffers refuse."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from sim_rig import LANES, SMALL, Rig, row_of

from calserve.core.job import Bank, LogitsWanted
from calserve.runtime.contract import CAPABILITIES, Evidence, LoadOptions
from calserve.runtime.lock import BoardBusy
from calserve.runtime.sim import PROFILES, SimBoard, SimProfile, sim_package
from calserve.runtime.sim.profile import SimTiming

GIB = 1 << 30
CALCULET = PROFILES["calculet-2chip"]


def test_calculet_profile_has_exactly_the_seeds_states() -> None:
    facts = SimBoard(CALCULET).describe()
    assert facts.simulated
    assert [(chip.chip, chip.cores) for chip in facts.chips] == [(0, 2), (1, 2)]
    assert CALCULET.profiles == (1,)
    assert not facts.proven_by
    states = {name: state.name for name, state in facts.capabilities.items() if state is not Evidence.C3}
    assert states == {
        "concurrent_jobs": "C1",
        "mixed_batch": "C4",
        "kv_trim": "C1",
        "kv_shift": "C1",
        "calcore_affinity": "C4",
    }


def test_calculet_profile_reserves_the_seeds_bytes_on_each_chip() -> None:
    rig = Rig.on(CALCULET)
    memory = rig.session.memory()
    assert memory["kv"] == 4_026_531_840  # 3.750 GiB: 48 layers x 4 heads x 40960 x 128 x K, V x 2 bytes
    used = rig.board.telemetry(0).memory_used
    assert abs(used - 14.075 * GIB) < 1e6
    assert used == rig.board.telemetry(1).memory_used


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_profile_every_figure_names_its_source(profile: SimProfile) -> None:
    plain = {
        *("name", "is_assumed", "timing", "capabilities", "sources", "versions"),
    }
    figures = {f.name for f in fields(profile) if getattr(profile, f.name) is not None} - plain
    if not profile.kv_lanes:  # row i is lane i: no figure at all
        figures.remove("kv_lanes")
    assert figures | {f.name for f in fields(SimTiming)} == set(profile.sources)
    assert all(text.startswith(("seed 0", "assumed: ")) for text in profile.sources.values())
    assert set(profile.capabilities) == set(CAPABILITIES)


def test_assumed_profile_names_the_run_that_proves_each_capability() -> None:
    facts = SimBoard(LANES).describe()
    proven = {name for name, state in facts.capabilities.items() if state is Evidence.C0}
    assert "batch_lanes" in proven
    assert set(facts.proven_by) == proven
    assert all(run.startswith("simulated: ") for run in facts.proven_by.values())


@pytest.mark.parametrize(
    "bad",
    [
        {"vocab": 48},
        {"vocab": 512, "logits_dtype": "bfloat16"},
        {"logits_dtype": "float16"},
        {"profiles": (4, 1)},
        {"profiles": (4, 8)},
        {"profiles": (1, 32)},
        {"session_chips": (3,)},
        {"max_in_flight": 3},
        {"context": 0},
        {"capabilities": {"telepathy": Evidence.C0}},
        {"capabilities": {**LANES.capabilities, "telepathy": Evidence.C4}},
        {"capabilities": {**LANES.capabilities, "batch_lanes": Evidence.C1}},
        {"is_assumed": False},
        {"eos_token_ids": (64,)},
        {"logits_tile": 0},
        {"session_chips": ()},
        {"calbins_per_board": 3},
    ],
    ids=str,
)
def test_profile_with_an_impossible_figure_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="board profile assumed-lanes: "):
        replace(LANES, **bad)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (LoadOptions(chips=()), 5),
        (LoadOptions(chips=(2,)), 5),
        (LoadOptions(chips=(0, 0)), 5),
        (LoadOptions(chips=(0,), lanes=17), 5),
        (LoadOptions(chips=(0,), kv_tokens=100), 5),
        (LoadOptions(chips=(0,), numerics="fast"), 5),
        (LoadOptions(chips=(0,), max_in_flight=3), 27),
        (LoadOptions(chips=(0,), max_in_flight=0), 27),
        (LoadOptions(chips=(0,), dram_quota=GIB), 1),
    ],
    ids=str,
)
def test_configure_with_impossible_options_is_refused(options: LoadOptions, code: int) -> None:
    board = SimBoard(SMALL)
    assert board.configure(sim_package(SMALL), options, "s", 1) == (code, None)
    assert board.telemetry(0).memory_used == 0


def test_configure_beyond_what_is_proven_is_refused() -> None:
    board = SimBoard(CALCULET)
    package = sim_package(CALCULET)
    assert board.configure(package, LoadOptions(chips=(0,)), "s", 1) == (5, None)
    assert board.configure(package, LoadOptions(chips=(0, 1), max_in_flight=2), "s", 1) == (27, None)


def test_configure_of_a_foreign_package_is_refused() -> None:
    board = SimBoard(SMALL)
    options = LoadOptions(chips=(0,))
    package = sim_package(SMALL)
    for bad in ({"board": "openvino"}, {"settings": {}}, {"graphs": ()}, {"context": 4096}):
        assert board.configure(replace(package, **bad), options, "s", 1) == (19, None)


def test_configure_beyond_a_chips_memory_is_refused_and_close_gives_it_back() -> None:
    tight = replace(SMALL, dram_bytes=3 * GIB)
    board = SimBoard(tight)
    package = sim_package(tight)
    options = LoadOptions(chips=(0,))
    heavy = replace(package, weight_bytes=3 * GIB)
    assert board.configure(heavy, options, "s", 1) == (1, None)
    code, session = board.configure(package, options, "s", 1)
    assert code == 0
    # 2 GiB weights + 16 lanes x 128 tokens x 32 KiB + 0.5 GiB workspace + two sets of the largest I/O
    assert session.memory() == {
        "weights": 2 * GIB,
        "kv": 64 << 20,
        "workspace": GIB // 2,
        "io": 2 * (5 * 64 + 16 * 64 * 4),
    }
    assert board.telemetry(0).memory_used == sum(session.memory().values())
    assert session.close() == 0
    assert board.telemetry(0).memory_used == 0


def test_second_configure_is_code_7_on_a_board_with_one_calbin_and_on_shared_chips() -> None:
    one = replace(SMALL, calbins_per_board=1)
    board = SimBoard(one)
    package = sim_package(one)
    code, session = board.configure(package, LoadOptions(chips=(0,)), "s", 1)
    assert code == 0
    assert board.configure(package, LoadOptions(chips=(1,)), "t", 1) == (7, None)
    assert session.close() == 0
    assert board.configure(package, LoadOptions(chips=(1,)), "t", 1)[0] == 0

    board = SimBoard(SMALL)
    assert board.configure(package, LoadOptions(chips=(0,)), "s", 1)[0] == 0
    assert board.configure(package, LoadOptions(chips=(0, 1)), "t", 1) == (7, None)
    assert board.configure(package, LoadOptions(chips=(1,)), "t", 1)[0] == 0


def test_configure_under_a_name_that_is_taken_is_code_2() -> None:
    board = SimBoard(SMALL)
    package = sim_package(SMALL)
    assert board.configure(package, LoadOptions(chips=(0,)), "s", 1)[0] == 0
    assert board.configure(package, LoadOptions(chips=(1,)), "s", 1) == (2, None)


def test_kv_tokens_buy_whole_lanes() -> None:
    _, session = SimBoard(SMALL).configure(sim_package(SMALL), LoadOptions(chips=(0,), kv_tokens=128 * 5 + 127), "s", 1)
    assert session.lanes == 5


def test_second_opener_is_told_in_one_sentence_and_close_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = SimBoard(SMALL)
    with pytest.raises(BoardBusy, match="already open"):
        SimBoard(device=board.device)
    board.close()
    board.close()
    SimBoard(device=board.device).close()

    monkeypatch.setenv("CALSERVE_RUNTIME_DIR", str(tmp_path))
    named = SimBoard(SMALL, lock_name="sim")
    with pytest.raises(BoardBusy):
        SimBoard(SMALL, lock_name="sim")
    with pytest.raises(BoardBusy):
        SimBoard(device=board.device, lock_name="sim")
    named.close()
    SimBoard(SMALL, lock_name="sim").close()


def test_board_on_an_existing_device_takes_nothing_else() -> None:
    device = SimBoard(SMALL).device
    with pytest.raises(ValueError, match="existing device"):
        SimBoard(CALCULET, device=device)


def test_telemetry_is_declared_or_none_and_never_a_made_up_zero() -> None:
    told = SimBoard(LANES).telemetry(1)
    assert (told.temperature_c, told.throttled, told.memory_total) == (55.0, False, 16 * GIB)
    untold = SimBoard(CALCULET).telemetry(0)
    assert (untold.temperature_c, untold.power_w, untold.frequency_hz, untold.throttled) == (None,) * 4
    with pytest.raises(KeyError):
        SimBoard(LANES).telemetry(2)


def test_cancel_of_a_job_is_not_supported() -> None:
    rig = Rig.on()
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[5]])
    assert rig.session.cancel(ticket) == 27


def test_buffers_refuse_what_their_graph_does_not_have() -> None:
    _, buffers = Rig.on().session.allocate("prefill_b1", Bank.PING)
    assert buffers.map("nothing") == 4
    assert buffers.slice("nothing", (1,)) == 4
    assert buffers.slice("logits", (1, 64)) == 27
    assert buffers.slice("tokens", (1, 1, 1)) == 22
    assert buffers.slice("tokens", (1, 129)) == 14
    assert buffers.slice("tokens", (1, 0)) == 14
    assert buffers.set_csr("nothing", 1) == 4
    assert buffers.set_csr("total_sequence_length", 129) == 14
    assert buffers.set_csr("total_sequence_length", -1) == 14


def test_buffers_keep_their_addresses_and_reset_needs_undone_slices() -> None:
    _, buffers = Rig.on().session.allocate("prefill_b1", Bank.PING)
    address = buffers.host("tokens").ctypes.data
    buffers.host("tokens")[...] = 7
    assert buffers.slice("tokens", (1, 9)) == 0
    assert buffers.reset() == 4
    assert buffers.undo_slices() == 0
    assert buffers.reset() == 0
    assert not buffers.host("tokens").any()
    assert buffers.host("tokens").ctypes.data == address


def test_sliced_input_moves_fewer_bytes_and_gives_the_same_token() -> None:
    rig = Rig.on()
    prompt = [2, 7, 12]
    spec = rig.spec("prefill_b1", [row_of(0, 0, 3)])
    whole = rig.run("prefill_b1", spec.rows, [prompt])
    buffers = rig.buffers(spec, [prompt])
    assert buffers.slice("tokens", (1, 3)) == buffers.slice("positions", (1, 3)) == 0
    code, ticket = rig.session.submit(spec, buffers)
    assert code == 0
    assert rig.finish(ticket).h2d_ns == 10_000 + (12 + 12 + 4) * 100 // 1024
    assert rig.best(spec, buffers) == whole


def test_submit_refuses_what_does_not_belong_together() -> None:
    rig = Rig.on()
    spec = rig.spec("decode_b4", [row_of(0, 0, 1)], Bank.PING)
    _, unbound = rig.session.allocate("decode_b4", Bank.PING)
    assert rig.session.submit(spec, unbound) == (16, None)
    buffers = rig.buffers(spec, [[5]])
    for wrong in ({"session": "t"}, {"generation": 2}, {"graph": "decode_b8"}, {"bank": Bank.PONG}):
        assert rig.session.submit(replace(spec, **wrong), buffers) == (4, None)
    assert rig.session.allocate("decode_b2", Bank.PING) == (4, None)
    prefill = rig.spec("prefill_b1", [replace(row_of(0, 0, 3), logits=LogitsWanted.ALL)])
    assert rig.session.submit(prefill, rig.buffers(prefill, [[1, 2, 3]])) == (27, None)


def test_one_of_two_csrs_set_is_not_enough_to_submit() -> None:
    rig = Rig.on()
    spec = rig.spec("decode_b1", [row_of(0, 0, 1)])
    buffers = rig.buffers(spec, [[5]])
    assert buffers.reset() == 0
    for name in ("tokens", "positions", "logits"):
        assert buffers.map(name) == 0
    assert buffers.set_csr("total_sequence_length", 1) == 0
    assert rig.session.submit(spec, buffers) == (16, None)
