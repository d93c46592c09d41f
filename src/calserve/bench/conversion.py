"""What turning BF16 logits into float32 costs: the executor's one pass against the seed's two steps, on the same bits.

Owns: outputs of both layouts filled with random bits, the two-step form, CPU time and allocations of both. Must not
know: boards, sessions. Source of the two-step form: seed 003, section 10.1, "replace": a float32 vector of the whole
tensor, then a copy of what is wanted.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import numpy as np

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.executor.logits import LOGITS, LogitsFault, gather_logits
from calserve.runtime.contract import GraphContract, KvLayout, TensorContract

VOCABULARIES = (49_152, 151_936)
TILES = (1, 16)
ROWS = (1, 16)
_CALLS = 31

Bits = np.ndarray[Any, np.dtype[np.uint16]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call. cpu_ns: median CPU time. arrays, bytes: allocated, whatever became of them. peak_bytes: at once."""

    cpu_ns: int
    arrays: int
    bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ConversionRow:
    tile: int
    vocab: int
    rows: int
    direct: Cost
    two_step: Cost

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_conversions() -> Iterator[ConversionRow]:
    """Every layout, vocabulary and number of rows. Raises RuntimeError if the two forms differ in a single bit."""
    random = np.random.default_rng(20260802)
    for tile in TILES:
        for vocab in VOCABULARIES:
            for rows in ROWS:
                contract = _contract(tile, vocab, rows)
                # Below the exponent of infinity and NaN, so that equal bits are equal numbers.
                bits = random.integers(0, 0x7F80, contract.outputs[LOGITS].shape, np.uint16)
                yield _measure(contract, bits, rows)


def two_steps(contract: GraphContract, bits: Bits, rows: int) -> Floats:
    """float32[rows, vocab] by way of a float32 copy of the whole tensor."""
    source = np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
    result = np.empty((rows, contract.vocab_size), np.float32)
    if contract.logits_tile == 1:
        result[...] = source[:rows, : contract.vocab_size]
    else:
        tiles = contract.vocab_size // contract.logits_tile
        result.reshape(rows, tiles, contract.logits_tile)[...] = source[:tiles].transpose(1, 0, 2)[:rows]
    return result


def _measure(contract: GraphContract, bits: Bits, rows: int) -> ConversionRow:
    wanted = list(range(rows))

    def direct() -> Floats:
        result = gather_logits(contract, bits, wanted)
        if isinstance(result, LogitsFault):
            raise RuntimeError(result.detail)
        return result

    def seed() -> Floats:
        return two_steps(contract, bits, rows)

    if not np.array_equal(direct().view(np.uint32), seed().view(np.uint32)):
        raise RuntimeError(f"the two forms differ: tile {contract.logits_tile}, vocabulary {contract.vocab_size}")
    times: dict[str, list[int]] = {"direct": [], "seed": []}
    for _ in range(_CALLS):  # in turn, so that a slow moment hits both
        times["direct"].append(_cpu_ns(direct))
        times["seed"].append(_cpu_ns(seed))
    costs = [
        Cost(int(statistics.median(times[name])), *count_allocations(call))
        for name, call in (("direct", direct), ("seed", seed))
    ]
    return ConversionRow(contract.logits_tile, contract.vocab_size, rows, *costs)


def _cpu_ns(call: Callable[[], object]) -> int:
    before = time.thread_time_ns()
    call()
    return time.thread_time_ns() - before


def count_allocations(call: Callable[[], object]) -> tuple[int, int, int]:
    """(arrays, their bytes, peak bytes) that `call` allocates through numpy.

    Arrays are looked for after every line that runs, so one that comes and goes within a line is in the peak alone.
    """
    tracemalloc.start(8)
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        kept = call()
        peak = tracemalloc.get_traced_memory()[1] - before
        del kept
        found = _watch_arrays(call)
    finally:
        tracemalloc.stop()
    return sum(found.values()), sum(size * count for (_, size), count in found.items()), peak


def _watch_arrays(call: Callable[[], object]) -> Counter[tuple[object, int]]:
    found: Counter[tuple[object, int]] = Counter()
    alive: Counter[tuple[object, int]] = _arrays_alive()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal alive
        now = _arrays_alive()
        found.update(now - alive)
        alive = now
        return look

    tracing = sys.gettrace()
    sys.settrace(look)
    try:
        kept = call()
    finally:
        sys.settrace(tracing)
    found.update(_arrays_alive() - alive)
    del kept
    return found


def _arrays_alive() -> Counter[tuple[object, int]]:
    """Data of numpy arrays by (where it was allocated, bytes); small ones are headers and indices, not logits."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([domain]).traces
    return Counter((trace.traceback, trace.size) for trace in traces if trace.size >= 4096)


def _contract(tile: int, vocab: int, rows: int) -> GraphContract:
    shape = (rows, vocab) if tile == 1 else (-(-vocab // tile), rows, tile)
    logits = TensorContract(LOGITS, shape, "bfloat16", 2 * int(np.prod(shape)), False)
    profile = GraphProfile(
        name="decode",
        tasks=frozenset({Task.DECODE}),
        batch=rows,
        batch_is_fixed=True,
        row_binding=RowBinding.FIXED,
        max_tokens=vocab,
        max_row_tokens=1,
        max_job_tokens=rows,
        min_chunk_tokens=1,
    )
    return GraphContract(profile, KvLayout.LANES, {}, {LOGITS: logits}, (), None, vocab, logits_tile=tile)
