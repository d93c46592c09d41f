"""Hugging Face directories as sources: what is refused before a weight is read, and what comes out of one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_rig import SHAPE, edit_json, write_model, write_plain_model, write_safetensors

from calserve.package import PackageError, open_package
from calserve.package.pack import PackOptions, pack, replay
from calserve.package.pack.hf_source import open_huggingface
from calserve.package.pack.source import check_tools, kind_of
from calserve.package.pack.torch_run import TorchJob, run_torch
from calserve.progress import SilentProgress

TORCH_RUN = sys.modules["calserve.package.pack.torch_run"]
SOURCE = sys.modules["calserve.package.pack.source"]


def refusal(root: Path) -> PackageError:
    with pytest.raises(PackageError) as caught:
        open_huggingface(root, "")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_plain_model(tmp_path / "plain")


def test_huggingface_directory_is_judged_by_its_small_files_and_heads(model: Path) -> None:
    source = open_huggingface(model, "")
    assert (source.kind, source.name, source.architecture) == ("huggingface", "plain", "llama")
    assert (source.trained_context, source.logits_width, source.end_tokens) == (512, 320, (319,))
    assert source.quantization == "BF16"


def test_huggingface_end_tokens_of_both_configs_count(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [317, 319]}')
    assert open_huggingface(model, "").end_tokens == (317, 319)


def test_huggingface_digest_covers_what_is_read_and_nothing_else(model: Path) -> None:
    digest, files = open_huggingface(model, "").digest()
    assert sorted(files) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    listed = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    printed = subprocess.run(["sha256sum"], input=listed.encode(), capture_output=True, check=True).stdout.decode()
    assert printed.split()[0] == digest
    (model / "README.md").write_text("words")
    assert open_huggingface(model, "").digest()[0] == digest
    edit_json(model / "config.json", rms_norm_eps=1e-5)
    assert open_huggingface(model, "").digest()[0] != digest


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "A"}, "A"),
        ({"chat_template.json": '{"chat_template": "B"}'}, "B"),
        ({"tokenizer_config.json": '{"chat_template": "C", "model_max_length": 1e30}'}, "C"),
        (
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "tool", "template": "T"}, '
                '{"name": "default", "template": "D"}]}'
            },
            "D",
        ),
        ({"tokenizer_config.json": "{}"}, ""),
    ],
)
def test_huggingface_chat_template_is_found_wherever_it_lies(model: Path, files: dict[str, str], expected: str) -> None:
    (model / "chat_template.jinja").unlink()
    for name, text in files.items():
        (model / name).write_text(text)
    assert open_huggingface(model, "").chat_template == expected


# Families and configurations that cannot be packed.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma3_text"}, "gemma3_text family; packing supports llama, qwen2, qwen3, qwen3_moe"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "code of its own"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already (gptq)"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_experts": 4}, "4 experts"),
    ],
)
def test_huggingface_unsupported_model_is_told_so(model: Path, changes: dict[str, Any], words: str) -> None:
    edit_json(model / "config.json", **changes)
    error = refusal(model)
    assert error.fault.rule == "not_supported"
    assert str(error).startswith("not supported: ")
    assert words in str(error)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512},
        {"model_type": "bloom", "vocab_size": 320, "hidden_size": 128, "n_layer": 2, "n_head": 4},
        {"model_type": "t5", "vocab_size": 320, "d_model": 128, "num_layers": 2, "num_heads": 4},
    ],
)
def test_huggingface_family_with_other_keys_is_told_by_its_name(model: Path, config: dict[str, Any]) -> None:
    (model / "config.json").write_text(json.dumps(config))
    error = refusal(model)
    assert error.fault.rule == "not_supported"
    assert f"is of the {config['model_type']} family; packing supports llama" in str(error)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"vocab_size": 10**9}, "config"),
        ({"num_hidden_layers": 10**9}, "config"),
        ({"num_hidden_layers": 3}, "source_tensor"),
        ({"hidden_size": 4096}, "source_tensor"),
        ({"intermediate_size": 512}, "source_tensor"),
        ({"vocab_size": 321}, "source_tensor"),
        ({"vocab_size": -1}, "config"),
        ({"vocab_size": "many"}, "config"),
        ({"vocab_size": 300}, "vocabulary"),
        ({"num_key_value_heads": 3}, "config"),
        ({"eos_token_id": 5000}, "end_tokens"),
        ({"eos_token_id": None}, "end_tokens"),
        ({"hidden_size": None}, "config"),
    ],
)
def test_huggingface_claims_that_the_weights_do_not_bear_out_are_refused(
    model: Path, changes: dict[str, Any], rule: str
) -> None:
    edit_json(model / "config.json", **changes)
    assert refusal(model).fault.rule == rule


def test_huggingface_experts_beyond_reason_are_refused_before_they_are_counted(model: Path) -> None:
    edit_json(
        model / "config.json", model_type="qwen3_moe", num_experts=4096, num_experts_per_tok=8,
        num_hidden_layers=1024, moe_intermediate_size=64,
    )  # fmt: skip
    assert "4194304 experts" in str(refusal(model))


def test_huggingface_model_larger_than_memory_is_refused_before_it_is_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TORCH_RUN, "available_bytes", lambda: 10**9)
    error = refusal(model)
    assert error.fault.rule == "memory"
    assert "1.0 GB are free" in str(error)


# Files that a directory may not hold, or holds wrongly.


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.pth", "training_args.bin", "a.pkl"])
def test_huggingface_pickles_are_refused(model: Path, name: str) -> None:
    (model / name).write_bytes(b"\x80\x04.")
    error = refusal(model)
    assert error.fault.rule == "source_pickle"
    assert name in str(error)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "extra.json"])
def test_huggingface_links_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((model / name).read_bytes() if (model / name).exists() else b"{}")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(elsewhere)
    assert refusal(model).fault.rule == "source_link"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_huggingface_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    assert name in str(refusal(model))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\\b.safetensors", "pytorch_model.bin", ""])
def test_huggingface_index_that_names_another_place_is_refused(model: Path, name: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    assert refusal(model).fault.rule == "source_outside"


@pytest.mark.parametrize("text", ["", "[", "[]", '{"vocab_size": NaN}', "[" * 100_000, '{"a": 1, "a": 2}'])
def test_huggingface_config_that_is_none_is_refused(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert refusal(model).fault.rule == "config"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_huggingface_small_file_that_is_huge_is_refused_unread(model: Path, name: str) -> None:
    with (model / name).open("r+b") as file:
        file.truncate(1 << 40)
    assert refusal(model).fault.rule == "source_size"


def _cut(data: bytes) -> bytes:
    return data[:-2]


def _longer(data: bytes) -> bytes:
    return data + b"xx"


def _claims_a_huge_head(data: bytes) -> bytes:
    return (1 << 60).to_bytes(8, "little") + data[8:]


def _head_is_no_json(data: bytes) -> bytes:
    return data[:8] + b"\xff" + data[9:]


@pytest.mark.parametrize(
    "damage", [_cut, _longer, _claims_a_huge_head, _head_is_no_json, lambda _: b"", lambda d: d[:7]]
)
def test_huggingface_damaged_weights_are_refused(model: Path, damage: Callable[[bytes], bytes]) -> None:
    path = model / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert refusal(model).fault.rule == "safetensors"


def test_huggingface_weights_that_overlap_are_refused(model: Path) -> None:
    path = model / "model.safetensors"
    head = {name: {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]} for name in ("a", "b")}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    assert refusal(model).fault.rule == "safetensors"


def test_huggingface_weights_of_eight_bits_are_not_supported(model: Path) -> None:
    write_safetensors(model / "model.safetensors", {"a": [2, 2]}, dtype="F8_E4M3")
    assert "F8_E4M3" in str(refusal(model))


# Tools.


def test_huggingface_without_its_tools_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SOURCE.find_spec
    monkeypatch.setattr(SOURCE, "find_spec", lambda name: None if name == "torch" else there("json"))
    with pytest.raises(PackageError, match=r"^Packing needs torch of the extra `pack`: pip install 'calserve\[pack\]'"):
        check_tools("huggingface", "auto")
    check_tools("gguf", "auto")
    with pytest.raises(PackageError, match="torch"):
        check_tools("gguf", "transformers")


def test_directory_of_neither_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"neither a config\.json"):
        kind_of(tmp_path)


def test_hub_name_is_fetched_and_keeps_its_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = sys.modules["calserve.package.pack.open_source"]
    asked = []
    monkeypatch.setattr(opening, "pull", lambda name, cache, progress: asked.append((name, cache)) or model)
    monkeypatch.setattr(opening, "check_tools", lambda kind, reference: None)
    source = opening.open_source("hf:org/Some-Model", PackOptions(cache=tmp_path), SilentProgress())
    assert asked == [("hf:org/Some-Model", tmp_path)]
    assert (source.name, source.alias) == ("hf:org/Some-Model", "Some-Model")


# Through torch.


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hf") / "calm-llama", calm=True)


@pytest.mark.slow
def test_torch_worker_failure_is_one_sentence(model: Path, tmp_path: Path) -> None:
    job = TorchJob(model=str(model), architecture="LlamaForCausalLM", ids=[1], dtype="float32", export="export")
    (model / "model.safetensors").unlink()
    with pytest.raises(PackageError, match=r"^The export through optimum-intel failed: ") as caught:
        run_torch(job, tmp_path, SilentProgress())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_torch_worker_refuses_tensors_that_would_be_made_up(model: Path, tmp_path: Path) -> None:
    write_safetensors(model / "model.safetensors", {"lm_head.weight": [320, 128]})
    job = TorchJob(model=str(model), architecture="LlamaForCausalLM", ids=[1], logits="logits.npy")
    with pytest.raises(PackageError, match="the checkpoint lacks 2"):
        run_torch(job, tmp_path, SilentProgress())


@pytest.mark.slow
def test_pack_huggingface_int4_is_smaller_and_names_no_machine(
    calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    progress = SilentProgress()
    report = pack(calm, Path("p"), PackOptions(context=512, weights="int4"), progress)
    package = open_package(tmp_path / "p")
    assert (package.model, package.weights, package.numerics) == ("calm-llama", "int4", "fast")
    assert package.settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "32"
    weights = sum(np.prod(shape) for shape in _matrices())
    assert package.weight_bytes < 1.1 * weights  # bytes: four bits each, but the head and embedding of a tiny model
    assert report.agreement.top1 >= 0.7
    assert "top-1" in "\n".join(progress.lines)
    provenance = json.loads((tmp_path / "p/build-provenance.json").read_bytes())
    assert provenance["quantization"]["mode"].startswith("INT4")
    assert {"torch", "transformers", "optimum-intel", "nncf", "openvino"} <= provenance["tools"].keys()
    for path in (tmp_path / "p").rglob("*"):
        assert path.is_dir() or str(tmp_path.parent).encode() not in path.read_bytes(), path
    again = replay(tmp_path / "p", str(calm), tmp_path / "q", PackOptions(), False, progress)
    assert again.differing == ()
    assert again.pack.hash == report.hash


def _matrices() -> list[tuple[int, int]]:
    layer = [(128, 128)] * 2 + [(64, 128)] * 2 + [(256, 128)] * 3
    return [(SHAPE["vocab_size"], 128)] * 2 + layer * 2


@pytest.mark.slow
def test_pack_huggingface_that_four_bits_ruin_is_refused(tmp_path: Path) -> None:
    nervous = write_model(tmp_path / "nervous")
    with pytest.raises(
        PackageError, match=r"top-1 agreement with its source is 0\.\d+; int4 fast needs at least 0\.700"
    ):
        pack(nervous, tmp_path / "p", PackOptions(context=512, weights="int4"), SilentProgress())
    assert [path.name for path in tmp_path.iterdir()] == ["nervous"]


@pytest.mark.slow
def test_pack_huggingface_with_scaled_positions_agrees(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10000.0,
    }  # fmt: skip
    model = write_model(tmp_path / "m", dtype="float16", rope_parameters=scaling, tie_word_embeddings=True)
    report = pack(model, tmp_path / "p", PackOptions(context=512, weights="fp16", numerics="exact"), SilentProgress())
    assert report.agreement.top1 >= 0.99
