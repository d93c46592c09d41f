"""What ties the tensors in memory to the job that is submitted.

Owns: the shapes that the encoder must have left for a job. Must not know: OpenVINO; limits of jobs stand in
`runtime.checks`.
"""

from __future__ import annotations

from calserve.core.job import JobSpec
from calserve.runtime.checks import wanted_logits
from calserve.runtime.contract import GraphContract


def expected_shapes(contract: GraphContract, spec: JobSpec) -> dict[str, tuple[int, ...]]:
    """Shapes the encoder must have left for `spec`: what ties the tensors to the job that is submitted."""
    tokens = sum(row.token_count for row in spec.rows)
    rows = len(spec.rows)
    blocks = sum(len(row.kv_units) for row in spec.rows)
    wanted = max(1, wanted_logits(spec))
    if tokens < contract.min_flat_tokens:
        tokens, rows, blocks = contract.min_flat_tokens, rows + 1, blocks + 1
    return {
        "input_ids": (tokens,),
        "position_ids": (tokens,),
        "past_lens": (rows,),
        "subsequence_begins": (rows + 1,),
        "block_indices": (blocks,),
        "block_indices_begins": (rows + 1,),
        "max_context_len": (),
        "sampled_tokens_indices": (wanted,),
        "logits": (wanted, contract.vocab_size),
    }
