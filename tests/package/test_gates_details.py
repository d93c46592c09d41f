"""Where a rule's line runs: the last value that passes beside the first that does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import package_rig as rig
import pytest
from bad_packages import GOOD_FACTS, ToyTrial, facts, opening
from drafts import Draft, lanes, pair, toy, vendor

from calserve.package.address import kv_unit_bytes
from calserve.package.decode import MAX_NODES, Undecodable, decode_json, decode_yaml
from calserve.package.gates import How, compatibility, inspect
from calserve.package.gates.patterns import pattern_complaint
from calserve.package.manifest import KvEntry
from calserve.package.reader import open_package
from calserve.package.sealed import seal
from calserve.runtime.contract import ChipFacts
from calserve.runtime.sim.profile import ASSUMED_LANES
from calserve.runtime.targets import SIMULATED, SIMULATED_VERSION


def rules(draft: Draft, root: Path, how: How | None = None) -> list[str]:
    return sorted({finding.rule.id for finding in inspect(draft.write(root / "p"), how or How()).findings})


# --- graphs and profiles ------------------------------------------------------------------------------------------


def _rename_role(draft: Draft) -> None:
    files = draft.model()["files"]
    files["graph:ste"] = files.pop("graph:step")


def _flexible_beside_fixed(draft: Draft) -> None:
    draft.graph("decode_b4")["batch"]["fixed"] = False


def _prefill_again(width: int) -> Callable[[Draft], None]:
    def change(draft: Draft) -> None:
        graph = copy.deepcopy(draft.graph("prefill"))
        graph.update(name="prefill_short", max_row_tokens=width, max_job_tokens=width)
        for tensor in graph["inputs"][:2]:
            tensor.update(shape=[1, width], bytes=4 * width)
        draft.model()["graphs"].append(graph)

    return change


@pytest.mark.parametrize(
    ("change", "base", "expected"),
    [
        (_rename_role, toy, ["B06", "B07"]),
        (_flexible_beside_fixed, lanes, ["B21"]),
        (_prefill_again(32), lanes, []),
        (_prefill_again(64), lanes, ["B21"]),
        (lambda d: d.graph("decode_b1").update(tasks=["prefill"]), lanes, ["B19"]),
        (lambda d: d.graph("decode_b4").update(name="decode_b1"), lanes, ["B14"]),
        (lambda d: d.model().update(profiles=[1]), lanes, ["B18"]),
        (lambda d: d.model()["graphs"][0]["batch"].update(rows=3), toy, ["B19"]),
    ],
)
def test_graphs_are_matched_whole_and_each_profile_once(
    change: Callable[[Draft], object], base: Callable[[], Draft], expected: list[str], tmp_path: Path
) -> None:
    draft = base()
    change(draft)
    assert rules(draft, tmp_path) == expected


def test_weights_may_be_shared_by_graphs_of_one_model_and_not_by_models(tmp_path: Path) -> None:
    draft = toy()
    prefill, decode = draft.graph("step"), copy.deepcopy(draft.graph("step"))
    prefill["tasks"], decode["tasks"], decode["name"] = ["prefill"], ["decode"], "decode"
    draft.model()["graphs"].append(decode)
    draft.model()["files"] |= {"graph:decode": "graphs/decode.xml", "weights:decode": "graphs/step.bin"}
    draft.files["graphs/decode.xml"] = b"<net/>"
    assert rules(draft, tmp_path) == []
    both = pair()
    both.model(1)["files"]["weights:step"] = "a/graphs/step.bin"
    del both.files["b/graphs/step.bin"]
    assert rules(both, tmp_path / "b") == ["B10"]


@pytest.mark.parametrize(("name", "expected"), [("LICENSE", []), ("a/NOTICE", []), ("LICENSE.bin", ["B12"])])
def test_licence_beside_a_package_needs_no_role(name: str, expected: list[str], tmp_path: Path) -> None:
    draft = toy()
    draft.files[name] = b"x"
    assert rules(draft, tmp_path) == expected


# --- memory -------------------------------------------------------------------------------------------------------


def test_kv_arithmetic_is_the_seeds(tmp_path: Path) -> None:
    """Seed 004: 48 layers, 4 KV heads, head size 128, 40,960 tokens in BF16 are 3.750 GiB."""
    assert kv_unit_bytes(KvEntry(48, 4, 128, 40960, "bfloat16")) == 3.75 * 2**30


def _place(draft: Draft, name: str, kind: str, address: int, size: int) -> None:
    draft.memory["sections"].append(
        {"name": name, "model": "toy", "kind": kind, "chip_mask": 1, "address": address, "bytes": size,
         "writable": kind in ("kv", "workspace", "io")}
    )  # fmt: skip
    draft.memory["chips"][0]["bytes"] = max(draft.memory["chips"][0]["bytes"], address + size)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([("code", 1000, 24)], []),  # touches the weights' end
        ([("code", 999, 24)], ["D15"]),
        ([("code", 6 << 20, 2**49), ("metadata", (6 << 20) + 10, 1), ("code", (6 << 20) + 2**48, 1)], ["D15"]),
        ([("workspace", 8 << 20, 100), ("workspace", (8 << 20) + 50, 100)], []),
        ([("workspace", 8 << 20, 100), ("code", (8 << 20) + 50, 100)], ["D15"]),
        ([("workspace", 8 << 20, 100), ("workspace", (8 << 20) + 50, 100), ("code", (8 << 20) + 149, 1)], ["D15"]),
        ([("workspace", 2 << 20, 100)], ["D15"]),
    ],
)
def test_sections_overlap_exactly_when_they_share_a_byte(
    sections: list[tuple[str, int, int]], expected: list[str], tmp_path: Path
) -> None:
    draft = toy()
    for number, (kind, address, size) in enumerate(sections):
        _place(draft, f"more.{number}", kind, address, size)
        if kind == "workspace":
            draft.memory["models"][0]["workspace_bytes"] = 1
    assert rules(draft, tmp_path) == expected


def test_sections_on_different_chips_may_have_one_address(tmp_path: Path) -> None:
    draft = pair()
    assert draft.section("a.kv")["address"] == draft.section("b.kv")["address"]
    assert rules(draft, tmp_path) == []


def test_section_of_one_model_on_the_other_ones_chip_is_refused(tmp_path: Path) -> None:
    draft = pair()
    draft.section("a.kv")["chip_mask"] = 3
    assert rules(draft, tmp_path) == ["D12"]


def test_graph_that_crosses_to_the_other_models_chip_is_refused(tmp_path: Path) -> None:
    draft = pair()
    draft.graph("step")["chip_mask"] = 3
    assert rules(draft, tmp_path) == ["D13"]


def test_reservation_that_ends_with_the_last_section_passes(tmp_path: Path) -> None:
    draft = toy()
    draft.memory["chips"][0]["bytes"] = (4 << 20) + 2764
    assert rules(draft, tmp_path) == []


def test_guard_of_a_vendor_of_a_gibibyte_passes(tmp_path: Path) -> None:
    assert rules(vendor(), tmp_path) == ["F04"]


@pytest.mark.parametrize(("units", "expected"), [(1, ["D05"]), (2, ["D06"]), (7, ["D06"]), (8, [])])
def test_pool_holds_one_context_at_least_and_every_lane_without_a_warning(
    units: int, expected: list[str], tmp_path: Path
) -> None:
    draft = toy()
    draft.memory["models"][0].update(kv_units=units, kv_bytes=units * 4096)
    assert rules(draft, tmp_path) == expected


def test_pool_of_a_lane_board_has_every_lane(tmp_path: Path) -> None:
    draft = lanes()
    draft.memory["models"][0].update(kv_units=3, kv_bytes=3 * 8192)
    assert rules(draft, tmp_path) == ["D05"]


# --- compatibility ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "expected"),
    [("2026.4.0", []), ("2026.4.1", []), ("2026.5.0", ["F03"]), ("2026.3.9", ["F03"]), ("a mess", ["F03"])],
)
def test_runtime_range_is_held_against_what_is_installed(
    installed: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "runtime_version", lambda _: installed)
    draft = toy()
    draft.compatibility["runtime"] = "openvino>=2026.4,<2026.5"
    assert rules(draft, tmp_path) == expected


@pytest.mark.parametrize(
    "runtime", ["", "openvino", "x>=1", "openvino[all]>=1", "openvino>=1; sys_platform == 'linux'", "openvino>=", ">=1",
                "openvino @ https://example.org/x.whl"],
)  # fmt: skip
def test_runtime_that_is_no_range_of_the_targets_library_is_refused(runtime: str, tmp_path: Path) -> None:
    draft = toy()
    draft.compatibility["runtime"] = runtime
    assert rules(draft, tmp_path) == ["F02"]


def test_version_of_the_simulated_runtime_is_what_its_board_says() -> None:
    assert ASSUMED_LANES.versions["runtime"] == f"{SIMULATED} {SIMULATED_VERSION}"


@pytest.mark.parametrize(("size", "expected"), [((6 << 20), []), ((6 << 20) - 1, ["F08"])])
def test_chip_holds_reservation_and_guard_to_the_byte(size: int, expected: list[str], tmp_path: Path) -> None:
    trial = ToyTrial(facts(chips=(ChipFacts(0, 1, size),)))
    assert rules(toy(), tmp_path, How(open_trial=opening(trial))) == expected
    assert bool(trial.tried) == (not expected)


def test_board_that_fails_one_model_of_two_names_it(tmp_path: Path) -> None:
    trial = ToyTrial(GOOD_FACTS)
    trial.attempt = lambda package, chips: ("warm", "golden step 1") if package.model == "b" else None  # type: ignore[method-assign]
    failure = inspect(pair().write(tmp_path / "p"), How(open_trial=opening(trial))).failure
    assert failure is not None
    assert (failure.rule.id, failure.model, failure.sentence) == ("F12", "b", "Model b: golden step 1.")


# --- sealed copies ------------------------------------------------------------------------------------------------


def test_sealed_package_is_read_from_its_copy_whatever_becomes_of_the_directory(tmp_path: Path) -> None:
    root = toy().write(tmp_path / "p")
    sealed = seal(root)
    for path in list(root.rglob("*")):
        if path.is_file():
            path.write_bytes(b"changed")
    package = open_package(root, sealed)
    assert package.model == "toy"
    assert package.files["weights:step"].read_bytes() == bytes(1000)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda root: (root / "memory.json").write_bytes(b"{}"), "A12"),
        (lambda root: (root / "memory.json").unlink(), "A10"),
        (lambda root: (root / "more").touch(), "A11"),
        (lambda root: (root / "checksums.sha256").unlink(), "A03"),
    ],
)
def test_sealed_package_that_was_altered_before_is_refused(
    change: Callable[[Path], object], rule: str, tmp_path: Path
) -> None:
    root = toy().write(tmp_path / "p")
    change(root)
    failure = inspect(root, How(sealed=seal(root))).failure
    assert failure is not None
    assert failure.rule.id == rule


# --- decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [true, null, ~, 'x', \"1\", -5]", {"a": 1, "b": [True, None, None, "x", "1", -5]}),
        ("a: yes\nb: 0x10\nc: 1:30\nd: 2026-01-01\ne: 010", {"a": "yes", "b": "0x10", "c": "1:30", "d": "2026-01-01",
                                                           "e": "010"}),
        ("a: 1.5\nb: 1e5\nc: .inf", {"a": 1.5, "b": "1e5", "c": ".inf"}),
        ("a:\nb: ''", {"a": None, "b": ""}),
    ],
)  # fmt: skip
def test_decode_yaml_knows_plain_values_only(text: str, value: object) -> None:
    assert decode_yaml(text.encode(), dict) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x 1", "anchors are not allowed"),
        ("a: !!str 1", "the tag"),
        ("a: 1\n---\nb: 1", "more than one document"),
        ("a: 1\na: 2", "'a' is repeated"),
        ("[a, b]: 1", "plain name"),
        ("", "empty"),
        ("a: " + "[" * 40, "32 levels"),
        ("a: [" + "0," * MAX_NODES + "]", f"more than {MAX_NODES}"),
    ],
)
def test_decode_yaml_refuses_what_is_not_plain(text: str, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        decode_yaml(text.encode(), dict)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "'a' is repeated"),
        ("[NaN]", "NaN is no number"),
        ("[Infinity]", "Infinity"),
        ("{", "Expect"),
    ],
)
def test_decode_json_refuses_what_json_lets_through(text: str, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        decode_json(text.encode(), dict)


@pytest.mark.parametrize(
    ("pattern", "is_refused"),
    [
        (r"(?i:'s|'t|'re)|\p{N}{1,3}|\s+(?!\S)", False),
        ("a{1000}{2}", False),
        ("(a{1000}){3}", True),
        ("a{,2001}", True),
        ("a{2001,}", True),
        ("x" * 4096, False),
        ("x" * 4097, True),
        ("(" * 32 + ")" * 32, False),
        ("(" * 33 + ")" * 33, True),
    ],
)
def test_pattern_is_bounded_in_length_depth_and_repeats(pattern: str, is_refused: bool) -> None:
    tree = {"pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}]}
    assert bool(pattern_complaint(tree)) == is_refused


def test_tokenizer_with_vocabulary_beyond_the_logits_names_the_token(tmp_path: Path) -> None:
    draft = toy()
    tree = json.loads(rig.TOKENIZER)
    tree["model"]["vocab"]["more"] = 4_000_000_000
    draft.retext("tokenizer", json.dumps(tree).encode())
    failure = inspect(draft.write(tmp_path / "p")).failure
    assert failure is not None
    assert (failure.rule.id, failure.limit, failure.given) == ("E05", "100", "4000000000")
