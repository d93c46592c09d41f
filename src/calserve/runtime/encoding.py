"""A job description into tensors: pure, chosen by the graph's KV layout, and the only place that fills inputs.

Tensor roles by name. An input a contract does not declare is not filled.

LANES (batch B, row width S = `profile.max_row_tokens`):
    tokens int32[B, S]       left-aligned, unused positions 0 (masked by `counts`)
    positions int32[B, S]    absolute; -1 in rows nobody uses under POSITION_MINUS_ONE
    counts int32[B]          real tokens in the row; 0 in an unused row
    lengths int32[B]         KV length of the row after the job
    kv_lanes int32[B]        KV lane of each row; only where rows are bound freely
    valid int32[B]           1 in rows in use; only under VALID_MASK
    CSRs                     (tokens of this job, total length) of row 0; only on B1 graphs that name them
    logits [B, vocab]        output; row i belongs to graph row i

PAGED (T flat tokens, R rows, rows in spec order, then at most one pad row):
    input_ids int64[T], position_ids int64[T], past_lens int32[R], subsequence_begins int32[R+1],
    block_indices int32[N], block_indices_begins int32[R+1], max_context_len int32[]
    sampled_tokens_indices int64[L]   flat index of every position whose logits are wanted
    logits float32[L, vocab]          output; one row per wanted position, in spec order
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calserve.core.board import RowBinding
from calserve.core.job import JobSpec, LogitsWanted
from calserve.runtime.checks import is_within
from calserve.runtime.contract import Code, GraphContract, HostBuffers, InactiveLanePolicy, KvLayout
from calserve.runtime.errors import CalCode

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class EncodeFault:
    """A buffer operation that did not return success, or ("bounds") one not even tried: on what, with which code."""

    operation: str
    tensor: str
    code: Code


def encode(
    contract: GraphContract, spec: JobSpec, tokens: Sequence[Tokens], buffers: HostBuffers
) -> EncodeFault | None:
    """Fill `buffers` for `spec`. tokens: `row.token_count` ids per row, in row order.

    The caller has checked counts, lengths and ids against the contract (`checks`). This keeps every write and every
    slice inside its tensor, so that a board is never asked for more than it has, checks every buffer operation, and
    stops at the first that fails.
    """
    is_lanes = contract.kv_layout is KvLayout.LANES
    if is_lanes and _has_row_outside(contract, spec):
        return EncodeFault("bounds", "tokens", int(CalCode.OUT_OF_RANGE))
    fill = _fill_lanes(contract, spec, tokens, buffers) if is_lanes else _fill_paged(contract, spec, tokens, buffers)
    for name, shape, values in fill:
        tensor = contract.inputs[name]
        if not is_within(tensor, shape):
            return EncodeFault("bounds", name, int(CalCode.OUT_OF_RANGE))
        if values is not None:
            buffers.host(name)[: shape[0]] = values
        code = buffers.map(name)
        if code:
            return EncodeFault("map", name, code)
        if tensor.sliceable:
            code = buffers.slice(name, shape)
            if code:
                return EncodeFault("slice", name, code)
    return _set_csrs(contract, spec, buffers) or _shape_outputs(contract, spec, buffers)


def logits_index(contract: GraphContract, spec: JobSpec) -> tuple[int | None, ...]:
    """Row of the logits output that holds each spec row's last position; None for rows without logits."""
    if contract.kv_layout is KvLayout.LANES:
        fixed = contract.profile.row_binding is RowBinding.FIXED
        return tuple(
            None if row.logits is LogitsWanted.NONE else (row.lane if fixed else i) for i, row in enumerate(spec.rows)
        )
    out: list[int | None] = []
    used = 0
    for row in spec.rows:
        used += _wanted(row.logits, row.token_count)
        out.append(None if row.logits is LogitsWanted.NONE else used - 1)
    return tuple(out)


def _wanted(logits: LogitsWanted, token_count: int) -> int:
    if logits is LogitsWanted.LAST:
        return 1
    return token_count if logits is LogitsWanted.ALL else 0


# Name and shape of an input, and the values that go to its beginning; None where they were put there already.
Filled = Iterator[tuple[str, tuple[int, ...], Sequence[int] | None]]


def _has_row_outside(contract: GraphContract, spec: JobSpec) -> bool:
    """Whether a row would be written outside the tokens' memory."""
    height, width = contract.inputs["tokens"].shape
    fixed = contract.profile.row_binding is RowBinding.FIXED
    for i, row in enumerate(spec.rows):
        if row.token_count > width or not 0 <= (row.lane if fixed else i) < height:
            return True
    return False


def _fill_lanes(contract: GraphContract, spec: JobSpec, tokens: Sequence[Tokens], buffers: HostBuffers) -> Filled:
    batch = contract.profile.batch
    fixed = contract.profile.row_binding is RowBinding.FIXED
    arrays = {name: buffers.host(name) for name in contract.inputs}
    for array in arrays.values():
        array[...] = 0
    if contract.inactive_lane_policy is InactiveLanePolicy.POSITION_MINUS_ONE:
        arrays["positions"][...] = -1
    for i, (row, ids) in enumerate(zip(spec.rows, tokens, strict=True)):
        at = row.lane if fixed else i
        n = row.token_count
        arrays["tokens"][at, :n] = ids
        arrays["positions"][at, :n] = np.arange(row.first_position, row.first_position + n)
        per_row = {"counts": n, "lengths": row.first_position + n, "kv_lanes": row.lane, "valid": 1}
        for name, value in per_row.items():
            if name in arrays:
                arrays[name][at] = value
    for name in arrays:
        yield name, contract.inputs[name].shape if name in ("tokens", "positions") else (batch,), None


def _fill_paged(contract: GraphContract, spec: JobSpec, tokens: Sequence[Tokens], buffers: HostBuffers) -> Filled:
    """Gathers in lists and writes each tensor once: a write per row costs more than the rows themselves."""
    ids: list[int] = []
    positions: list[int] = []
    past: list[int] = []
    begins, blocks, block_begins = [0], list[int](), [0]
    sampled: list[int] = []
    longest = 0
    for row, row_ids in zip(spec.rows, tokens, strict=True):
        count, first = row.token_count, row.first_position
        assert len(row_ids) == count, f"{len(row_ids)} tokens for a row of {count}"
        ids.extend(row_ids)
        positions.extend(range(first, first + count))
        past.append(first)
        blocks.extend(row.kv_units)
        end = len(ids)
        sampled.extend(range(end - _wanted(row.logits, count), end))
        begins.append(end)
        block_begins.append(len(blocks))
        longest = max(longest, first + count)
    if (pad := contract.min_flat_tokens - len(ids)) > 0:
        # one flat token takes another numeric path: a second row hides it
        ids.extend([ids[0]] * pad)
        positions.extend(range(pad))
        past.append(0)
        blocks.append(contract.scratch_units[0])
        begins.append(len(ids))
        block_begins.append(len(blocks))
    if not sampled:  # the graph always computes one row of logits; nobody reads this one
        sampled.append(len(ids) - 1)
    buffers.host("max_context_len")[...] = longest
    filled = {
        "input_ids": ids,
        "position_ids": positions,
        "past_lens": past,
        "subsequence_begins": begins,
        "block_indices": blocks,
        "block_indices_begins": block_begins,
        "sampled_tokens_indices": sampled,
    }
    for name, values in filled.items():
        yield name, (len(values),), values
    yield "max_context_len", (), None


def _set_csrs(contract: GraphContract, spec: JobSpec, buffers: HostBuffers) -> EncodeFault | None:
    if not contract.csr_names:
        return None
    row = spec.rows[0]
    values = (row.token_count, row.first_position + row.token_count)
    for name, value in zip(contract.csr_names, values, strict=True):
        code = buffers.set_csr(name, value)
        if code:
            return EncodeFault("csr", name, code)
    return None


def _shape_outputs(contract: GraphContract, spec: JobSpec, buffers: HostBuffers) -> EncodeFault | None:
    for name, tensor in contract.outputs.items():
        code = buffers.map(name)
        if code:
            return EncodeFault("map", name, code)
        if tensor.sliceable:
            rows = max(1, sum(_wanted(row.logits, row.token_count) for row in spec.rows))
            shape = (rows, contract.vocab_size)
            if not is_within(tensor, shape):
                return EncodeFault("bounds", name, int(CalCode.OUT_OF_RANGE))
            code = buffers.slice(name, shape)
            if code:
                return EncodeFault("slice", name, code)
    return None
