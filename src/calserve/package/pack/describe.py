"""The files that describe a packed graph: manifest, goldens, memory, compatibility, provenance.

Owns their names and contents. Must not compute anything with the graph. All of it follows from the source and the
options alone: the same inputs give the same bytes, and nothing of the machine or the hour is in them.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import yaml

from calserve import __version__
from calserve.package.checksums import file_sha256
from calserve.package.fault import PackageError
from calserve.package.manifest import (
    MANIFEST,
    SCHEMA,
    Compatibility,
    GoldenEntry,
    Goldens,
    Manifest,
    ModelEntry,
)
from calserve.package.pack.agreement import Agreement
from calserve.package.pack.contract import CHIP_MASK, GRAPH, graph_entry, kv_entry, kv_units, memory_map
from calserve.package.pack.gguf_source import GgufSource
from calserve.package.pack.options import PackOptions, board_settings
from calserve.package.pack.paged import Geometry
from calserve.runtime.targets import Target

TARGET: Target = "openvino"
RUNTIME_RANGE = ">=2026.4,<2026.5"  # one transformation is private; see paged.py

# How far (in logits) a golden's best token must lead before another processor's rounding may not change it.
GOLDEN_TOLERANCE = {"exact": 0.05, "fast": 0.5}

FILES = {
    f"graph:{GRAPH}": f"graphs/{GRAPH}.xml",
    f"weights:{GRAPH}": f"graphs/{GRAPH}.bin",
    "tokenizer": "tokenizer.json",
    "chat_template": "chat_template.jinja",
    "goldens": "goldens.json",
}
PACKAGE_FILES = {
    "memory": "memory.json",
    "compatibility": "compatibility.json",
    "provenance": "build-provenance.json",
}


def write_descriptions(
    model: GgufSource, root: Path, options: PackOptions, geometry: Geometry, goldens: tuple[GoldenEntry, ...]
) -> None:
    graph = graph_entry(options, model.logits_width)
    kv = kv_entry(geometry)
    weight_bytes = (root / FILES[f"weights:{GRAPH}"]).stat().st_size
    name = options.alias or _default_alias(model)
    entry = ModelEntry(
        name=name,
        architecture=model.architecture,
        chip_mask=CHIP_MASK,
        pinned=False,
        vocab_size=model.logits_width,
        context=options.context,
        trained_context=model.trained_context,
        lanes=options.lanes,
        profiles=options.profiles,
        numerics="exact" if options.numerics == "exact" else "fast",
        weights="int8" if options.weights == "int8" else "fp16",
        weight_bytes=weight_bytes,
        eos_token_ids=end_tokens(model),
        settings=board_settings(options.weights, options.numerics),
        kv=kv,
        tokenizer_sha256=file_sha256(root / FILES["tokenizer"]),
        chat_template_sha256=file_sha256(root / FILES["chat_template"]),
        graphs=(graph,),
        files=FILES,
    )
    write_manifest(root, Manifest(SCHEMA, TARGET, (entry,), PACKAGE_FILES))
    write_json(root / FILES["goldens"], Goldens(entry.numerics, GOLDEN_TOLERANCE[options.numerics], goldens))
    write_json(root / PACKAGE_FILES["memory"], memory_map(name, graph, kv, kv_units(options), weight_bytes))
    compatibility = Compatibility(TARGET, f"openvino{RUNTIME_RANGE}", ("CPU",), ("batch_lanes",))
    write_json(root / PACKAGE_FILES["compatibility"], compatibility)


def write_manifest(root: Path, manifest: Manifest) -> None:
    """`manifest.yaml`, for people to read and without anything the reader refuses."""
    text = yaml.dump(msgspec.to_builtins(manifest), Dumper=_PlainDumper, sort_keys=False, width=110)
    (root / MANIFEST).write_text(text, encoding="utf-8")


class _PlainDumper(yaml.SafeDumper):
    """Never writes aliases: the reader refuses them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_provenance(model: GgufSource, root: Path, options: PackOptions, figures: Agreement) -> None:
    """How the package came to be, without anything of the machine or the hour: same inputs, same text."""
    tools = ("openvino", "openvino-genai", "nncf", "gguf", "tokenizers", "numpy")
    provenance = {
        "source": {
            "name": model.path.name,
            "sha256": file_sha256(model.path),
            "architecture": model.architecture,
            "quantization": model.quantization,
            "license": str(model.metadata.get("general.license", "unknown")),
        },
        "options": {
            "profiles": options.profiles,
            "context": options.context,
            "weights": options.weights,
            "numerics": options.numerics,
        },
        "tools": {"calserve": __version__, **{name: version(name) for name in tools}},
        "agreement": asdict(figures),
    }
    write_json(root / PACKAGE_FILES["provenance"], provenance)


def write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _default_alias(model: GgufSource) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in model.name.lower()).strip("-._") or "model"


def end_tokens(model: GgufSource) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = {model.metadata[key] for key in keys if key in model.metadata}
    if not found:
        raise PackageError("gguf_key", f"{model.path} does not say tokenizer.ggml.eos_token_id.")
    for token in found:
        if not isinstance(token, int) or not 0 <= token < model.logits_width:
            raise PackageError("gguf_key", f"{model.path} names an end token outside its vocabulary: {token}.")
    return tuple(sorted(found))


def chat_template(model: GgufSource) -> str:
    """The GGUF's template; an empty one for a model that has none, which then serves completions only."""
    template = model.metadata.get("tokenizer.chat_template", "")
    return template if isinstance(template, str) else ""
