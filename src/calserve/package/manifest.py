"""The schema `calserve-package/v1`: the files of a package as strict structs.

Owns field names and what each means; the reader decodes into these, `pack` encodes from them, and `docs/package.md` is
generated from them, so that the three cannot drift apart. Must not read files or know any board. Every struct refuses
unknown fields; nothing has a default that a package could forget by accident.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from calserve.runtime.targets import Target

SCHEMA: Final = "calserve-package/v1"
CHECKSUMS = "checksums.sha256"
MANIFEST = "manifest.yaml"
SIGNATURE = "signature"

# Roles every package must fill, and roles every model in it must fill.
PACKAGE_ROLES = ("memory", "compatibility", "provenance")
MODEL_ROLES = ("tokenizer", "chat_template", "goldens")

MAX_CHIPS = 32  # bits of a chip mask
# \Z, because $ also matches before a newline at the end
NAME_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}\Z"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
TensorName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
ChipMask = Annotated[int, msgspec.Meta(ge=1, lt=2**MAX_CHIPS)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts: immutable, and a key nobody knows is an error."""


class TensorEntry(Record, frozen=True):
    """One tensor of a graph, by its exact name.

    name: exact, never matched by part. shape: the largest (compiled) shape. dtype: numpy name or "bfloat16".
    bytes: the product of shape and element size. sliceable: whether a job may take only the leading part.
    """

    name: TensorName
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]
    dtype: Literal["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32"]
    bytes: Bytes
    sliceable: bool


class BatchEntry(Record, frozen=True):
    """Compiled batch. rows: lanes of the graph. fixed: the board always runs all of them."""

    rows: Count
    fixed: bool


class GraphEntry(Record, frozen=True):
    """One compiled graph; see GraphContract. Its files have the roles `graph:NAME` and `weights:NAME`.

    name: exact. tasks: what it can do. batch: the compiled batch. row_binding: fixed: row i is KV lane i. kv_layout:
    lanes (a lane's KV is one piece) or paged (blocks). inactive_lane_policy: what an unused row must hold; null only
    where there is one row. max_tokens: the compiled longest sequence. max_row_tokens, max_job_tokens: of one row, of
    one job. min_chunk_tokens, min_flat_tokens: the smallest piece of a prompt, the fewest tokens of a job. logits_tile:
    layout of the logits: 1 plain, T > 1 in tiles of T along the vocabulary. scratch_units: KV units nobody else uses.
    csr_names: registers set per job, (current length, total length) or none. chip_mask: bit i set: it runs on chip i.
    expected_step_ns: time of a whole step at full batch as the compiler states it; null: measured at warm-up.
    inputs, outputs: every tensor, surplus or missing ones are errors.
    """

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
    scratch_units: Annotated[tuple[Index, ...], msgspec.Meta(max_length=4096)]
    csr_names: Annotated[tuple[TensorName, ...], msgspec.Meta(max_length=16)]
    chip_mask: ChipMask
    expected_step_ns: Count | None
    inputs: Annotated[tuple[TensorEntry, ...], msgspec.Meta(min_length=1, max_length=4096)]
    outputs: Annotated[tuple[TensorEntry, ...], msgspec.Meta(min_length=1, max_length=64)]


class KvEntry(Record, frozen=True):
    """KV geometry. n_layers: pairs of key and value caches. n_kv_heads, head_dim: of each. unit_tokens: tokens in a
    unit (a lane's whole length on a lane board, a block on a paged one). dtype: of an element."""

    n_layers: Count
    n_kv_heads: Count
    head_dim: Count
    unit_tokens: Count
    dtype: Literal["float16", "float32", "uint8", "bfloat16"]


class ModelEntry(Record, frozen=True):
    """One model of a package.

    name: the alias it is served under. architecture: family of the weights. chip_mask: every chip its sections may
    name. pinned: whether it must run on just those chips; else any as many will do, as the addresses are relative.
    vocab_size: width of the logits. context: longest sequence served. trained_context: longest it was trained for.
    lanes: KV lanes. profiles: compiled batches worth choosing, rising, ending with `lanes`. numerics: see README.
    weights: format of the weights; "none" only on the simulated target. weight_bytes: what they take on the board.
    eos_token_ids: tokens that end a text. settings: every numeric hint the board compiles with. kv: geometry.
    tokenizer_sha256, chat_template_sha256: of those files, so that an alias cannot be given another model's. graphs:
    every graph. files: role -> path inside the package; roles are `tokenizer`, `chat_template`, `goldens` and the
    graphs' files.
    """

    name: Name
    architecture: Name
    chip_mask: ChipMask
    pinned: bool
    vocab_size: Count
    context: Count
    trained_context: Count
    lanes: Count
    profiles: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=64)]
    numerics: Literal["fast", "exact"]
    weights: Literal["int8", "int4", "fp16", "given", "none"]
    weight_bytes: Count
    eos_token_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=64)]
    settings: Annotated[dict[TensorName, str], msgspec.Meta(max_length=256)]
    kv: KvEntry
    tokenizer_sha256: Sha256
    chat_template_sha256: Sha256
    graphs: Annotated[tuple[GraphEntry, ...], msgspec.Meta(min_length=1, max_length=64)]
    files: Annotated[dict[Name, FileName], msgspec.Meta(max_length=256)]


class Manifest(Record, frozen=True):
    """`manifest.yaml`.

    schema: always "calserve-package/v1". target: the kind of board it is compiled for. models: one, or several of a
    combined package. files: role -> path of what belongs to no single model: `memory`, `compatibility`, `provenance`.
    """

    schema: Literal["calserve-package/v1"]
    target: Target
    models: Annotated[tuple[ModelEntry, ...], msgspec.Meta(min_length=1, max_length=16)]
    files: Annotated[dict[Name, FileName], msgspec.Meta(max_length=16)]


class GoldenEntry(Record, frozen=True):
    """A prompt and its greedy continuation. text: the prompt for people. prompt_ids, output_ids: token ids. margins: by
    how many logits the best token led, one per output token."""

    text: Annotated[str, msgspec.Meta(max_length=65536)]
    prompt_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=4096)]
    output_ids: Annotated[tuple[Index, ...], msgspec.Meta(min_length=1, max_length=4096)]
    margins: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=4096)]


class Goldens(Record, frozen=True):
    """A model's `goldens.json`.

    numerics: what they were computed with; must be the model's. tolerance: in logits: where a margin is below it,
    another processor's rounding may choose another token. goldens: at least one.
    """

    numerics: Literal["fast", "exact"]
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1000)]
    goldens: Annotated[tuple[GoldenEntry, ...], msgspec.Meta(min_length=1, max_length=256)]


class Section(Record, frozen=True):
    """A piece of the address plan, on every chip of its mask at the same address.

    name: exact, unique. model: whose. kind: what is in it. chip_mask: on which chips. address: first byte, in the
    chip's own memory. bytes: its length on each of these chips. writable: the device writes it in a job.
    """

    name: Name
    model: Name
    kind: Literal["weights", "kv", "workspace", "code", "io", "metadata"]
    chip_mask: ChipMask
    address: Bytes
    bytes: Bytes
    writable: bool


class ChipReserve(Record, frozen=True):
    """What the package reserves on a chip. chip: index. bytes: from address 0 to the end of its last section.
    guard_bytes: to be left free beyond that."""

    chip: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHIPS)]
    bytes: Bytes
    guard_bytes: Bytes


class ModelMemory(Record, frozen=True):
    """Bytes of one model over all its chips. model: whose. weight_bytes: as in the manifest. kv_unit_bytes: one unit,
    all layers, keys and values. kv_units: of the default pool. kv_bytes: their product. io_bytes: inputs and outputs of
    one job at their largest. workspace_bytes: the highest peak of its graphs; null where only the board knows it."""

    model: Name
    weight_bytes: Count
    kv_unit_bytes: Count
    kv_units: Count
    kv_bytes: Count
    io_bytes: Count
    workspace_bytes: Bytes | None


class MemoryMap(Record, frozen=True):
    """`memory.json`.

    plan: "packer": this project's packer laid the addresses; "vendor": a vendor's compiler did; "board": the board
    places everything itself, and there are no sections. models: one entry each. chips, sections: the address plan.
    """

    plan: Literal["packer", "vendor", "board"]
    models: Annotated[tuple[ModelMemory, ...], msgspec.Meta(min_length=1, max_length=16)]
    chips: Annotated[tuple[ChipReserve, ...], msgspec.Meta(max_length=MAX_CHIPS)]
    sections: Annotated[tuple[Section, ...], msgspec.Meta(max_length=65536)]


class Compatibility(Record, frozen=True):
    """`compatibility.json`. target: as in the manifest. runtime: versions of the board's runtime library, as pip writes
    them. devices: what it may run on. capabilities: what it needs proven (C0) on the board."""

    target: Target
    runtime: Annotated[str, msgspec.Meta(max_length=256)]
    devices: Annotated[tuple[TensorName, ...], msgspec.Meta(max_length=64)]
    capabilities: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
