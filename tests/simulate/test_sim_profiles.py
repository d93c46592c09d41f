"""Board profiles as files: what ships, what a file may say, and one sentence for each way to get it wrong."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from calserve.core.board import RowBinding
from calserve.runtime.contract import CAPABILITIES, Evidence
from calserve.runtime.sim import PROFILES, ProfileError, SimBoard, SimProfile, load_profile, sim_package
from calserve.runtime.sim import profile as profile_module
from calserve.runtime.sim.figures import SimTiming

SHIPPED = Path(profile_module.__file__).parent / "profiles"


def good() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((SHIPPED / "assumed-lanes.yaml").read_text("utf-8"))
    return tree


def write(folder: Path, tree: object) -> Path:
    path = folder / "board.yaml"
    path.write_text(yaml.safe_dump(tree), "utf-8")
    return path


def sentence_of(path: Path | str) -> str:
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    sentence = str(error.value)
    assert str(path)[:80] in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 600
    return sentence


def test_profiles_that_ship_are_the_files_under_their_own_names() -> None:
    shipped = {"assumed-lanes", "assumed-pingpong", "calculet-2chip"}
    assert {path.stem for path in SHIPPED.iterdir()} == set(PROFILES) == shipped
    assert all(profile.name == name for name, profile in PROFILES.items())
    assert load_profile("calculet-2chip") is PROFILES["calculet-2chip"]


def test_calculet_file_states_every_capability_and_proves_none() -> None:
    stated = yaml.safe_load((SHIPPED / "calculet-2chip.yaml").read_text("utf-8"))["capabilities"]
    assert set(stated) == set(CAPABILITIES)
    assert "C0" not in stated.values()
    profile = load_profile("calculet-2chip")
    assert not profile.is_assumed
    assert {name: state.name for name, state in profile.capabilities.items()} == stated
    assert profile.logits_tile == 16
    assert profile.sources["logits_tile"].startswith("seed 003, section 4.1")


def test_profile_with_kv_lanes_binds_decode_rows_freely_and_no_other_does() -> None:
    """Eight sequences of KV and rows for four: the lane of a row is an input, in B1 as in B4."""
    free = PROFILES["assumed-pingpong"]
    assert (free.lanes, free.profiles, free.is_assumed) == (8, (1, 4), True)
    package = sim_package(free)
    assert package.max_lanes == 8
    assert {g.name: g.profile.row_binding for g in package.graphs} == dict.fromkeys(
        ("prefill_b1", "decode_b1", "decode_b4"), RowBinding.FREE
    )
    assert all(g.inputs["kv_lanes"].shape == (g.profile.batch,) for g in package.graphs)
    fixed = sim_package(PROFILES["assumed-lanes"])
    assert {g.profile.row_binding for g in fixed.graphs if g.name != "prefill_b1"} == {RowBinding.FIXED}
    assert not any("kv_lanes" in g.inputs for g in fixed.graphs if g.name != "prefill_b1")


def test_packages_of_boards_that_differ_in_kv_lanes_have_hashes_of_their_own() -> None:
    free = PROFILES["assumed-pingpong"]
    assert sim_package(free).hash != sim_package(replace(free, kv_lanes=6)).hash


def test_pingpong_profile_assumes_every_time_and_declares_two_jobs_without_a_proof() -> None:
    free = PROFILES["assumed-pingpong"]
    times = {field.name for field in fields(free.timing)}
    assert all(free.sources[name].startswith("assumed: ") for name in times)
    assert free.capabilities["concurrent_jobs"] is Evidence.C1


def test_file_of_ones_own_is_the_profile_it_says(tmp_path: Path) -> None:
    tree = good()
    tree["name"] = "my-board"
    tree["board"]["context"] = {"value": 512, "assumed": "a short one"}
    del tree["telemetry"]["power_w"]
    profile = load_profile(write(tmp_path, tree))
    shipped = PROFILES["assumed-lanes"]
    assert (profile.name, profile.context, profile.power_w) == ("my-board", 512, None)
    assert profile.sources["context"] == "assumed: a short one"
    assert profile == replace(shipped, name="my-board", context=512, power_w=None, sources=profile.sources)
    assert SimBoard(profile).describe().versions["profile"] == "my-board"


def change(*keys: str, to: object) -> Callable[[dict[str, Any]], None]:
    def apply(tree: dict[str, Any]) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = to

    return apply


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def apply(tree: dict[str, Any]) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    return apply


def figure(*keys: str, value: object) -> Callable[[dict[str, Any]], None]:
    return change(*keys, to={"value": value, "assumed": "a test"})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (change("colour", to="red"), ["unknown field", "colour"]),
        (change("board", "chps", to=1), ["board", "chps"]),
        (change("board", "chips", "unit", to="chip"), ["board.chips", "unit"]),
        (drop("timing"), ["timing"]),
        (drop("board", "vocab"), ["board", "vocab"]),
        (drop("board", "chips", "value"), ["board.chips", "value"]),
        (drop("board", "chips", "source"), ["board.chips", "source", "assumed"]),
        (change("board", "chips", "assumed", to="why not"), ["board.chips", "source", "assumed"]),
        (change("board", "chips", "source", to=""), ["board.chips.source"]),
        (figure("board", "chips", value="two"), ["board.chips.value", "int", "str"]),
        (figure("board", "chips", value=True), ["board.chips.value", "bool"]),
        (figure("board", "chips", value=2.0), ["board.chips.value", "float"]),
        (figure("board", "chips", value=0), ["board.chips.value", "1"]),
        (figure("board", "chips", value=10**30), ["board.chips.value"]),
        (figure("board", "dram_bytes", value=-1), ["board.dram_bytes.value"]),
        (figure("board", "dram_bytes", value=1 << 60), ["board.dram_bytes.value"]),
        (figure("board", "context", value=float("nan")), ["board.context.value"]),
        (figure("board", "profiles", value=[4, 1]), ["profiles must ascend"]),
        (figure("board", "profiles", value=[1, 32]), ["decode_ns"]),
        (figure("board", "profiles", value=list(range(1, 30))), ["board.profiles.value"]),
        (figure("board", "kv_lanes", value=8), ["kv_lanes", "widest profile"]),
        (figure("board", "context", value=1), ["board.context must be at least 32", "not 1"]),
        (figure("board", "context", value=31), ["board.context must be at least 32", "not 31"]),
        (figure("board", "dram_bytes", value=1), ["board.dram_bytes is 1,", "2147483648 a chip"]),
        (figure("board", "dram_bytes", value=2_147_483_647), ["board.dram_bytes is 2147483647"]),
        (figure("board", "session_chips", value=[1, 1]), ["session_chips must ascend"]),
        (figure("board", "session_chips", value=[2, 1]), ["session_chips must ascend"]),
        (
            figure("timing", "decode_ns", value={1: 5, 4: 5, 8: 5, 16: 5, 32: 5}),
            ["decode_ns must have a time for each of board.profiles and no other"],
        ),
        (change("capabilities", "calcore_affinity", to="C0"), ["calcore_affinity must be C3 or C4, not C0"]),
        (change("capabilities", "calcore_affinity", to="C1"), ["calcore_affinity must be C3 or C4, not C1"]),
        (figure("board", "kv_lanes", value=0), ["board.kv_lanes.value"]),
        (figure("board", "vocab", value=100), ["vocab must be a power of two"]),
        (figure("board", "eos_token_ids", value=[64]), ["eos_token_ids"]),
        (figure("board", "logits_dtype", value="float16"), ["board.logits_dtype.value", "float16"]),
        (figure("board", "logits_dtype", value="x" * 5000), ["board.logits_dtype.value"]),
        (figure("board", "logits_tile", value=0), ["board.logits_tile.value"]),
        (figure("board", "inactive_lane_policy", value="omit"), ["board.inactive_lane_policy.value"]),
        (figure("board", "banks_overlap", value=1), ["board.banks_overlap.value", "bool"]),
        (figure("timing", "decode_ns", value={1: -5}), ["timing.decode_ns.value"]),
        (figure("timing", "decode_ns", value={"one": 5}), ["timing.decode_ns.value"]),
        (figure("timing", "reset_ns", value=10**15), ["timing.reset_ns.value"]),
        (figure("telemetry", "power_w", value=float("nan")), ["telemetry.power_w.value"]),
        (figure("telemetry", "power_w", value=float("inf")), ["telemetry.power_w.value"]),
        (change("capabilities", "telepathy", to="C0"), ["capabilities.telepathy", "no such capability"]),
        (change("capabilities", "kv_copy", to="C5"), ["capabilities.kv_copy", "C0 to C4", "C5"]),
        (change("capabilities", "kv_copy", to=["C1"]), ["capabilities.kv_copy", "list"]),
        (drop("capabilities", "kv_copy"), ["capabilities.kv_copy", "missing"]),
        (change("is_assumed", to=False), ["capabilities.batch_lanes", "C0", "is_assumed"]),
        (change("is_assumed", to="yes"), ["is_assumed", "bool"]),
        (change("name", to="My Board\n"), ["name"]),
        (change("schema", to="calserve-board-profile/v2"), ["schema", "v1", "v2"]),
        (drop("schema"), ["schema", "calserve-board-profile/v1"]),
    ],
)
def test_wrong_profile_is_one_sentence_that_names_file_and_key(
    tmp_path: Path, wrong: Callable[[dict[str, Any]], None], words: list[str]
) -> None:
    tree = good()
    wrong(tree)
    sentence = sentence_of(write(tmp_path, tree))
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["mapping"]),
        (b"- a\n", ["mapping"]),
        (b"a: [\n", ["YAML", "line"]),
        (b"\xff\xfe", ["UTF-8", "byte 0"]),
        (b"schema: a\nschema: b\n", ["schema", "twice", "line 2"]),
        (b'{"schema": "a", "schema": "b"}', ["schema", "twice"]),
        (b"[" * 5000, ["nested too deeply"]),
        (b"- " * 5000, ["nested too deeply"]),
        (b'{"a":' * 20000, ["nested too deeply"]),
        (b"a: &a [1]\nb: *a\n", ["alias"]),
        (b"a: !!python/object/apply:os.system [ls]\n", ["YAML"]),
        (b"# " + b"x" * (1 << 20), ["larger than 1048576 bytes"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_file_that_is_no_profile_is_one_sentence(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "board.yaml"
    path.write_bytes(content)
    sentence = sentence_of(path)
    for word in words:
        assert word in sentence


def test_path_that_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    for path in (tmp_path / "fifo.yaml", tmp_path, Path("/dev/zero")):
        assert "regular file" in sentence_of(path) or "directory" in sentence_of(path)
    assert "No such file" in sentence_of(tmp_path / "none.yaml")


def test_name_that_does_not_ship_is_told_the_ones_that_do() -> None:
    sentence = sentence_of("calculet-3chip")
    assert "assumed-lanes" in sentence
    assert "calculet-2chip" in sentence


def test_abilities_of_the_vendor_are_proven_in_assumed_profiles_only() -> None:
    for profile in PROFILES.values():
        assert profile.is_assumed or Evidence.C0 not in profile.capabilities.values()


def varied(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "-x"
    if isinstance(value, tuple):
        return (*value, 3)
    if isinstance(value, Enum):
        return next(other for other in type(value) if other is not value)
    if isinstance(value, Mapping):
        key = next(iter(value))
        return {**value, key: varied(value[key])}
    return 0.5


def digest_with(profile: SimProfile, name: str, value: Any) -> str:
    """Set past the checks of what goes together: the digest must see every figure alone."""
    other = copy.copy(profile)
    object.__setattr__(other, name, value)
    return other.sha256()


@pytest.mark.parametrize(
    "name", [field.name for field in fields(SimProfile) if field.name not in ("sources", "timing")]
)
def test_digest_of_a_profile_changes_with_every_figure(name: str) -> None:
    profile = PROFILES["assumed-pingpong"]
    assert digest_with(profile, name, varied(getattr(profile, name))) != profile.sha256()


@pytest.mark.parametrize("name", [field.name for field in fields(SimTiming)])
def test_digest_of_a_profile_changes_with_every_time(name: str) -> None:
    profile = PROFILES["assumed-pingpong"]
    timing = replace(profile.timing, **{name: varied(getattr(profile.timing, name))})
    assert digest_with(profile, "timing", timing) != profile.sha256()


def test_digest_of_a_profile_is_of_its_figures_and_not_of_how_they_are_written(tmp_path: Path) -> None:
    tree = good()
    tree["telemetry"]["power_w"]["assumed"] = "another word about the same watts"
    tree["board"] = dict(reversed(tree["board"].items()))
    tree["timing"]["decode_ns"]["value"] = dict(reversed(tree["timing"]["decode_ns"]["value"].items()))
    assert load_profile(write(tmp_path, tree)).sha256() == PROFILES["assumed-lanes"].sha256()
    digests = {profile.sha256() for profile in PROFILES.values()}
    assert len(digests) == len(PROFILES)
    assert all(len(digest) == 64 for digest in digests)


def test_board_tells_the_digest_of_its_profile() -> None:
    board = SimBoard(PROFILES["calculet-2chip"])
    assert board.describe().figures_sha256 == PROFILES["calculet-2chip"].sha256()
    board.close()
