"""A small good package made by hand, to be broken one rule at a time. No board, no model, no OpenVINO."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import yaml

# A hundred words, the ids in order.
TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(100)}, "unk_token": "w0"},
    }
)
TEMPLATE = ""
MODEL: dict[str, Any] = {
    "name": "toy",
    "architecture": "llama",
    "chip_mask": 1,
    "pinned": False,
    "vocab_size": 100,
    "context": 64,
    "trained_context": 128,
    "lanes": 4,
    "profiles": [1, 4],
    "numerics": "exact",
    "weights": "fp16",
    "weight_bytes": 1000,
    "eos_token_ids": [2],
    "settings": {"INFERENCE_PRECISION_HINT": "f32"},
    "kv": {"n_layers": 2, "n_kv_heads": 1, "head_dim": 16, "unit_tokens": 32, "dtype": "float16"},
    "tokenizer_sha256": hashlib.sha256(TOKENIZER.encode()).hexdigest(),
    "chat_template_sha256": hashlib.sha256(TEMPLATE.encode()).hexdigest(),
    "graphs": [
        {
            "name": "step",
            "tasks": ["prefill", "decode", "mixed"],
            "batch": {"rows": 4, "fixed": False},
            "row_binding": "free",
            "kv_layout": "paged",
            "inactive_lane_policy": "omit",
            "max_tokens": 64,
            "max_row_tokens": 64,
            "max_job_tokens": 64,
            "min_chunk_tokens": 2,
            "min_flat_tokens": 2,
            "logits_tile": 1,
            "scratch_units": [8],
            "csr_names": [],
            "chip_mask": 1,
            "expected_step_ns": None,
            "inputs": [
                {"name": "input_ids", "shape": [64], "dtype": "int64", "bytes": 512, "sliceable": True},
                {"name": "position_ids", "shape": [64], "dtype": "int64", "bytes": 512, "sliceable": True},
                {"name": "past_lens", "shape": [5], "dtype": "int32", "bytes": 20, "sliceable": True},
                {"name": "subsequence_begins", "shape": [6], "dtype": "int32", "bytes": 24, "sliceable": True},
                {"name": "block_indices", "shape": [9], "dtype": "int32", "bytes": 36, "sliceable": True},
                {"name": "block_indices_begins", "shape": [6], "dtype": "int32", "bytes": 24, "sliceable": True},
                {"name": "max_context_len", "shape": [], "dtype": "int32", "bytes": 4, "sliceable": False},
                {"name": "sampled_tokens_indices", "shape": [4], "dtype": "int64", "bytes": 32, "sliceable": True},
            ],
            "outputs": [{"name": "logits", "shape": [4, 100], "dtype": "float32", "bytes": 1600, "sliceable": True}],
        }
    ],
    "files": {
        "graph:step": "graphs/step.xml",
        "weights:step": "graphs/step.bin",
        "tokenizer": "tokenizer.json",
        "chat_template": "chat_template.jinja",
        "goldens": "goldens.json",
    },
}
MANIFEST: dict[str, Any] = {
    "schema": "calserve-package/v1",
    "target": "openvino",
    "models": [MODEL],
    "files": {
        "memory": "memory.json",
        "compatibility": "compatibility.json",
        "provenance": "build-provenance.json",
    },
}
GOLDENS = {
    "numerics": "exact",
    "tolerance": 0.05,
    "goldens": [{"text": "a", "prompt_ids": [5, 6], "output_ids": [7, 2], "margins": [1.5, 0.25]}],
}
# 2 x 2 layers x 1 head x 16 x 32 tokens x 2 bytes = 4096 a unit; 4 lanes of 2 units; every section on its own 2 MiB.
MEMORY = {
    "plan": "packer",
    "models": [
        {
            "model": "toy",
            "weight_bytes": 1000,
            "kv_unit_bytes": 4096,
            "kv_units": 8,
            "kv_bytes": 32768,
            "io_bytes": 2764,
            "workspace_bytes": None,
        }
    ],
    "chips": [{"chip": 0, "bytes": 6 << 20, "guard_bytes": 0}],
    "sections": [
        {
            "name": f"toy.{kind}", "model": "toy", "kind": kind, "chip_mask": 1,
            "address": at << 20, "bytes": size, "writable": kind != "weights",
        }
        for kind, at, size in (("weights", 0, 1000), ("kv", 2, 32768), ("io", 4, 2764))
    ],
}  # fmt: skip
COMPATIBILITY = {"target": "openvino", "runtime": "openvino>=1", "devices": ["CPU"], "capabilities": []}


def good_manifest() -> dict[str, Any]:
    return copy.deepcopy(MANIFEST)


def write_package(root: Path, manifest: dict[str, Any] | str | None = None, **files: Any) -> Path:
    """Write the toy package under `root`; `files` replaces the JSON of goldens, memory or compatibility."""
    root.mkdir(parents=True)
    (root / "graphs").mkdir()
    (root / "graphs/step.xml").write_bytes(b"<net/>")
    (root / "graphs/step.bin").write_bytes(bytes(1000))
    (root / "tokenizer.json").write_text(TOKENIZER)
    (root / "chat_template.jinja").write_text(TEMPLATE)
    (root / "build-provenance.json").write_text("{}")
    for name, usual in (("goldens", GOLDENS), ("memory", MEMORY), ("compatibility", COMPATIBILITY)):
        value = files.get(name, usual)
        (root / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest or MANIFEST)
    (root / "manifest.yaml").write_text(text)
    list_files(root)
    return root


def list_files(root: Path) -> None:
    """Write the checksums by hand, as `sha256sum` would print them."""
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    lines = [
        f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n"
        for name in names
        if name not in ("checksums.sha256", "signature")
    ]
    _write_own(root / "checksums.sha256", "".join(lines))


def _write_own(path: Path, text: str) -> None:
    """Write a regular file of the test's own: never through a link that a test put there, nor into a pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
