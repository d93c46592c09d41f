"""The schema `calserve-package/v1`: the files of a package as strict structs.

Owns field names and what each means; `reader` decodes into these, `pack` encodes from them, so that the two cannot
drift apart. Must not read files or know any board. Every struct refuses unknown fields; nothing has a default that
a package could forget by accident.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

SCHEMA: Final = "calserve-package/v1"
CHECKSUMS = "checksums.sha256"
MANIFEST = "manifest.yaml"
SIGNATURE = "signature"

# Roles every package must fill.
REQUIRED_ROLES = ("tokenizer", "chat_template", "goldens", "memory", "compatibility", "provenance")

# \Z, because $ also matches before a newline at the end
NAME_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}\Z"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
TensorName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts: immutable, and a key nobody knows is an error."""


class TensorEntry(Record, frozen=True):
    """shape: the largest shape. dtype: numpy name or "bfloat16"."""

    name: TensorName
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]
    dtype: Literal["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32"]
    sliceable: bool


class BatchEntry(Record, frozen=True):
    """rows: lanes of the graph. fixed: the board always runs all of them."""

    rows: Count
    fixed: bool


class GraphEntry(Record, frozen=True):
    """One compiled graph. Its files have the roles `graph:NAME` and `weights:NAME`. See GraphContract."""

    name: Name
    tasks: Annotated[tuple[Literal["prefill", "decode", "mixed"], ...], msgspec.Meta(min_length=1, max_length=3)]
    batch: BatchEntry
    row_binding: Literal["fixed", "free"]
    kv_layout: Literal["lanes", "paged"]
    inactive_lane_policy: Literal["omit", "valid_mask", "position_minus_one"] | None
    max_tokens: Count
    max_row_tokens: Count
    max_job_tokens: Count
    min_chunk_tokens: Count
    min_flat_tokens: Count
    logits_tile: Count
    scratch_units: tuple[Index, ...]
    csr_names: tuple[TensorName, ...]
    expected_step_ns: Count | None
    inputs: Annotated[tuple[TensorEntry, ...], msgspec.Meta(min_length=1, max_length=4096)]
    outputs: Annotated[tuple[TensorEntry, ...], msgspec.Meta(min_length=1, max_length=64)]


class KvEntry(Record, frozen=True):
    """KV geometry: `n_layers` pairs of key and value caches, blocks of `unit_tokens`. dtype: numpy name."""

    n_layers: Count
    n_kv_heads: Count
    head_dim: Count
    unit_tokens: Count
    dtype: Literal["float16", "float32", "uint8", "bfloat16"]


class Manifest(Record, frozen=True):
    """`manifest.yaml`.

    context: longest sequence the package serves. trained_context: longest the model was trained for.
    settings: every numeric hint the board compiles with. files: role -> path inside the package.
    weight_bytes: what the weights take on the board. golden_tolerance: in logits, see `contract.Golden`.
    """

    schema: Literal["calserve-package/v1"]
    model: Name
    board: Name
    architecture: Name
    vocab_size: Count
    context: Count
    trained_context: Count
    lanes: Count
    profiles: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=64)]
    numerics: Literal["fast", "exact"]
    weights: Literal["int8", "fp16"]
    weight_bytes: Count
    eos_token_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=64)]
    golden_tolerance: Annotated[float, msgspec.Meta(ge=0)]
    settings: dict[TensorName, str]
    kv: KvEntry
    graphs: Annotated[tuple[GraphEntry, ...], msgspec.Meta(min_length=1, max_length=64)]
    files: dict[Name, str]


class GoldenEntry(Record, frozen=True):
    """A prompt and its greedy continuation; margins in logits, one per output token."""

    text: str
    prompt_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=4096)]
    output_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=4096)]
    margins: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=4096)]


class Goldens(Record, frozen=True):
    """`goldens.json`."""

    goldens: Annotated[tuple[GoldenEntry, ...], msgspec.Meta(min_length=1, max_length=256)]


class MemoryPlan(Record, frozen=True):
    """`memory.json`, bytes. kv_unit_bytes: one unit over all layers, keys and values. kv_units: allocatable ones of
    the default pool (lanes x context). io_bytes: all inputs and outputs of one job at their largest."""

    weight_bytes: Count
    kv_unit_bytes: Count
    kv_units: Count
    kv_bytes: Count
    io_bytes: Count


class Compatibility(Record, frozen=True):
    """`compatibility.json`. runtime: version range of the board's runtime library, as pip writes it."""

    board: Name
    runtime: str
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
