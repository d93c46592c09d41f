"""Packages for the simulated board made from a geometry: what they hold, and that the board runs and refuses them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sim_rig_path import Rig

from calserve.package import PackageError, open_package
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.package.reader import read_tree
from calserve.progress import SilentProgress
from calserve.runtime.contract import BoardPackage, LoadOptions
from calserve.runtime.sim import PROFILES, ProfileError, SimBoard
from calserve.runtime.sim.oracle import greedy_tokens
from calserve.text.tokenizer import Tokenizer

GIB = 1 << 30
MIB = 1 << 20
LANES, CALCULET = PROFILES["assumed-lanes"], PROFILES["calculet-2chip"]


def packed(target: Path, name: str = "smollm2-135m", **options: object) -> Path:
    pack_sim(load_geometry(name), target, SimOptions(**options), SilentProgress())  # type: ignore[arg-type]
    return target


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("sim") / "small")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("sim") / "qwen3", "qwen3-30b-a3b")


# --- what is in it ------------------------------------------------------------------------------------------------


def test_sim_package_opens_with_the_geometrys_figures_and_no_weights(small: Path) -> None:
    package = open_package(small)
    assert (package.board, package.model, package.weights) == ("sim", "smollm2-135m", "none")
    assert (package.context, package.max_lanes, package.profiles) == (4096, 16, (1, 4, 8, 16))
    assert dict(package.kv) == {
        "n_layers": 30, "n_kv_heads": 3, "head_dim": 64, "unit_tokens": 4096, "dtype": "bfloat16",
    }  # fmt: skip
    assert package.weight_bytes == 136_616_805  # 134,515,008 x 130 / 128
    assert [graph.name for graph in package.graphs] == [
        "prefill_b1",
        "decode_b1",
        "decode_b4",
        "decode_b8",
        "decode_b16",
    ]
    assert sum(path.stat().st_size for path in small.rglob("*")) < 100_000


def test_sim_package_speaks_bytes_and_its_goldens_are_the_oracles(small: Path) -> None:
    package = open_package(small)
    assert package.vocab_size == 256
    tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    assert tokenizer.encode("Water") == [87, 97, 116, 101, 114]
    lengths = [len(golden.prompt_ids) for golden in package.goldens]
    assert lengths == [1, 16, 33]
    for golden in package.goldens:
        assert list(golden.output_ids) == greedy_tokens(golden.prompt_ids, 16, 256, "smollm2-135m")


def test_sim_package_of_the_specifications_model_spans_both_chips_within_its_reservation(qwen3: Path) -> None:
    tree = read_tree(qwen3)
    memory, model = tree.memory, tree.manifest.models[0]
    assert (model.chip_mask, model.lanes, model.context) == (3, 1, 40_960)
    assert memory.models[0].weight_bytes == 18_187_039_014  # 16.938 GiB
    assert memory.models[0].kv_bytes == 4_026_531_840  # 3.750 GiB
    weights = {section.chip_mask: section.bytes for section in memory.sections if section.kind == "weights"}
    assert weights == {1: 9_404_904_636, 2: 8_782_134_378}
    # 14.075 GiB a chip, down to a whole 2 MiB.
    assert [chip.bytes for chip in memory.chips] == [7206 * 2 * MIB] * 2
    assert all(chip.bytes + chip.guard_bytes <= 16 * GIB for chip in memory.chips)


def test_sim_package_says_what_stands_in_for_the_models_own(small: Path) -> None:
    told = json.loads((small / "build-provenance.json").read_text("utf-8"))
    assert told["source"]["vocabulary"] == "256 byte tokens in place of the model's 49152"
    assert told["source"]["figures"]["n_layers"].startswith("config.json")
    assert told["command"][:6] == ["calserve", "pack", "--target", "sim", "--geometry", "smollm2-135m"]


def test_sim_package_is_the_same_twice_and_another_with_another_choice(small: Path, tmp_path: Path) -> None:
    digest = open_package(small).hash
    assert open_package(packed(tmp_path / "again")).hash == digest
    choices = ({"context": 2048}, {"alias": "other"}, {"profiles": (1, 4)}, {"weights": "int4"})
    others = {open_package(packed(tmp_path / str(at), **each)).hash for at, each in enumerate(choices)}
    assert len(others | {digest}) == 5


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("smollm2-135m", {"chips": 2, "board_profile": "assumed-lanes"}, "3 KV heads, which 2 chips cannot share"),
        ("smollm2-135m", {"chips": 3}, "spans 1 or 2 chips, not 3"),
        ("llama-3.2-1b", {"chips": 1, "board_profile": "calculet-2chip"}, "spans 2 chips, not 1"),
        ("smollm2-135m", {"profiles": (1, 2)}, "profiles must rise from 1"),
        ("smollm2-135m", {"profiles": (4, 8)}, "profiles must rise from 1"),
        ("smollm2-135m", {"alias": "no name"}, "cannot be a model's name"),
        ("smollm2-135m", {"context": 32}, "at least 64 tokens"),
        ("smollm2-135m", {"context": 8193}, "trained for 8192 tokens"),
        (
            "qwen3-30b-a3b",
            {"chips": 1, "board_profile": "assumed-lanes"},
            "bytes on a chip; board profile assumed-lanes",
        ),
    ],
)
def test_sim_package_that_cannot_be_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(PackageError, match=words):
        packed(tmp_path / "p", name, **options)
    assert list(tmp_path.iterdir()) == []


def test_sim_package_for_a_board_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no board profile"):
        packed(tmp_path / "p", board_profile="none")


# --- on the board -------------------------------------------------------------------------------------------------


def load(board: SimBoard, package: BoardPackage, chips: tuple[int, ...] = (0,), **options: int) -> int:
    code, _ = board.configure(package, LoadOptions(chips, **options), f"s{chips}", 1)
    return int(code)


@pytest.mark.parametrize("chip", [0, 1])
def test_sim_package_answers_with_the_oracles_tokens_on_either_chip(small: Path, chip: int) -> None:
    package, board = open_package(small), SimBoard(LANES)
    code, session = board.configure(package, LoadOptions((chip,)), "s", 1)
    assert code == 0
    rig = Rig(replace(LANES, vocab=256))
    rig.board, rig.session, rig.generation = board, session, 1
    golden = package.goldens[1]
    assert rig.generate(golden.prompt_ids, 16) == list(golden.output_ids)


def test_sim_board_reserves_the_packages_own_address_plan(small: Path) -> None:
    package, board = open_package(small), SimBoard(LANES)
    code, session = board.configure(package, LoadOptions((1,), lanes=2), "s", 1)
    assert code == 0
    kv = 2 * 30 * 3 * 64 * 2 * 4096 * 16  # the profile's own 32 KiB a token would be 2 GiB
    assert session.memory()["kv"] == kv
    assert session.memory()["weights"] == 136_616_805
    end = max(section.address + section.byte_count for section in package.sections)
    assert [board.telemetry(chip).memory_used for chip in (0, 1)] == [0, end]
    assert session.close() == 0
    assert board.telemetry(1).memory_used == 0


def test_sim_board_reserves_the_specifications_14_gib_on_each_chip(qwen3: Path) -> None:
    board = SimBoard(CALCULET)
    assert load(board, open_package(qwen3), (0, 1)) == 0
    assert [f"{board.telemetry(chip).memory_used / GIB:.2f}" for chip in (0, 1)] == ["14.07", "14.07"]


def test_sim_board_takes_a_longer_context_than_its_own_calbins_where_the_plan_has_the_memory(small: Path) -> None:
    assert LANES.context == 2048 < open_package(small).context
    assert load(SimBoard(LANES), open_package(small)) == 0


def test_sim_board_without_the_memory_refuses_with_code_1(small: Path) -> None:
    assert load(SimBoard(replace(LANES, dram_bytes=GIB)), open_package(small)) == 1


def test_sim_board_refuses_a_quota_below_the_plan_with_code_1(small: Path) -> None:
    assert load(SimBoard(LANES), open_package(small), dram_quota=GIB) == 1


def test_sim_board_that_times_no_such_batch_refuses_with_code_19(small: Path) -> None:
    one = replace(LANES, profiles=(1,), timing=replace(LANES.timing, decode_ns={1: 1}))
    assert load(SimBoard(one), open_package(small)) == 19


def test_sim_board_refuses_chips_the_plan_is_not_for_with_code_5(small: Path, qwen3: Path) -> None:
    assert load(SimBoard(LANES), open_package(small), (0, 1)) == 5
    assert load(SimBoard(CALCULET), open_package(small), (0, 1)) == 19  # and batches it does not time
    assert load(SimBoard(LANES), open_package(qwen3), (0,)) == 5
    pinned = replace(open_package(small), pinned=True)
    assert load(SimBoard(LANES), pinned, (1,)) == 5
    assert load(SimBoard(LANES), pinned, (0,)) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"board": "other"},
        {"settings": {}},
        {"settings": {"model_key": "xyz"}},
        {"vocab_size": 255},
        {"vocab_size": 4},
        {"kv": {"unit_tokens": 32}},
        {"graphs": ()},
    ],
    ids=str,
)
def test_sim_board_refuses_what_is_no_package_for_it_with_code_19(small: Path, change: dict[str, object]) -> None:
    assert load(SimBoard(LANES), replace(open_package(small), **change)) == 19  # type: ignore[arg-type]
