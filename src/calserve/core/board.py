"""What the scheduler may know about a board: counts, shapes and proofs, never names of hardware.

Built by the executor from the runtime contract when a session is configured (`Configured.facts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calserve.core.job import Task


class RowBinding(Enum):
    """FIXED: row i of the graph is KV lane i. FREE: any sequence may sit in any row."""

    FIXED = "fixed"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """One compiled graph as the scheduler sees it.

    batch: rows of the graph. When `batch_is_fixed` the board always runs all of them (unused rows follow the
        graph's inactive-lane policy); otherwise any number from 1 to `batch` runs.
    max_tokens: longest sequence (prompt + output) the graph can address.
    max_row_tokens: most tokens one row may carry in one job (1 for a pure decode graph).
    max_job_tokens: most tokens all rows may carry together in one job.
    min_chunk_tokens: fewest tokens a prefill row may carry when the prompt is cut (2 where a single flat token
        takes another numeric path); a whole prompt of one token is always allowed.
    """

    name: str
    tasks: frozenset[Task]
    batch: int
    batch_is_fixed: bool
    row_binding: RowBinding
    max_tokens: int
    max_row_tokens: int
    max_job_tokens: int
    min_chunk_tokens: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Expected duration of one step: `decode_ns` by lane count (ascending), prefill as base + per token."""

    graph: str
    decode_ns: tuple[tuple[int, int], ...]  # ((lanes, ns), ...); empty when the graph cannot decode
    prefill_base_ns: int = 0
    prefill_token_ns: int = 0


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What one configured session offers.

    proven: names of capabilities that are C0 on this board, package and version. The scheduler uses nothing else.
    unit_tokens: tokens in one KV unit. On a lane board one unit is a whole lane (unit_tokens = max sequence and
        unit i is lane i); on a paged board it is a block.
    kv_units: allocatable units; scratch units of the board are not counted here.
    lanes: sequences that can hold KV at once.
    step_times: what is known before anything was measured; the times of `Warmed` replace them, graph by graph.
    """

    session: str
    graphs: tuple[GraphProfile, ...]
    proven: frozenset[str]
    lanes: int
    unit_tokens: int
    kv_units: int
    lane_is_unit: bool
    max_in_flight: int
    step_times: tuple[StepTime, ...] = ()
