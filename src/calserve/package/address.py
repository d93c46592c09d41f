"""The address plan this packer makes: where each section of each model lies in a chip's memory.

Owns the order and alignment of sections, and the arithmetic between the figures of a memory map. Must not know files or
boards. Pure. Models on different chips may use the same addresses; on one chip nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from calserve.package.manifest import ChipReserve, GraphEntry, KvEntry, ModelMemory, Section, TensorEntry

SectionKind = Literal["weights", "kv", "workspace", "code", "io", "metadata"]

# Sections begin at multiples of this: a huge page, so that no two of them share one.
ALIGNMENT = 2 << 20
WRITABLE: Final = ("kv", "workspace", "io")

ITEM_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}


@dataclass(frozen=True, slots=True)
class SectionNeed:
    """A piece a model needs on each chip of `chip_mask`: `byte_count` bytes there."""

    model: str
    kind: SectionKind
    chip_mask: int
    byte_count: int


def tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """Bytes of a whole tensor. Python's integers do not wrap."""
    size = ITEM_BYTES[dtype]
    for dimension in shape:
        size *= dimension
    return size


def tensor(name: str, shape: tuple[int, ...], dtype: str, sliceable: bool) -> TensorEntry:
    """A tensor with its bytes."""
    return TensorEntry(name, shape, dtype, tensor_bytes(shape, dtype), sliceable)  # type: ignore[arg-type]


def kv_unit_bytes(kv: KvEntry) -> int:
    """One unit over all layers, keys and values (seed 004, section 8.1)."""
    return 2 * kv.n_layers * kv.n_kv_heads * kv.head_dim * kv.unit_tokens * ITEM_BYTES[kv.dtype]


def job_io_bytes(graphs: Iterable[GraphEntry]) -> int:
    """Inputs and outputs of one job of the largest graph."""
    return max(sum(tensor.bytes for tensor in (*graph.inputs, *graph.outputs)) for graph in graphs)


def model_memory(
    model: str, weight_bytes: int, kv: KvEntry, units: int, graphs: Iterable[GraphEntry], workspace: int | None
) -> ModelMemory:
    unit = kv_unit_bytes(kv)
    return ModelMemory(model, weight_bytes, unit, units, unit * units, job_io_bytes(graphs), workspace)


def lay_out(needs: Iterable[SectionNeed], guard_bytes: int = 0) -> tuple[tuple[Section, ...], tuple[ChipReserve, ...]]:
    """Sections one after another, aligned, each at the first address free on all its chips; and what each chip holds.

    A section over several chips has one address on all of them, as a compiled graph knows only one.
    """
    ends: dict[int, int] = {}
    sections: list[Section] = []
    for need in needs:
        chips = chips_of(need.chip_mask)
        at = max(ends.get(chip, 0) for chip in chips)
        sections.append(
            Section(
                name=f"{need.model}.{need.kind}",
                model=need.model,
                kind=need.kind,
                chip_mask=need.chip_mask,
                address=at,
                bytes=need.byte_count,
                writable=need.kind in WRITABLE,
            )
        )
        end = at + -(-need.byte_count // ALIGNMENT) * ALIGNMENT
        ends.update(dict.fromkeys(chips, end))
    return tuple(sections), tuple(ChipReserve(chip, end, guard_bytes) for chip, end in sorted(ends.items()))


def chips_of(mask: int) -> tuple[int, ...]:
    """Indices of the chips of a mask, rising."""
    return tuple(chip for chip in range(mask.bit_length()) if mask >> chip & 1)
