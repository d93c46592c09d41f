"""Good packages as values: changed by one thing, written, and held against the gates.

`Draft` has every description as plain data, so a test says what it breaks and nothing else. Four kinds are good:
`toy` (one paged graph), `lanes` (fixed batches, on a simulated target), `pair` (two models, a chip each) and `vendor`
(laid by a compiler that is not ours).
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import package_rig as rig
import yaml

GUARD = 1 << 30


@dataclass
class Draft:
    """manifest, memory, compatibility, goldens (by file name): as written. files: every other file's bytes."""

    manifest: dict[str, Any]
    memory: dict[str, Any]
    compatibility: dict[str, Any]
    goldens: dict[str, dict[str, Any]]
    files: dict[str, bytes] = field(default_factory=dict)

    def model(self, number: int = 0) -> dict[str, Any]:
        model: dict[str, Any] = self.manifest["models"][number]
        return model

    def graph(self, name: str, model: int = 0) -> dict[str, Any]:
        graph: dict[str, Any] = next(g for g in self.model(model)["graphs"] if g["name"] == name)
        return graph

    def tensor(self, graph: str, name: str) -> dict[str, Any]:
        both = (*self.graph(graph)["inputs"], *self.graph(graph)["outputs"])
        tensor: dict[str, Any] = next(t for t in both if t["name"] == name)
        return tensor

    def section(self, name: str) -> dict[str, Any]:
        section: dict[str, Any] = next(s for s in self.memory["sections"] if s["name"] == name)
        return section

    def retext(self, role: str, content: bytes) -> None:
        """Other content for a text file, and the manifest's hash of it."""
        model = self.model()
        self.files[model["files"][role]] = content
        model[f"{role}_sha256"] = hashlib.sha256(content).hexdigest()

    def resize(self, tensor: dict[str, Any], shape: list[int]) -> None:
        """Another shape, with the bytes that follow from it and the I/O of the largest job."""
        size = {"int32": 4, "int64": 8, "float32": 4, "float16": 2, "uint8": 1}[tensor["dtype"]]
        for length in shape:
            size *= length
        tensor["shape"], tensor["bytes"] = shape, size
        self.recount()

    def recount(self) -> None:
        """I/O by hand: the largest graph's tensors; its section with it."""
        for number, figures in enumerate(self.memory["models"]):
            graphs = self.model(number)["graphs"]
            io = max(sum(t["bytes"] for t in (*g["inputs"], *g["outputs"])) for g in graphs)
            figures["io_bytes"] = io
            for section in self.memory["sections"]:
                if section["model"] == figures["model"] and section["kind"] == "io":
                    section["bytes"] = io

    def write(self, root: Path) -> Path:
        root.mkdir(parents=True)
        texts: dict[str, bytes] = {
            "manifest.yaml": yaml.safe_dump(self.manifest, sort_keys=False).encode("utf-8", "surrogatepass"),
            "memory.json": json.dumps(self.memory).encode(),
            "compatibility.json": json.dumps(self.compatibility).encode(),
            **{name: json.dumps(value).encode() for name, value in self.goldens.items()},
        }
        for name, content in {**texts, **self.files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o644)
        for folder in (root, *(p for p in root.rglob("*") if p.is_dir())):
            folder.chmod(0o755)
        rig.list_files(root)
        (root / "checksums.sha256").chmod(0o644)
        return root


def toy() -> Draft:
    return Draft(
        rig.good_manifest(),
        copy.deepcopy(rig.MEMORY),
        copy.deepcopy(rig.COMPATIBILITY),
        {"goldens.json": copy.deepcopy(rig.GOLDENS)},
        {
            "graphs/step.xml": b"<net/>",
            "graphs/step.bin": bytes(1000),
            "tokenizer.json": rig.TOKENIZER.encode(),
            "chat_template.jinja": rig.TEMPLATE.encode(),
            "build-provenance.json": b"{}",
        },
    )


def _int32(name: str, shape: list[int]) -> dict[str, Any]:
    size = 4
    for length in shape:
        size *= length
    return {"name": name, "shape": shape, "dtype": "int32", "bytes": size, "sliceable": False}


def _lane_graph(name: str, task: str, rows: int, width: int) -> dict[str, Any]:
    inputs = [_int32(each, [rows, width]) for each in ("tokens", "positions")]
    inputs += [_int32(each, [rows]) for each in ("kv_lanes", "counts", "lengths")]
    return {
        "name": name,
        "tasks": [task],
        "batch": {"rows": rows, "fixed": True},
        "row_binding": "free",
        "kv_layout": "lanes",
        "inactive_lane_policy": "position_minus_one" if rows > 1 else None,
        "max_tokens": 64,
        "max_row_tokens": width,
        "max_job_tokens": rows * width,
        "min_chunk_tokens": 1,
        "min_flat_tokens": 1,
        "logits_tile": 1,
        "scratch_units": [],
        "csr_names": [],
        "chip_mask": 1,
        "expected_step_ns": 1000,
        "inputs": inputs,
        "outputs": [{"name": "logits", "shape": [rows, 100], "dtype": "float32", "bytes": 400 * rows,
                     "sliceable": False}],
    }  # fmt: skip


def lanes() -> Draft:
    """Profiles 1 and 4, and a prefill; a KV unit is a lane of 64 tokens: 2 x 2 x 1 x 16 x 64 x 2 bytes."""
    draft = toy()
    draft.manifest["target"] = "sim"
    model = draft.model()
    model["weights"] = "none"
    model["kv"]["unit_tokens"] = 64
    model["graphs"] = [
        _lane_graph("prefill", "prefill", 1, 64),
        _lane_graph("decode_b1", "decode", 1, 1),
        _lane_graph("decode_b4", "decode", 4, 1),
    ]
    for role in ("graph:step", "weights:step"):
        del draft.files[model["files"].pop(role)]
    figures = draft.memory["models"][0]
    figures["kv_unit_bytes"], figures["kv_units"], figures["kv_bytes"] = 8192, 4, 32768
    draft.compatibility.update(target="sim", runtime="sim>=0.7", devices=["board"])
    draft.memory["chips"][0]["guard_bytes"] = GUARD
    draft.recount()
    return draft


def pair() -> Draft:
    """Models a and b, the toy twice, pinned to chips 0 and 1."""
    draft = toy()
    one = draft.model()
    draft.manifest["models"] = []
    draft.memory.update(models=[], sections=[], chips=[])
    goldens, files = draft.goldens["goldens.json"], draft.files
    draft.goldens = {}
    draft.files = {"build-provenance.json": b"{}"}
    for chip, name in enumerate("ab"):
        model = copy.deepcopy(one)
        model.update(name=name, chip_mask=1 << chip, pinned=True)
        model["graphs"][0]["chip_mask"] = 1 << chip
        model["files"] = {role: f"{name}/{file}" for role, file in one["files"].items()}
        draft.manifest["models"].append(model)
        draft.goldens[f"{name}/goldens.json"] = copy.deepcopy(goldens)
        draft.files |= {f"{name}/{file}": content for file, content in files.items() if "provenance" not in file}
        draft.memory["models"].append({**rig.MEMORY["models"][0], "model": name})
        draft.memory["sections"] += [
            {**section, "name": f"{name}.{section['kind']}", "model": name, "chip_mask": 1 << chip}
            for section in rig.MEMORY["sections"]
        ]
        draft.memory["chips"].append({"chip": chip, "bytes": 6 << 20, "guard_bytes": 0})
    return draft


def vendor() -> Draft:
    """The toy, compiled by a vendor, with a guard. Its runtime is not installed where tests run, which is a warning."""
    draft = toy()
    draft.manifest["target"] = "calrt"
    draft.memory["plan"] = "vendor"
    draft.memory["chips"][0]["guard_bytes"] = GUARD
    draft.compatibility.update(target="calrt", runtime="calrt>=0.7.6")
    return draft


GOOD = {"toy": toy, "lanes": lanes, "pair": pair}
