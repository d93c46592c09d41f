"""A job checked against its graph before the device sees it.

Owns: every limit whose breach would make the device read or write outside its memory, or answer for the wrong
job. Must not know: OpenVINO. Each check gives a code and a sentence with the limit and the value given.
"""

from __future__ import annotations

from calserve.core.board import GraphProfile
from calserve.core.job import JobSpec, LogitsWanted, Row
from calserve.runtime.contract import Code, GraphContract
from calserve.runtime.errors import CalCode

Complaint = tuple[Code, str]


def check_job(contract: GraphContract, spec: JobSpec, unit_tokens: int, kv_units: int) -> Complaint | None:
    """None when `spec` is within the contract. 14: out of range; 22: no such shape; 27: no such task."""
    profile = contract.profile
    if spec.task not in profile.tasks:
        return int(CalCode.NOT_SUPPORTED), f"task {spec.task.value} on graph {profile.name}"
    if not 1 <= len(spec.rows) <= profile.batch:
        return int(CalCode.SHAPE_MISMATCH), f"{len(spec.rows)} rows, limit {profile.batch}"
    for row in spec.rows:
        complaint = _check_row(profile, row, unit_tokens)
        if complaint is not None:
            return complaint
    if len({row.lane for row in spec.rows}) != len(spec.rows):
        return int(CalCode.OUT_OF_RANGE), "a lane stands in two rows"
    units = [unit for row in spec.rows for unit in row.kv_units]
    if len(set(units)) != len(units) or min(units) < 0 or max(units) >= kv_units:
        return int(CalCode.OUT_OF_RANGE), f"KV units held twice or beyond {kv_units - 1}"
    sizes = (
        ("tokens", sum(row.token_count for row in spec.rows), profile.max_job_tokens),
        ("KV units", len(units), contract.inputs["block_indices"].shape[0]),
        ("logits rows", wanted_logits(spec), contract.outputs["logits"].shape[0]),
    )
    for what, given, limit in sizes:
        if given > limit:
            return int(CalCode.SHAPE_MISMATCH), f"{given} {what}, limit {limit}"
    return None


def _check_row(profile: GraphProfile, row: Row, unit_tokens: int) -> Complaint | None:
    end = row.first_position + row.token_count
    if not 1 <= row.token_count <= profile.max_row_tokens:
        return int(CalCode.SHAPE_MISMATCH), f"{row.token_count} tokens in a row, limit {profile.max_row_tokens}"
    if row.first_position < 0 or end > profile.max_tokens:
        return int(CalCode.OUT_OF_RANGE), f"position {end}, limit {profile.max_tokens}"
    if not 0 <= row.lane < profile.batch:
        return int(CalCode.OUT_OF_RANGE), f"lane {row.lane}, limit {profile.batch - 1}"
    if not -(-end // unit_tokens) <= len(row.kv_units) <= -(-profile.max_tokens // unit_tokens):
        return int(CalCode.OUT_OF_RANGE), f"{len(row.kv_units)} KV units of {unit_tokens} for {end} tokens"
    return None


def wanted_logits(spec: JobSpec) -> int:
    """Rows of logits the job asks for."""
    counts = {LogitsWanted.NONE: 0, LogitsWanted.LAST: 1}
    return sum(counts.get(row.logits, row.token_count) for row in spec.rows)


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
