"""Two packages into one: what the result says and holds, that nothing crosses chips, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from package_rig import COMPATIBILITY, MEMORY, good_manifest, list_files, write_package
from typer.testing import CliRunner

from calserve.cli.app import app
from calserve.package import PackageError
from calserve.package.combine import CombineOptions, CombineReport, combine
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.package.reader import open_models, open_package, read_tree
from calserve.progress import SilentProgress

BOTH = CombineOptions(alias_b="other")


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_package(tmp_path / "a")


def sim(target: Path, name: str = "smollm2-135m", **options: Any) -> Path:
    pack_sim(load_geometry(name), target, SimOptions(**options), SilentProgress())
    return target


def combined(one: Path, other: Path, target: Path, options: CombineOptions = BOTH) -> CombineReport:
    return combine(one, other, target, options, SilentProgress())


def refusal(one: Path, other: Path, target: Path, options: CombineOptions = BOTH) -> str:
    with pytest.raises(PackageError) as error:
        combined(one, other, target, options)
    assert not target.exists()
    assert list(target.parent.glob(".*packing*")) == []
    return str(error.value)


# --- the result ---------------------------------------------------------------------------------------------------


def test_combined_package_has_the_layout_of_the_specification(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    names = {path.relative_to(tmp_path / "c").as_posix() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    assert names == {
        "manifest.yaml", "memory.json", "compatibility.json", "build-provenance.json", "checksums.sha256",
        "model-a/graphs/step.xml", "model-a/graphs/step.bin", "model-a/goldens.json",
        "model-b/graphs/step.xml", "model-b/graphs/step.bin", "model-b/goldens.json",
        "tokenizer/model-a/tokenizer.json", "tokenizer/model-a/chat_template.jinja",
        "tokenizer/model-b/tokenizer.json", "tokenizer/model-b/chat_template.jinja",
    }  # fmt: skip


def test_combined_models_are_pinned_to_a_chip_each_with_graphs_and_sections(a: Path, tmp_path: Path) -> None:
    report = combined(a, a, tmp_path / "c")
    assert report.models == {"toy": 0, "other": 1}
    tree = read_tree(tmp_path / "c")
    assert [(model.name, model.chip_mask, model.pinned) for model in tree.manifest.models] == [
        ("toy", 1, True), ("other", 2, True),
    ]  # fmt: skip
    assert [graph.chip_mask for model in tree.manifest.models for graph in model.graphs] == [1, 2]
    assert {(section.model, section.chip_mask) for section in tree.memory.sections} == {("toy", 1), ("other", 2)}


def test_combined_address_plan_is_one_and_shares_no_writable_memory(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    sections = read_tree(tmp_path / "c").memory.sections
    assert [(s.name, s.address >> 20, s.bytes) for s in sections] == [
        ("toy.weights", 0, 1000), ("toy.kv", 2, 32768), ("toy.io", 4, 2764),
        ("other.weights", 0, 1000), ("other.kv", 2, 32768), ("other.io", 4, 2764),
    ]  # fmt: skip
    for one in sections:
        for other in sections:
            if one is not other and one.chip_mask & other.chip_mask:
                assert one.address + one.bytes <= other.address or other.address + other.bytes <= one.address
    assert [(chip.chip, chip.bytes) for chip in read_tree(tmp_path / "c").memory.chips] == [(0, 6 << 20), (1, 6 << 20)]


def test_combined_package_opens_as_two_models_of_one_bundle_with_hashes_of_their_own(a: Path, tmp_path: Path) -> None:
    report = combined(a, a, tmp_path / "c")
    one, other = open_models(tmp_path / "c")
    assert one.bundle == other.bundle == report.hash == read_tree(tmp_path / "c").digest
    assert len({one.hash, other.hash, report.hash}) == 3
    assert one.files["tokenizer"] != other.files["tokenizer"]
    assert one.files["goldens"].read_bytes() == (a / "goldens.json").read_bytes()
    assert {one.chip_mask, other.chip_mask} == {1, 2}


def test_combined_package_keeps_both_parents_account(a: Path, tmp_path: Path) -> None:
    (a / "build-provenance.json").write_text('{"how": "by hand"}')
    list_files(a)
    combined(a, a, tmp_path / "c")
    told = json.loads((tmp_path / "c" / "build-provenance.json").read_text("utf-8"))
    digest = open_package(a).hash
    assert [(each["alias"], each["chip"], each["hash"]) for each in told["combined"]] == [
        ("toy", 0, digest), ("other", 1, digest),
    ]  # fmt: skip
    assert all(each["provenance"] == {"how": "by hand"} for each in told["combined"])
    assert str(tmp_path) not in json.dumps(told)


def test_combined_package_needs_two_chips_at_once(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    assert read_tree(tmp_path / "c").compatibility.capabilities == ("concurrent_chips",)


def test_combined_package_is_the_same_twice(a: Path, tmp_path: Path) -> None:
    assert combined(a, a, tmp_path / "c").hash == combined(a, a, tmp_path / "d").hash


def test_two_simulated_models_are_combined(tmp_path: Path) -> None:
    one, other = sim(tmp_path / "1"), sim(tmp_path / "2", "llama-3.2-1b")
    combined(one, other, tmp_path / "c", CombineOptions())
    assert [package.model for package in open_models(tmp_path / "c")] == ["smollm2-135m", "llama-3.2-1b"]


# --- what is refused ----------------------------------------------------------------------------------------------


def test_models_that_would_answer_to_one_name_are_refused(a: Path, tmp_path: Path) -> None:
    assert "--alias-b" in refusal(a, a, tmp_path / "c", CombineOptions())


def test_alias_that_is_no_name_is_refused(a: Path, tmp_path: Path) -> None:
    assert "cannot be a model's name" in refusal(a, a, tmp_path / "c", CombineOptions(alias_b="no name"))


def test_model_of_two_chips_is_refused(tmp_path: Path) -> None:
    one, wide = sim(tmp_path / "1"), sim(tmp_path / "2", "qwen3-30b-a3b")
    assert "is on chips 0, 1" in refusal(one, wide, tmp_path / "c")
    assert "is on chips 0, 1" in refusal(wide, one, tmp_path / "c")


def test_packages_for_different_targets_are_refused(a: Path, tmp_path: Path) -> None:
    assert "different targets: openvino and sim" in refusal(a, sim(tmp_path / "s"), tmp_path / "c")


def test_packages_for_different_runtimes_are_refused(a: Path, tmp_path: Path) -> None:
    older = write_package(tmp_path / "b", compatibility={**COMPATIBILITY, "runtime": "openvino>=2"})
    assert "different runtimes" in refusal(a, older, tmp_path / "c")


def test_packages_no_device_may_run_both_of_are_refused(a: Path, tmp_path: Path) -> None:
    npu = write_package(tmp_path / "b", compatibility={**COMPATIBILITY, "devices": ["NPU"]})
    assert "no device may run both" in refusal(a, npu, tmp_path / "c")


def test_package_that_is_combined_already_is_refused(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    assert "holds 2 models" in refusal(tmp_path / "c", a, tmp_path / "d")


def test_package_whose_address_plan_is_its_compilers_is_refused_and_the_compiler_named(tmp_path: Path) -> None:
    manifest = good_manifest() | {"target": "calrt"}
    memory = {**MEMORY, "plan": "vendor", "chips": [{"chip": 0, "bytes": 6 << 20, "guard_bytes": 1 << 30}]}
    compatibility = {**COMPATIBILITY, "target": "calrt", "runtime": "calrt>=0.7.6"}
    theirs = write_package(tmp_path / "v", manifest, memory=memory, compatibility=compatibility)
    assert open_package(theirs).board == "calrt"
    sentence = refusal(theirs, theirs, tmp_path / "c")
    assert "is for target calrt" in sentence
    assert "only the vendor's compiler can combine" in sentence


def test_package_pinned_to_the_other_chip_is_refused(a: Path, tmp_path: Path) -> None:
    manifest = good_manifest()
    manifest["models"][0]["pinned"] = True
    pinned = write_package(tmp_path / "p", manifest)
    assert "pinned to chip 0" in refusal(a, pinned, tmp_path / "c")
    assert combined(pinned, a, tmp_path / "d").models == {"toy": 0, "other": 1}


def test_package_that_is_altered_is_refused(a: Path, tmp_path: Path) -> None:
    (a / "graphs/step.bin").write_bytes(bytes(999) + b"1")
    assert "step.bin" in refusal(a, a, tmp_path / "c")


def test_file_that_changes_while_it_is_copied_ends_it(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calserve.package import combine as module

    def copy_and_change(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes() + b"!")

    monkeypatch.setattr(module.shutil, "copyfile", copy_and_change)
    assert "was changed while it was copied" in refusal(a, a, tmp_path / "c")


def test_target_that_is_there_stays_unless_it_is_to_be_replaced(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    before = (tmp_path / "c" / "checksums.sha256").read_bytes()
    with pytest.raises(PackageError, match="exists already"):
        combined(a, a, tmp_path / "c")
    assert (tmp_path / "c" / "checksums.sha256").read_bytes() == before
    combined(a, a, tmp_path / "c", CombineOptions(alias_b="third", force=True))
    assert [package.model for package in open_models(tmp_path / "c")] == ["toy", "third"]


def test_command_combines_and_tells(a: Path, tmp_path: Path) -> None:
    command = ["combine", str(a), str(a), "-o", str(tmp_path / "c"), "--alias-b", "other", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["models"] == {"toy": 0, "other": 1}
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def test_manifest_of_a_combined_package_is_plain_yaml(a: Path, tmp_path: Path) -> None:
    combined(a, a, tmp_path / "c")
    text = (tmp_path / "c" / "manifest.yaml").read_text("utf-8")
    assert "&" not in text
    assert len(yaml.safe_load(text)["models"]) == 2
