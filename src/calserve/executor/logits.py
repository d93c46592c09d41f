"""Logits out of an output buffer, as the sampler reads them: float32[rows, vocab], checked, no needless copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calserve.runtime.contract import GraphContract, HostBuffers
from calserve.runtime.errors import CalCode

LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class LogitsFault:
    """The output is not what the contract says: the generation is suspect, not the request."""

    code: int
    detail: str


def read_logits(
    contract: GraphContract, buffers: HostBuffers, rows: list[int]
) -> np.ndarray[Any, np.dtype[np.float32]] | LogitsFault:
    """float32[len(rows), vocab] for the given rows of the output.

    A view where the rows are 0..n-1 and float32 already, else one copy.

    Source of the bounds check: seed 003, section 10.1 (compare without adding, so that nothing can overflow).
    """
    output = buffers.output(LOGITS)
    vocab = contract.vocab_size
    if output.ndim < 1 or output.shape[-1] < vocab:
        return LogitsFault(CalCode.SHAPE_MISMATCH, f"logits have shape {output.shape}, the vocabulary has {vocab}")
    flat = output.reshape(-1, output.shape[-1])
    if max(rows) >= len(flat):
        return LogitsFault(CalCode.OUT_OF_RANGE, f"logits have {len(flat)} rows, row {max(rows)} is wanted")
    leading = rows == list(range(len(rows)))
    taken = flat[: len(rows)] if leading else flat[np.fromiter(rows, np.intp, len(rows))]
    if output.shape[-1] != vocab:
        taken = taken[:, :vocab]
    if contract.outputs[LOGITS].dtype == "bfloat16":
        return bfloat16_to_float32(taken)
    return taken.astype(np.float32, copy=False)


def bfloat16_to_float32(
    raw: np.ndarray[Any, np.dtype[Any]],
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """uint16 bit patterns to float32: bfloat16 is the upper half of a float32. One allocation, the result."""
    out = np.left_shift(raw.view(np.uint16), 16, dtype=np.uint32)
    floats: np.ndarray[Any, np.dtype[np.float32]] = out.view(np.float32)
    return floats
