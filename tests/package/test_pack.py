"""Packing the tiny model: what comes out, what is refused, and that nothing half made is left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calserve.core.board import RowBinding
from calserve.package import PackageError, open_package
from calserve.package.pack import PackOptions, pack
from calserve.progress import SilentProgress
from calserve.runtime.contract import KvLayout
from tiny_model import CHAT_TEMPLATE, TinyShape, tiny_vocabulary, write_tiny_gguf

OPTIONS = PackOptions(context=512, weights="fp16", numerics="exact")
BUILD = sys.modules["calserve.package.pack.build"]
SOURCE = sys.modules["calserve.package.pack.source"]
GGUF = sys.modules["calserve.package.pack.gguf_model"]
TARGET = sys.modules["calserve.package.pack.target"]


def refusal(source: Path, target: Path, options: PackOptions = OPTIONS) -> PackageError:
    before = sorted(target.parent.iterdir())
    with pytest.raises(PackageError) as caught:
        pack(source, target, options, SilentProgress())
    assert sorted(target.parent.iterdir()) == before  # no target, no scratch
    assert "\n" not in str(caught.value)
    return caught.value


def test_pack_tiny_package_has_the_paged_contract(tiny_package: Path) -> None:
    package = open_package(tiny_package)
    (graph,) = package.graphs
    profile = graph.profile
    assert (package.model, package.board, package.max_lanes, package.profiles) == (
        "tiny",
        "openvino",
        16,
        (1, 4, 8, 16),
    )
    assert (profile.batch, profile.batch_is_fixed, profile.row_binding) == (16, False, RowBinding.FREE)
    assert (graph.kv_layout, profile.max_tokens, profile.max_row_tokens) == (KvLayout.PAGED, 512, 512)
    assert profile.max_job_tokens >= 512
    assert (graph.min_flat_tokens, profile.min_chunk_tokens) == (2, 2)
    assert graph.scratch_units == (16 * 512 // 32,)
    assert dict(package.kv) == {"n_layers": 2, "n_kv_heads": 2, "head_dim": 32, "unit_tokens": 32, "dtype": "float16"}
    assert package.eos_token_ids == (319,)
    shapes = {name: (t.shape, t.dtype) for name, t in (graph.inputs | graph.outputs).items()}
    assert shapes["block_indices"] == ((257,), "int32")
    assert shapes["max_context_len"] == ((), "int32")
    assert shapes["logits"] == ((64, 320), "float32")


def test_pack_tiny_package_memory_counts_by_hand(tiny_package: Path) -> None:
    (memory,) = json.loads((tiny_package / "memory.json").read_bytes())["models"]
    assert memory["kv_unit_bytes"] == 2 * 2 * 2 * 32 * 32 * 2  # key+value, layers, heads, width, tokens, bytes
    assert memory["kv_units"] == 256
    assert memory["kv_bytes"] == 256 * memory["kv_unit_bytes"]
    assert memory["weight_bytes"] == (tiny_package / "graphs/step.bin").stat().st_size


def test_pack_tiny_package_names_no_machine(tiny_package: Path, tiny_gguf: Path) -> None:
    provenance = json.loads((tiny_package / "build-provenance.json").read_bytes())
    assert provenance["source"]["name"] == "tiny.gguf"
    for path in tiny_package.rglob("*"):
        if path.is_file():
            assert str(tiny_gguf.parent).encode() not in path.read_bytes(), path


def test_pack_twice_gives_the_same_tokenizer_and_goldens(tiny_gguf: Path, tiny_package: Path, tmp_path: Path) -> None:
    pack(tiny_gguf, tmp_path / "again", replace(OPTIONS, alias="tiny"), SilentProgress())
    for name in ("tokenizer.json", "goldens.json", "manifest.yaml", "memory.json", "build-provenance.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tiny_package / name).read_bytes(), name


@pytest.mark.parametrize(("numerics", "least"), [("fast", 1), ("exact", 2)])
def test_pack_int8_is_smaller_and_says_its_numerics(
    tiny_gguf: Path, tiny_package: Path, tmp_path: Path, numerics: str, least: int
) -> None:
    report = pack(tiny_gguf, tmp_path / "p", replace(OPTIONS, weights="int8", numerics=numerics), SilentProgress())
    package = open_package(tmp_path / "p")
    assert (package.weights, package.numerics, package.hash) == ("int8", numerics, report.hash)
    assert package.weight_bytes < 0.6 * open_package(tiny_package).weight_bytes
    assert package.graphs[0].min_flat_tokens == least
    assert package.settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == {"fast": "32", "exact": "0"}[numerics]
    assert package.settings["INFERENCE_PRECISION_HINT"] == "f32"


def test_pack_as_given_of_float16_is_the_same_graph(tiny_gguf: Path, tiny_package: Path, tmp_path: Path) -> None:
    pack(tiny_gguf, tmp_path / "p", replace(OPTIONS, weights="given"), SilentProgress())
    assert open_package(tmp_path / "p").weights == "given"
    for name in ("graphs/step.bin", "graphs/step.xml"):
        assert (tmp_path / "p" / name).read_bytes() == (tiny_package / name).read_bytes(), name


@pytest.mark.slow
def test_pack_gguf_held_against_transformers_agrees_and_records_it(tiny_gguf: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, reference="transformers")
    report = pack(tiny_gguf, tmp_path / "p", options, SilentProgress())
    assert report.agreement.top1 >= 0.99
    assert report.agreement.abs_max > 0.0
    provenance = json.loads((tmp_path / "p/build-provenance.json").read_bytes())
    assert provenance["options"]["reference"] == "transformers"
    assert {"torch", "transformers", "accelerate"} <= provenance["tools"].keys()


def test_pack_exact_whose_logits_change_with_the_cut_is_refused(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = BUILD.PagedLoop.step

    def moved(loop: Any, ids: Any, past: int, wanted: Any) -> Any:
        return step(loop, ids, past, wanted) + (1e-4 if past else 0.0)

    monkeypatch.setattr(BUILD.PagedLoop, "step", moved)
    error = refusal(tiny_gguf, tmp_path / "p")
    assert error.fault.rule == "exact"
    assert "--numerics fast" in str(error)


def test_pack_prints_every_figure(tiny_gguf: Path, tmp_path: Path) -> None:
    progress = SilentProgress()
    pack(tiny_gguf, tmp_path / "p", OPTIONS, progress)
    table = "\n".join(progress.lines)
    for figure in ("top-1", "top-5", "max absolute", "max relative", "cosine, smallest", "cosine, mean"):
        assert figure in table


def test_pack_tokenizer_equals_the_gguf(tiny_package: Path) -> None:
    tokens, merges = tiny_vocabulary()
    saved = json.loads((tiny_package / "tokenizer.json").read_bytes())
    assert saved["model"]["vocab"] == {token: i for i, token in enumerate(tokens)}
    assert saved["model"]["merges"] == [merge.split(" ") for merge in merges]
    assert [(t["id"], t["special"]) for t in saved["added_tokens"]] == [(317, True), (318, True), (319, True)]
    assert (tiny_package / "chat_template.jinja").read_text() == CHAT_TEMPLATE


# Sources that cannot be packed.


def test_pack_not_a_gguf_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\3\4" + bytes(100))
    assert refusal(tmp_path / "x.gguf", tmp_path / "p").fault.rule == "not_gguf"


def test_pack_missing_source_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x.gguf", tmp_path / "p").fault.rule == "source_unreadable"


def test_pack_directory_as_source_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path / "p").fault.rule == "source_kind"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.9999])
def test_pack_truncated_gguf_refused(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    data = tiny_gguf.read_bytes()
    (tmp_path / "x.gguf").write_bytes(data[: max(4, int(len(data) * share))])
    assert refusal(tmp_path / "x.gguf", tmp_path / "p").fault.rule == "gguf_truncated"


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"general.architecture": "gemma3"}, "architecture"),
        ({"llama.rope.scaling.type": "yarn"}, "rope_scaling"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.context_length": None}, "gguf_key"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer_model"),
        ({"tokenizer.ggml.pre": "viking"}, "pre_tokenizer"),
        ({"tokenizer.ggml.merges": None}, "gguf_key"),
        ({"tokenizer.ggml.merges": ["a nothing-like-it"]}, "merges"),
        ({"tokenizer.ggml.tokens": ["a"] * 320}, "vocabulary"),
        ({"tokenizer.ggml.eos_token_id": None}, "gguf_key"),
    ],
)
def test_pack_unsupported_gguf_refused(tmp_path: Path, overrides: dict[str, Any], rule: str) -> None:
    source = write_tiny_gguf(tmp_path / "x.gguf", **overrides)
    assert refusal(source, tmp_path / "p").fault.rule == rule


def test_pack_unsupported_family_names_the_supported(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "x.gguf", **{"general.architecture": "gemma3"})
    sentence = str(refusal(source, tmp_path / "p"))
    assert "gemma3" in sentence
    assert "llama, qwen2, qwen3" in sentence


def test_pack_weights_beyond_float16_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiny_model

    usual = tiny_model.tiny_weights

    def huge(shape: TinyShape) -> dict[str, np.ndarray]:
        weights = usual(shape)
        weights["blk.0.attn_q.weight"] = np.full((128, 128), 70000, np.float32)
        return weights

    monkeypatch.setattr(tiny_model, "tiny_weights", huge)
    source = write_tiny_gguf(tmp_path / "x.gguf")
    assert refusal(source, tmp_path / "p").fault.rule == "weight_range"


def test_pack_rope_frequencies_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiny_model

    usual = tiny_model.tiny_weights
    scaled = {"rope_freqs.weight": np.ones(16, np.float32)}
    monkeypatch.setattr(tiny_model, "tiny_weights", lambda shape: usual(shape) | scaled)
    source = write_tiny_gguf(tmp_path / "x.gguf")
    assert refusal(source, tmp_path / "p").fault.rule == "rope_scaling"


def test_pack_context_beyond_training_is_refused_before_any_work(tmp_path: Path, tiny_gguf: Path) -> None:
    progress = SilentProgress()
    with pytest.raises(PackageError, match=r"trained for 512 tokens; a context of 513 is too long\.$"):
        pack(tiny_gguf, tmp_path / "p", replace(OPTIONS, context=513), progress)
    assert progress.lines == []


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (replace(OPTIONS, context=513), "context_too_long"),
        (replace(OPTIONS, context=16), "context"),
        (replace(OPTIONS, profiles=()), "profiles"),
        (replace(OPTIONS, profiles=(4, 1)), "profiles"),
        (replace(OPTIONS, profiles=(0, 4)), "profiles"),
        (replace(OPTIONS, profiles=(1, 1)), "profiles"),
        (replace(OPTIONS, profiles=(1, 257)), "profiles"),
        (replace(OPTIONS, weights="int3"), "weights"),
        (replace(OPTIONS, numerics="nice"), "numerics"),
        (replace(OPTIONS, alias="a/../b c"), "alias"),
    ],
)
def test_pack_bad_options_refused(tiny_gguf: Path, tmp_path: Path, options: PackOptions, rule: str) -> None:
    assert refusal(tiny_gguf, tmp_path / "p", options).fault.rule == rule


# Targets.


def test_pack_existing_target_refused_and_untouched(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/mine").write_text("mine")
    assert refusal(tiny_gguf, tmp_path / "p").fault.rule == "target_exists"
    assert refusal(tiny_gguf, tmp_path / "p", replace(OPTIONS, force=True)).fault.rule == "target_foreign"
    assert (tmp_path / "p/mine").read_text() == "mine"


def test_pack_force_replaces_a_package(tiny_gguf: Path, tiny_package: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_package, tmp_path / "p")
    (tmp_path / "p/graphs/step.bin").write_bytes(b"damaged")
    pack(tiny_gguf, tmp_path / "p", replace(OPTIONS, force=True), SilentProgress())
    assert open_package(tmp_path / "p").model == "tiny"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_pack_below_a_file_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageError) as caught:
        pack(tiny_gguf, tmp_path / "file/p", OPTIONS, SilentProgress())
    assert caught.value.fault.rule == "target_unwritable"


def test_pack_too_little_room_refused(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TARGET.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert refusal(tiny_gguf, tmp_path / "p").fault.rule == "disk_full"


def test_pack_without_its_tools_names_the_extra(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SOURCE, "find_spec", lambda name: None if name == "nncf" else object())
    error = refusal(tiny_gguf, tmp_path / "p")
    assert error.fault.rule == "pack_missing"
    assert "nncf of the extra `pack-gguf`" in str(error)


def _raise(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any, **__: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("module", "place"),
    [(GGUF, "write_f16"), (GGUF, "convert_gguf"), (BUILD, "_save_paged"), (BUILD, "write_provenance")],
)
def test_pack_interrupted_leaves_nothing(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, place: str
) -> None:
    monkeypatch.setattr(module, place, _raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        pack(tiny_gguf, tmp_path / "p", OPTIONS, SilentProgress())
    assert list(tmp_path.iterdir()) == []


def test_pack_disk_fills_says_so(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GGUF, "write_f16", _raise(OSError(errno.ENOSPC, "No space left on device")))
    assert refusal(tiny_gguf, tmp_path / "p").fault.rule == "disk_full"


def test_pack_graph_unlike_its_source_refused(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the packed logits change places, as a wrong Gather would do."""
    step = BUILD.PagedLoop.step
    monkeypatch.setattr(BUILD.PagedLoop, "step", lambda *args: np.roll(step(*args), 1, axis=0))
    assert refusal(tiny_gguf, tmp_path / "p").fault.rule == "agreement"


@pytest.mark.parametrize(("numerics", "kind"), [("fast", "given fast"), ("exact", "given exact of sixteen")])
def test_pack_as_given_that_agrees_too_little_is_told_of_weights_as_given(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numerics: str, kind: str
) -> None:
    step = BUILD.PagedLoop.step
    monkeypatch.setattr(BUILD.PagedLoop, "step", lambda *args: np.roll(step(*args), 1, axis=0))
    options = PackOptions(context=512, weights="given", numerics=numerics)
    assert f"; {kind}" in str(refusal(tiny_gguf, tmp_path / "p", options))


def test_pack_clears_what_a_killed_pack_left_and_nothing_of_a_running_one(tiny_gguf: Path, tmp_path: Path) -> None:
    dead, alive = tmp_path / ".p.packing-999999999-x", tmp_path / f".p.packing-{os.getppid()}-y"
    dead.mkdir()
    alive.mkdir()
    pack(tiny_gguf, tmp_path / "p", PackOptions(context=512, weights="fp16", numerics="exact"), SilentProgress())
    assert not dead.exists()
    assert alive.exists()
