"""Logits out of an output buffer, as the sampler reads them: float32[rows, vocab], checked, no needless copy.

Owns: the way from the layout and type that the contract's metadata names to rows a sampler can read. Must not know:
which board wrote them. The source is an output view, dead when its buffers go back; so is a result that is a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calserve.runtime.checks import ELEMENTS, LOGITS_DTYPES
from calserve.runtime.contract import GraphContract, HostBuffers
from calserve.runtime.errors import CalCode

LOGITS = "logits"
# The type of the host array that holds logits of a contract's dtype. Compared as objects: a dtype's name is computed
# anew each time it is asked for.
_HOST_DTYPES = {dtype: np.dtype(ELEMENTS[dtype][1]) for dtype in LOGITS_DTYPES}

Raw = np.ndarray[Any, np.dtype[Any]]
Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class LogitsFault:
    """The output is not what the contract says: the generation is suspect, not the request."""

    code: int
    detail: str


def read_logits(contract: GraphContract, buffers: HostBuffers, rows: list[int]) -> Logits | LogitsFault:
    """float32[len(rows), vocab] for the given rows of the output; see `gather_logits`."""
    return gather_logits(contract, buffers.output(LOGITS), rows)


def gather_logits(contract: GraphContract, output: Raw, rows: list[int]) -> Logits | LogitsFault:
    """Rows of `output` (at least one), gathered and turned into float32 in one pass, with one allocation: the result.

    A view where the rows are 0..n-1, plain and float32 already. Tiled by T > 1: `output` is [ceil(vocab / T), rows, T].
    Codes: 21 the dtype, 22 the rank or size, 14 a row beyond the output. Nothing is written outside the result.

    Source: seed 003, section 10.1 (only the vocabulary is converted, without a temporary).
    """
    stated = contract.outputs[LOGITS]
    if output.dtype != _HOST_DTYPES[stated.dtype]:
        return LogitsFault(CalCode.DTYPE_MISMATCH, f"logits are {output.dtype.name}, the contract says {stated.dtype}")
    if output.ndim != len(stated.shape):
        return LogitsFault(CalCode.SHAPE_MISMATCH, f"logits have shape {output.shape}, rank {len(stated.shape)} is due")
    fault = _tiles_fault(contract, output, rows) if contract.logits_tile > 1 else _plain_fault(contract, output, rows)
    if fault is not None:
        return fault
    vocab = contract.vocab_size
    is_bits = stated.dtype == "bfloat16"
    if contract.logits_tile == 1:
        flat = output if output.ndim == 2 else output.reshape(-1, output.shape[-1])
        if flat.shape[1] != vocab:
            flat = flat[:, :vocab]
        if rows == list(range(len(rows))):
            return _as_floats(flat[: len(rows)], is_bits)
    result = np.empty((len(rows), vocab), np.uint32 if is_bits else np.float32)
    for at, row in enumerate(rows):
        if contract.logits_tile == 1:
            _put(flat[row], result[at], is_bits)
        else:
            _put_tiles(output[:, row, :], result[at], is_bits)
    floats: Logits = result.view(np.float32)
    return floats


def _as_floats(block: Raw, is_bits: bool) -> Logits:
    """A whole block at once. bfloat16 is the upper half of a float32."""
    if not is_bits:
        return block
    result = np.empty(block.shape, np.uint32)
    _put(block, result, is_bits)
    floats: Logits = result.view(np.float32)
    return floats


def _put(source: Raw, target: Raw, is_bits: bool) -> None:
    """`source` into `target` of the same shape; numpy casts in pieces of a few thousand, never a whole row."""
    if is_bits:
        np.left_shift(source, 16, out=target, dtype=np.uint32)
    else:
        target[...] = source


def _put_tiles(source: Raw, target: Raw, is_bits: bool) -> None:
    """source: [tiles, T] of one row; target: [vocab]. The last tile may hold less than T elements of it."""
    tile = source.shape[1]
    whole = len(target) // tile
    _put(source[:whole], target[: whole * tile].reshape(whole, tile), is_bits)
    if rest := len(target) - whole * tile:
        _put(source[whole, :rest], target[whole * tile :], is_bits)


def _plain_fault(contract: GraphContract, output: Raw, rows: list[int]) -> LogitsFault | None:
    """Each row's elements lie inside the output: base <= size and vocab <= size - base, so that no sum can overflow."""
    vocab, width, size = contract.vocab_size, output.shape[-1], output.size
    if width < vocab:
        return LogitsFault(CalCode.SHAPE_MISMATCH, f"logits have shape {output.shape}, the vocabulary has {vocab}")
    base = max(rows) * width
    if min(rows) < 0 or not (base <= size and vocab <= size - base):
        return _row_fault(size // width, rows)
    return None


def _tiles_fault(contract: GraphContract, output: Raw, rows: list[int]) -> LogitsFault | None:
    vocab, tile = contract.vocab_size, contract.logits_tile
    tiles, height, width = output.shape if output.ndim == 3 else (0, 0, 0)
    if width != tile or tiles != -(-vocab // tile):
        wrong = f"logits have shape {output.shape}, a vocabulary of {vocab} in tiles of {tile} is due"
        return LogitsFault(CalCode.SHAPE_MISMATCH, wrong)
    if not 0 <= min(rows) <= max(rows) < height:
        return _row_fault(height, rows)
    return None


def _row_fault(height: int, rows: list[int]) -> LogitsFault:
    return LogitsFault(CalCode.OUT_OF_RANGE, f"logits have {height} rows, rows {min(rows)}..{max(rows)} are wanted")
