"""The packed graph as the manifest describes it.

Owns the shapes and limits of the paged graph; must not read files. The largest shapes bound every buffer a board
allocates, so each is derived from lanes and context here and nowhere else.
"""

from __future__ import annotations

from calserve.package.manifest import BatchEntry, GraphEntry, KvEntry, MemoryPlan, TensorEntry
from calserve.package.pack.options import KV_DTYPE, UNIT_TOKENS, PackOptions
from calserve.package.pack.paged import LOGITS, SAMPLED, Geometry
from calserve.package.reader import ITEM_BYTES

GRAPH = "step"

# A prompt may go whole, and a small context still leaves room for every lane and a chunk.
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
    job_tokens = max(MIN_JOB_TOKENS, options.context)
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
        expected_step_ns=None,
        inputs=(
            TensorEntry("input_ids", (job_tokens,), "int64", True),
            TensorEntry("position_ids", (job_tokens,), "int64", True),
            TensorEntry("past_lens", (rows,), "int32", True),
            TensorEntry("subsequence_begins", (rows + 1,), "int32", True),
            TensorEntry("block_indices", (blocks,), "int32", True),
            TensorEntry("block_indices_begins", (rows + 1,), "int32", True),
            TensorEntry("max_context_len", (), "int32", False),
            TensorEntry(SAMPLED, (wanted,), "int64", True),
        ),
        outputs=(TensorEntry(LOGITS, (wanted, vocab_size), "float32", True),),
    )


def memory_plan(graph: GraphEntry, kv: KvEntry, units: int, weight_bytes: int) -> MemoryPlan:
    unit_bytes = 2 * kv.n_layers * kv.n_kv_heads * kv.head_dim * kv.unit_tokens * ITEM_BYTES[kv.dtype]
    io_bytes = 0
    for tensor in (*graph.inputs, *graph.outputs):
        size = ITEM_BYTES[tensor.dtype]
        for dimension in tensor.shape:
            size *= dimension
        io_bytes += size
    return MemoryPlan(weight_bytes, unit_bytes, units, unit_bytes * units, io_bytes)
