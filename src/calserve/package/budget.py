"""What a model needs on each chip, use by use: the static side of a plan.

Owns the seed's sum (004, section 8.1), its KV formula, and every assumption that fills a figure nobody has stated. Must
not know boards, verdicts or files. Pure integers; each use says where its bytes come from.

    required = weights + KV(batch, context) + workspace peak + code + I/O + metadata + fragmentation
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from calserve.package.address import ALIGNMENT, ITEM_BYTES
from calserve.package.fault import PackageError
from calserve.package.geometry import Compiled, Geometry

UseName: TypeAlias = Literal["weights", "kv", "workspace", "code", "io", "metadata", "fragmentation"]
WeightFormat: TypeAlias = Literal["int8", "int4", "fp16"]

USES: Final[tuple[UseName, ...]] = ("weights", "kv", "workspace", "code", "io", "metadata", "fragmentation")
# Bytes of 128 weights: a group of them and, where they are quantized, its float16 scale.
GROUP: Final = 128
GROUP_BYTES: Final[dict[str, int]] = {"int8": 130, "int4": 66, "fp16": 256}
ACTIVATION_BYTES: Final = 2  # float16 or bfloat16
# Nobody has stated these two for any board; both are far below the guard.
CODE_LAYER_BYTES: Final = 256 << 10
METADATA_BYTES: Final = 4 << 20
LOGIT_BYTES: Final = 4
INDEX_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """How a model is to run. chips: each graph spans. context, lanes: 0 takes what is compiled, else 4096 and 1.

    max_in_flight: jobs with buffers of their own.
    """

    chips: int = 1
    context: int = 0
    lanes: int = 0
    weights: WeightFormat = "int8"
    max_in_flight: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes on one chip; None where nothing but a load can tell. source: where the figure comes from."""

    name: UseName
    byte_count: int | None
    source: str


DEFAULT_CONTEXT: Final = 4096  # seed 004, section 8.3: 4K first, batch 1


def settled(geometry: Geometry, shape: Shape) -> Shape:
    """`shape` with its zeros filled. Raises PackageError where the model cannot run so on any board."""
    compiled = geometry.compiled
    context = shape.context or (compiled.context if compiled else min(DEFAULT_CONTEXT, geometry.context))
    lanes = shape.lanes or (compiled.lanes if compiled else 1)
    if context > geometry.context:
        raise PackageError(
            "context_too_long",
            f"{geometry.name} was trained for {geometry.context} tokens; a context of {context} is too long.",
            geometry.context,
            context,
        )
    if geometry.n_kv_heads % shape.chips:
        raise PackageError(
            "chips",
            f"{geometry.name} has {geometry.n_kv_heads} KV heads, which {shape.chips} chips cannot share evenly.",
            geometry.n_kv_heads,
            shape.chips,
        )
    return Shape(shape.chips, context, lanes, shape.weights, shape.max_in_flight)


def kv_token_bytes(geometry: Geometry) -> int:
    """KV of one token over all layers and chips: 2 (K, V) x layers x KV heads x head size x element (seed 004, 8.1)."""
    return 2 * geometry.n_layers * geometry.n_kv_heads * geometry.head_dim * ITEM_BYTES[geometry.kv_dtype]


def kv_bytes(geometry: Geometry, context: int, lanes: int) -> int:
    """KV over all chips."""
    return kv_token_bytes(geometry) * context * lanes


def weight_bytes(geometry: Geometry, weights: WeightFormat) -> int:
    """Weights over all chips: as compiled, else from the number of parameters."""
    if geometry.compiled is not None:
        return sum(geometry.compiled.weight_bytes)
    return -(-geometry.parameters * GROUP_BYTES[weights] // GROUP)


def activation_bytes(geometry: Geometry) -> int:
    """What one token holds at the peak of a layer: residual and its norm, and the wider of attention and feed-forward.

    Attention: query, key, value and its output; feed-forward: gate and up.
    """
    query = geometry.n_heads * geometry.head_dim
    attention = 2 * query + 2 * geometry.n_kv_heads * geometry.head_dim
    return ACTIVATION_BYTES * (2 * geometry.hidden_size + max(attention, 2 * geometry.ffn_size))


def workspace_peaks(geometry: Geometry, context: int, lanes: int) -> tuple[int, int]:
    """(prefill, decode) over all chips: one prompt of the whole context at once, and one token in every lane."""
    each = activation_bytes(geometry)
    return each * context, each * lanes


def budget(geometry: Geometry, shape: Shape) -> tuple[tuple[Use, ...], ...]:
    """The uses of each chip the model is on, in the order of `USES`. `shape` is settled."""
    compiled = geometry.compiled
    if compiled is not None and compiled.chips == shape.chips:
        return tuple(_compiled_uses(geometry, compiled, shape, chip) for chip in range(shape.chips))
    uses = _estimated_uses(geometry, shape)
    return (uses,) * shape.chips


def _kv_use(geometry: Geometry, shape: Shape) -> Use:
    words = (
        f"2 x {geometry.n_layers} layers x {geometry.n_kv_heads} KV heads x {geometry.head_dim} x {geometry.kv_dtype}"
    )
    share = f", shared by {shape.chips} chips" if shape.chips > 1 else ""
    size = -(-kv_bytes(geometry, shape.context, shape.lanes) // shape.chips)
    return Use("kv", size, f"{words} x {shape.context} tokens x {shape.lanes} lanes{share}")


def _host_uses(geometry: Geometry, shape: Shape) -> tuple[Use, Use, Use]:
    """Code, I/O and metadata of one chip."""
    graphs = 2  # prefill and decode
    # prefill: ids and positions of a whole prompt, one row of logits; decode: a row of logits for every lane.
    prefill = 2 * INDEX_BYTES * shape.context + LOGIT_BYTES * geometry.vocab_size
    decode = (2 * INDEX_BYTES + LOGIT_BYTES * geometry.vocab_size) * shape.lanes
    return (
        Use(
            "code",
            CODE_LAYER_BYTES * geometry.n_layers * graphs,
            f"assumed: {CODE_LAYER_BYTES >> 10} KiB a layer of each of {graphs} graphs",
        ),
        Use(
            "io",
            shape.max_in_flight * max(prefill, decode),
            f"ids, positions and logits of the largest job, {shape.max_in_flight} in flight",
        ),
        Use("metadata", METADATA_BYTES, f"assumed: {METADATA_BYTES >> 20} MiB a model"),
    )


def _estimated_uses(geometry: Geometry, shape: Shape) -> tuple[Use, ...]:
    chips = shape.chips
    whole = weight_bytes(geometry, shape.weights)
    source = geometry.sources.get("compiled.weight_bytes", "")
    if geometry.compiled is None:
        source = f"{geometry.parameters} parameters in {shape.weights}: {GROUP_BYTES[shape.weights]} bytes for {GROUP}"
    kv = _kv_use(geometry, shape)
    code, io, metadata = _host_uses(geometry, shape)
    weights = Use("weights", -(-whole // chips), source + (f", shared by {chips} chips" if chips > 1 else ""))
    workspace = _workspace_use(geometry, shape)
    placed = (weights, kv, workspace, code, io, metadata)
    return (*placed, _padding_use(placed))


def _workspace_use(geometry: Geometry, shape: Shape) -> Use:
    if not geometry.hidden_size:
        return Use("workspace", None, "known only after a load (--measure)")
    prefill, decode = workspace_peaks(geometry, shape.context, shape.lanes)
    decides = f"prefill of {shape.context} tokens at once" if prefill >= decode else f"decode of {shape.lanes} lanes"
    other = f"decode {decode}" if prefill >= decode else f"prefill {prefill}"
    return Use(
        "workspace",
        -(-max(prefill, decode) // shape.chips),
        f"{decides} decides ({other} bytes): {activation_bytes(geometry)} bytes a token, assumed",
    )


def _padding_use(placed: tuple[Use, ...]) -> Use:
    """What the address plan loses: every section begins on a boundary. What an allocator loses only time can show."""
    padding = sum(-use.byte_count % ALIGNMENT for use in placed if use.byte_count is not None)
    return Use("fragmentation", padding, f"sections begin at multiples of {ALIGNMENT >> 20} MiB")


def _compiled_uses(geometry: Geometry, compiled: Compiled, shape: Shape, chip: int) -> tuple[Use, ...]:
    """A compiler's own figures, as far as they go; KV alone follows another context or batch."""
    kv = _kv_use(geometry, shape)
    source = geometry.sources["compiled.weight_bytes"]
    weights = Use("weights", compiled.weight_bytes[chip], source)
    if compiled.sections is None:
        return _from_reservation(geometry, compiled, shape, chip)
    sections = compiled.sections[chip]
    inside = "the package's address plan"
    known = "workspace" in sections
    workspace = Use("workspace", sections["workspace"], inside) if known else _workspace_use(geometry, shape)
    rest = [Use(name, sections.get(name, 0), inside) for name in ("code", "io", "metadata")]
    lost = compiled.reserved_bytes[chip] - sum(sections.values())
    return weights, kv, workspace, *rest, Use("fragmentation", lost, "gaps and padding of the package's address plan")


def _from_reservation(geometry: Geometry, compiled: Compiled, shape: Shape, chip: int) -> tuple[Use, ...]:
    """Where only the whole reservation is known, the workspace is what the other uses leave of it."""
    code, io, metadata = _host_uses(geometry, Shape(shape.chips, compiled.context, compiled.lanes))
    as_compiled = kv_bytes(geometry, compiled.context, compiled.lanes) // shape.chips
    taken = sum(use.byte_count or 0 for use in (code, io, metadata))
    left = compiled.reserved_bytes[chip] - compiled.weight_bytes[chip] - as_compiled - taken
    reserved = geometry.sources["compiled.reserved_bytes"]
    workspace: Use
    if left > 0:
        workspace = Use("workspace", left, f"what the other uses leave of the reservation: {reserved}")
    else:
        workspace = _workspace_use(geometry, shape)
    weights = Use("weights", compiled.weight_bytes[chip], geometry.sources["compiled.weight_bytes"])
    padding = Use("fragmentation", 0, "inside the reservation")
    return weights, _kv_use(geometry, shape), workspace, code, io, metadata, padding
