"""A good package opens; each rule refuses the package that breaks it, and only with its own id."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from package_rig import COMPATIBILITY, GOLDENS, good_manifest, list_files, write_package

from calserve.core.board import RowBinding
from calserve.core.job import Task
from calserve.package import PackageError, open_package
from calserve.runtime.contract import Golden, InactiveLanePolicy, KvLayout


def refused(root: Path) -> str:
    with pytest.raises(PackageError) as caught:
        open_package(root)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return caught.value.fault.rule


def test_open_package_good_gives_every_field(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    package = open_package(root)
    assert package.hash == hashlib.sha256((root / "checksums.sha256").read_bytes()).hexdigest()
    assert (package.model, package.board, package.numerics, package.weights) == ("toy", "openvino", "exact", "fp16")
    assert (package.vocab_size, package.context, package.max_lanes, package.profiles) == (100, 64, 4, (1, 4))
    assert package.files["graph:step"] == root / "graphs/step.xml"
    assert package.files["weights:step"] == root / "graphs/step.bin"
    assert package.settings == {"INFERENCE_PRECISION_HINT": "f32"}
    assert package.kv == {"n_layers": 2, "n_kv_heads": 1, "head_dim": 16, "unit_tokens": 32, "dtype": "float16"}
    assert package.goldens == (Golden((5, 6), (7, 2), (1.5, 0.25)),)
    assert (package.weight_bytes, package.eos_token_ids, package.golden_tolerance) == (1000, (2,), 0.05)
    (graph,) = package.graphs
    assert graph.profile.tasks == {Task.PREFILL, Task.DECODE, Task.MIXED}
    assert graph.profile.row_binding is RowBinding.FREE
    assert (graph.kv_layout, graph.inactive_lane_policy) == (KvLayout.PAGED, InactiveLanePolicy.OMIT)
    assert (graph.min_flat_tokens, graph.profile.min_chunk_tokens, graph.scratch_units) == (2, 2, (8,))
    assert graph.inputs["input_ids"].byte_size == 64 * 8
    assert graph.outputs["logits"].byte_size == 4 * 100 * 4


def test_open_package_with_signature_beside_the_list_opens(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    (root / "signature").write_bytes(b"s")
    assert open_package(root).model == "toy"


def test_open_package_through_a_link_to_the_root_opens(tmp_path: Path) -> None:
    write_package(tmp_path / "p")
    (tmp_path / "link").symlink_to(tmp_path / "p")
    assert open_package(tmp_path / "link").root == (tmp_path / "p").resolve()


# Breaking the files behind a list that stays as it was.


def _alter(root: Path) -> None:
    (root / "graphs/step.bin").write_bytes(bytes(999) + b"\1")


def _shorten(root: Path) -> None:
    (root / "graphs/step.bin").write_bytes(bytes(500))


def _link_inside(root: Path) -> None:
    (root / "graphs/step.bin").rename(root / "graphs/real.bin")
    (root / "graphs/step.bin").symlink_to("real.bin")


def _link_directory(root: Path) -> None:
    (root / "graphs").rename(root.parent / "graphs")
    (root / "graphs").symlink_to(root.parent / "graphs")


def _pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")


def _without_list(root: Path) -> None:
    (root / "checksums.sha256").unlink()


def _linked_list(root: Path) -> None:
    (root / "checksums.sha256").rename(root.parent / "list")
    (root / "checksums.sha256").symlink_to(root.parent / "list")


def _append(line: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with (root / "checksums.sha256").open("a") as file:
            file.write(line)

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_alter, "A12"),
        (_shorten, "A12"),
        (lambda root: (root / "memory.json").unlink(), "A10"),
        (lambda root: (root / "extra.bin").write_bytes(b"x"), "A11"),
        (lambda root: (root / "graphs/.hidden").write_bytes(b"x"), "A11"),
        (_link_inside, "A08"),
        (_link_directory, "A08"),
        (_pipe, "A08"),
        (_without_list, "A03"),
        (_linked_list, "A03"),
        (_append("0" * 64 + "  ../outside\n"), "A06"),
        (_append("0" * 64 + "  /etc/passwd\n"), "A06"),
        (_append("0" * 64 + "  graphs\\step.xml\n"), "A06"),
        (_append("0" * 64 + "  graphs//step.xml\n"), "A06"),
        (_append("0" * 64 + "  memory.json\n"), "A07"),
        (_append("0" * 63 + "  memory.json\n"), "A05"),
        (_append("not a line\n"), "A05"),
        (_append("\n"), "A05"),
        (lambda root: (root / "checksums.sha256").write_bytes(b"\xff\xfe"), "A05"),
        (lambda root: (root / "checksums.sha256").write_bytes(b" " * (1 << 20) + b" "), "A04"),
    ],
)
def test_open_package_files_off_the_list_refused(tmp_path: Path, change: Callable[[Path], None], rule: str) -> None:
    root = write_package(tmp_path / "p")
    change(root)
    assert refused(root) == rule


def test_open_package_too_many_files_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_package(tmp_path / "p")
    monkeypatch.setattr("calserve.package.checksums.MAX_FILES", 5)
    assert refused(root) == "A09"


def test_open_package_not_a_directory_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "nothing") == "A01"


# Breaking the manifest, with checksums that hold.


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def _delete(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def _twice(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in path:
            at = at[key]
        at.append(copy.deepcopy(at[0]))

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_set("surprise", to=1), "B03"),
        (_set("models", 0, "kv", "surprise", to=1), "B03"),
        (_set("models", 0, "graphs", 0, "surprise", to=1), "B03"),
        (_set("models", 0, "graphs", 0, "inputs", 0, "surprise", to=1), "B03"),
        (_delete("models", 0, "context"), "B03"),
        (_delete("models", 0, "settings"), "B03"),
        (_delete("models", 0, "graphs", 0, "scratch_units"), "B03"),
        (_set("schema", to="calserve-package/v2"), "B03"),
        (_set("models", 0, "context", to="64"), "B03"),
        (_set("models", 0, "context", to=64.5), "B03"),
        (_set("models", 0, "context", to=0), "B03"),
        (_set("models", 0, "vocab_size", to=2**70), "B03"),
        (_set("models", 0, "name", to="../x"), "B03"),
        (_set("models", 0, "name", to="a\nb"), "B03"),
        (_set("models", 0, "numerics", to="sloppy"), "B03"),
        (_set("models", 0, "graphs", to=[]), "B03"),
        (_set("models", 0, "graphs", 0, "tasks", to=["train"]), "B03"),
        (_set("models", 0, "graphs", 0, "inputs", 0, "shape", to=[-1]), "B03"),
        (_set("models", 0, "graphs", 0, "inputs", 0, "dtype", to="object"), "B03"),
        (_set("models", 0, "settings", to={"A": 1}), "B03"),
        (_delete("models", 0, "files", "tokenizer"), "B06"),
        (_delete("models", 0, "files", "weights:step"), "B06"),
        (_set("models", 0, "files", "weights:other", to="memory.json"), "B07"),
        (_set("models", 0, "files", "tokenizer", to="../tokenizer.json"), "B08"),
        (_set("models", 0, "files", "tokenizer", to="/etc/passwd"), "B08"),
        (_set("models", 0, "files", "tokenizer", to="other.json"), "B09"),
        (_set("models", 0, "context", to=129), "C10"),
        (_set("models", 0, "profiles", to=[4, 1]), "B18"),
        (_set("models", 0, "profiles", to=[1, 1, 4]), "B18"),
        (_set("models", 0, "profiles", to=[1, 2]), "B18"),
        (_twice("models", 0, "graphs"), "B14"),
        (_twice("models", 0, "graphs", 0, "inputs"), "B15"),
        (_set("models", 0, "graphs", 0, "tasks", to=["decode", "decode"]), "B16"),
        (_set("models", 0, "graphs", 0, "inactive_lane_policy", to=None), "C07"),
        (_set("models", 0, "graphs", 0, "max_tokens", to=63), "C09"),
        (_set("models", 0, "vocab_size", to=7), "E05"),
        (_set("models", 0, "eos_token_ids", to=[100]), "E06"),
    ],
)
def test_open_package_bad_manifest_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], rule: str) -> None:
    manifest = good_manifest()
    change(manifest)
    assert refused(write_package(tmp_path / "p", manifest)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: 1\na: 2\n",
        "a: &x [1]\nb: *x\n",
        "a: !!python/object/apply:os.getcwd []\n",
        "? [a, b]\n: 1\n",
        "a: [\n",
        "[" * 20000,
        "a: 2026-13-45\n",
        "a: \x00\n",
    ],
)
def test_open_package_hostile_yaml_refused(tmp_path: Path, text: str) -> None:
    assert refused(write_package(tmp_path / "p", text or "\n")) == "B03"


def test_open_package_repeated_manifest_key_names_it(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    manifest = root / "manifest.yaml"
    manifest.write_text(manifest.read_text() + "target: sim\n")
    list_files(root)
    with pytest.raises(PackageError, match="'target' is repeated"):
        open_package(root)


def test_open_package_alias_in_an_otherwise_good_manifest_refused(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    manifest = root / "manifest.yaml"
    text = manifest.read_text()
    text = text.replace("architecture: llama", "architecture: &name llama").replace("target: openvino", "target: *name")
    manifest.write_text(text)
    list_files(root)
    with pytest.raises(PackageError, match="aliases are not allowed"):
        open_package(root)


def test_open_package_without_manifest_refused(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    (root / "manifest.yaml").unlink()
    list_files(root)
    assert refused(root) == "B01"


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({"goldens": "{"}, "B04"),
        ({"goldens": "[" * 100_000}, "B04"),
        ({"goldens": {**GOLDENS, "more": 1}}, "B04"),
        ({"goldens": {**GOLDENS, "goldens": []}}, "B04"),
        ({"goldens": {**GOLDENS, "tolerance": -1.0}}, "B04"),
        ({"memory": {"weight_bytes": 1}}, "B04"),
        ({"compatibility": {**COMPATIBILITY, "target": "sim"}}, "F01"),
        (
            {
                "goldens": {
                    **GOLDENS,
                    "goldens": [{"text": "", "prompt_ids": [1], "output_ids": [1, 2], "margins": [1]}],
                }
            },
            "E09",
        ),
        (
            {"goldens": {**GOLDENS, "goldens": [{"text": "", "prompt_ids": [100], "output_ids": [1], "margins": [1]}]}},
            "E10",
        ),
        ({"goldens": " " * ((4 << 20) + 1)}, "B02"),
    ],
)
def test_open_package_bad_json_refused(tmp_path: Path, files: dict[str, Any], rule: str) -> None:
    assert refused(write_package(tmp_path / "p", None, **files)) == rule
