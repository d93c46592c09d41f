"""The packed graph as the manifest describes it.

Owns the shapes and limits of the paged graph; must not read files. The largest shapes bound every buffer a board
allocates, so each is derived from lanes and context here and nowhere else.
"""

from __future__ import annotations

from calserve.package.address import SectionNeed, lay_out, model_memory, tensor
from calserve.package.manifest import BatchEntry, GraphEntry, KvEntry, MemoryMap
from calserve.package.pack.options import KV_DTYPE, UNIT_TOKENS, PackOptions
from calserve.package.pack.paged import LOGITS, SAMPLED, Geometry

GRAPH = "step"
CHIP_MASK = 1  # one chip, any one

# A prompt may go whole, and a small context still leaves room for every lane and a chunk, where lanes can hold them.
MIN_JOB_TOKENS = 2048
# Logits of every position are asked for only by teacher-forced checks, in pieces of at most this many.
MIN_LOGITS_ROWS = 64


def blocks_per_lane(options: PackOptions) -> int:
    return -(-options.context // UNIT_TOKENS)


def kv_units(options: PackOptions) -> int:
    """Blocks of the default pool: every lane can reach the end of the context."""
    return options.lanes * blocks_per_lane(options)


def kv_entry(geometry: Geometry) -> KvEntry:
    return KvEntry(geometry.n_layers, geometry.n_kv_heads, geometry.head_dim, UNIT_TOKENS, KV_DTYPE)


def graph_entry(options: PackOptions, vocab_size: int) -> GraphEntry:
    """The one graph of a paged package: prefill, decode and both together, any number of rows.

    scratch_units: the block behind the default pool; a board with another pool takes the block behind that one.
    exact: a single flat token takes another numeric path, so it is never alone.
    """
    least = 2 if options.numerics == "exact" else 1
    job_tokens = max(options.context, min(MIN_JOB_TOKENS, options.lanes * options.context))
    rows = options.lanes + 1  # one more for the row that pads a single token
    blocks = kv_units(options) + 1
    wanted = max(MIN_LOGITS_ROWS, options.lanes)
    return GraphEntry(
        name=GRAPH,
        tasks=("prefill", "decode", "mixed"),
        batch=BatchEntry(options.lanes, fixed=False),
        row_binding="free",
        kv_layout="paged",
        inactive_lane_policy="omit",
        max_tokens=options.context,
        max_row_tokens=options.context,
        max_job_tokens=job_tokens,
        min_chunk_tokens=least,
        min_flat_tokens=least,
        logits_tile=1,
        scratch_units=(kv_units(options),),
        csr_names=(),
        chip_mask=CHIP_MASK,
        expected_step_ns=None,
        inputs=(
            tensor("input_ids", (job_tokens,), "int64", True),
            tensor("position_ids", (job_tokens,), "int64", True),
            tensor("past_lens", (rows,), "int32", True),
            tensor("subsequence_begins", (rows + 1,), "int32", True),
            tensor("block_indices", (blocks,), "int32", True),
            tensor("block_indices_begins", (rows + 1,), "int32", True),
            tensor("max_context_len", (), "int32", False),
            tensor(SAMPLED, (wanted,), "int64", True),
        ),
        outputs=(tensor(LOGITS, (wanted, vocab_size), "float32", True),),
    )


def memory_map(model: str, graph: GraphEntry, kv: KvEntry, units: int, weight_bytes: int) -> MemoryMap:
    """Figures and address plan of a package of one paged graph; its peak of activations only the board knows."""
    figures = model_memory(model, weight_bytes, kv, units, (graph,), None)
    sections, chips = lay_out(
        (
            SectionNeed(model, "weights", CHIP_MASK, weight_bytes),
            SectionNeed(model, "kv", CHIP_MASK, figures.kv_bytes),
            SectionNeed(model, "io", CHIP_MASK, figures.io_bytes),
        )
    )
    return MemoryMap("packer", (figures,), chips, sections)
