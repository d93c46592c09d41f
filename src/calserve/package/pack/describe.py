"""The files that describe a packed graph: manifest, goldens, memory, compatibility.

Owns their names and contents. Must not compute anything with the graph. All of it follows from the source and the
options alone: the same inputs give the same bytes, and nothing of the machine or the hour is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from calserve.package.checksums import file_sha256
from calserve.package.manifest import (
    MANIFEST,
    SCHEMA,
    Compatibility,
    GoldenEntry,
    Goldens,
    Manifest,
    ModelEntry,
)
from calserve.package.pack.contract import CHIP_MASK, GRAPH, graph_entry, kv_entry, kv_units, memory_map
from calserve.package.pack.options import PackOptions
from calserve.package.pack.paged import Geometry
from calserve.package.pack.source import Source
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


def tolerance(numerics: str, goldens: Sequence[GoldenEntry]) -> float:
    """In logits. A rounding is a share of what it rounds: where logits are flat, as of a small random model, it is half
    the widest lead, so that some step always binds."""
    widest = max(margin for golden in goldens for margin in golden.margins)
    return min(GOLDEN_TOLERANCE[numerics], round(widest / 2, 4))


@dataclass(frozen=True, slots=True)
class Packed:
    """The graph as it was written. settings: every numeric hint it was measured with."""

    geometry: Geometry
    settings: dict[str, str]
    goldens: tuple[GoldenEntry, ...]


def write_descriptions(source: Source, root: Path, options: PackOptions, packed: Packed) -> None:
    graph = graph_entry(options, source.logits_width)
    kv = kv_entry(packed.geometry)
    weight_bytes = (root / FILES[f"weights:{GRAPH}"]).stat().st_size
    name = options.alias or plain_alias(source.alias)
    entry = ModelEntry(
        name=name,
        architecture=source.architecture,
        chip_mask=CHIP_MASK,
        pinned=False,
        vocab_size=source.logits_width,
        context=options.context,
        trained_context=source.trained_context,
        lanes=options.lanes,
        profiles=options.profiles,
        numerics="exact" if options.numerics == "exact" else "fast",
        weights=cast("Any", options.weights),
        weight_bytes=weight_bytes,
        eos_token_ids=source.end_tokens,
        settings=packed.settings,
        kv=kv,
        tokenizer_sha256=file_sha256(root / FILES["tokenizer"]),
        chat_template_sha256=file_sha256(root / FILES["chat_template"]),
        graphs=(graph,),
        files=FILES,
    )
    write_manifest(root, Manifest(SCHEMA, TARGET, (entry,), PACKAGE_FILES))
    write_json(
        root / FILES["goldens"], Goldens(entry.numerics, tolerance(options.numerics, packed.goldens), packed.goldens)
    )
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


def write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def plain_alias(name: str) -> str:
    """A name to serve under, from what a source calls itself."""
    return (
        "".join(c if (c.isalnum() and c.isascii()) or c in "._-" else "-" for c in name.lower()).strip("-._")[:128]
        or "model"
    )
