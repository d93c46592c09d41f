"""What one configured session can do, after the configuration was held against what its board proves.

Owns: the choice of usable graphs, the limits that follow, and expected step times. Must not know: requests.

`shape_of` either returns a `Shape` or one sentence saying what the configuration asks for and the board does
not prove; a `Shape` guarantees I7: whatever its limits let in can run to its end on the empty session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calserve.core.board import GraphProfile, RowBinding, SessionFacts, StepTime
from calserve.core.config import SchedulerConfig
from calserve.core.job import Task


@dataclass(frozen=True, slots=True)
class Shape:
    """Usable graphs and limits of a session.

    decode: ascending by batch. prefill: ascending by the longest row. mixed: None unless prefills may ride.
    chunk_tokens: most prefill tokens beside decodes; 0 where prompts may not be cut. min_chunk: least of a cut.
    max_rows: most rows a job may have. context: longest prompt + output a graph takes.
    kv_tokens: longest that fits the empty KV pool. max_prompt: longest prompt.
    """

    decode: tuple[GraphProfile, ...]
    prefill: tuple[GraphProfile, ...]
    mixed: GraphProfile | None
    incremental: bool
    chunk_tokens: int
    min_chunk: int
    max_rows: int
    lanes: int
    kv_units: int
    unit_tokens: int
    lane_is_unit: bool
    context: int
    kv_tokens: int
    max_prompt: int
    max_in_flight: int
    proven: frozenset[str]
    step_times: dict[str, StepTime]

    def with_step_times(self, measured: tuple[StepTime, ...]) -> Shape:
        return replace(self, step_times={**self.step_times, **{t.graph: t for t in measured}})

    def rows_of(self, graph: GraphProfile) -> int:
        """Rows a job on `graph` may use."""
        return min(graph.batch, self.max_rows)

    def expected_ns(self, graph: GraphProfile, decodes: int, prefill_tokens: int) -> int:
        """Expected time of a job; 0 where nothing was measured."""
        times = self.step_times.get(graph.name)
        if times is None:
            return 0
        total = 0
        if decodes and times.decode_ns:
            lanes = graph.batch if graph.batch_is_fixed else decodes
            total = next((ns for n, ns in times.decode_ns if n >= lanes), times.decode_ns[-1][1])
        elif prefill_tokens:
            total = times.prefill_base_ns
        return total + times.prefill_token_ns * prefill_tokens


def shape_of(config: SchedulerConfig, facts: SessionFacts) -> Shape | str:
    """Hold `config` against `facts`."""
    fault = _unproven(config, facts)
    if fault:
        return fault
    max_rows = _max_rows(config, facts)
    decode = _decode_graphs(config, facts, max_rows)
    prefill = _prefill_graphs(facts)
    if not decode and any(_can_decode(graph) for graph in facts.graphs):
        return f"session {facts.session}: its decode graphs need batch_lanes, which is not proven here"
    if not decode or not prefill:
        return f"session {facts.session}: the package has no graph that can {'prefill' if decode else 'decode'}"
    incremental = "incremental_prefill" in facts.proven
    lanes = min(facts.lanes, _covered_lanes(decode), _covered_lanes(prefill))
    kv_units = min(facts.kv_units, lanes) if facts.lane_is_unit else facts.kv_units
    covering = [g for g in prefill if g.row_binding is RowBinding.FREE or g.batch >= lanes]
    context = min(*(g.max_tokens for g in decode), max(g.max_tokens for g in covering))
    row_tokens = max(min(g.max_row_tokens, g.max_job_tokens) for g in covering if g.max_tokens >= context)
    if lanes < 1 or kv_units < 1 or context < 2:
        return f"session {facts.session}: {lanes} lanes, {kv_units} KV units, context {context} serve nobody"
    min_chunk = max(g.min_chunk_tokens for g in prefill)
    if incremental and row_tokens < 2 * min_chunk - 1:
        return f"session {facts.session}: {row_tokens} tokens a row, a cut needs {2 * min_chunk - 1}"
    return Shape(
        decode=decode,
        prefill=prefill,
        mixed=_mixed_graph(facts, lanes, max_rows, incremental),
        incremental=incremental,
        # below 2m-1 some lengths have no cut with both parts >= m
        chunk_tokens=max(config.prefill_chunk_tokens, 2 * min_chunk - 1) if incremental else 0,
        min_chunk=min_chunk,
        max_rows=max_rows,
        lanes=lanes,
        kv_units=kv_units,
        unit_tokens=facts.unit_tokens,
        lane_is_unit=facts.lane_is_unit,
        context=context,
        kv_tokens=facts.unit_tokens if facts.lane_is_unit else kv_units * facts.unit_tokens,
        max_prompt=context if incremental else min(context, row_tokens),
        max_in_flight=min(config.max_in_flight, facts.max_in_flight),
        proven=facts.proven,
        step_times={times.graph: times for times in facts.step_times},
    )


def _can_decode(graph: GraphProfile) -> bool:
    return Task.DECODE in graph.tasks


def _unproven(config: SchedulerConfig, facts: SessionFacts) -> str:
    """The sentence for a configuration that asks for more than there is, or ""."""
    where = f"session {facts.session}"
    if config.max_in_flight > 1 and "concurrent_jobs" not in facts.proven:
        return f"{where}: {config.max_in_flight} jobs in flight need concurrent_jobs, which is not proven here"
    profiles = config.profiles or ()
    if any(size > 1 for size in profiles) and "batch_lanes" not in facts.proven:
        return f"{where}: batch profile {max(profiles)} needs batch_lanes, which is not proven here"
    fixed = [g.batch for g in facts.graphs if _can_decode(g) and g.batch_is_fixed]
    flexible = [g.batch for g in facts.graphs if _can_decode(g) and not g.batch_is_fixed]
    for size in profiles:
        if size not in fixed and size > max(flexible, default=0):
            have = ", ".join(map(str, sorted(fixed))) or f"up to {max(flexible, default=0)}"
            return f"{where}: batch profile {size} is configured, the package has {have}"
    if len([b for b in fixed if b in profiles]) > 1 and "resident_profiles" not in facts.proven:
        return f"{where}: several batch profiles at once need resident_profiles, which is not proven here"
    return ""


def _max_rows(config: SchedulerConfig, facts: SessionFacts) -> int:
    if "batch_lanes" not in facts.proven:
        return 1
    largest = max((g.batch for g in facts.graphs), default=1)
    return largest if config.profiles is None else min(largest, max(config.profiles))


def _decode_graphs(config: SchedulerConfig, facts: SessionFacts, max_rows: int) -> tuple[GraphProfile, ...]:
    graphs = [g for g in facts.graphs if _can_decode(g)]
    graphs = [g for g in graphs if not g.batch_is_fixed or config.profiles is None or g.batch in config.profiles]
    if max_rows == 1:  # a wider fixed graph would run rows nobody proved
        graphs = [g for g in graphs if not g.batch_is_fixed or g.batch == 1]
    graphs.sort(key=lambda g: (g.batch, g.name))
    if config.profiles is None and "resident_profiles" not in facts.proven:
        graphs = graphs[-1:]  # one profile at a time: the widest serves every lane
    return tuple(graphs)


def _prefill_graphs(facts: SessionFacts) -> tuple[GraphProfile, ...]:
    graphs = [g for g in facts.graphs if Task.PREFILL in g.tasks]
    return tuple(sorted(graphs, key=lambda g: (min(g.max_row_tokens, g.max_job_tokens), g.batch, g.name)))


def _covered_lanes(graphs: tuple[GraphProfile, ...]) -> int:
    """Lanes that some graph reaches: a fixed graph reaches its own rows, a free one any lane."""
    if any(g.row_binding is RowBinding.FREE for g in graphs):
        return 1 << 30
    return max(g.batch for g in graphs)


def _mixed_graph(facts: SessionFacts, lanes: int, max_rows: int, incremental: bool) -> GraphProfile | None:
    if "mixed_batch" not in facts.proven or max_rows < 2:
        return None
    for graph in facts.graphs:
        if Task.MIXED not in graph.tasks:
            continue
        covers = graph.row_binding is RowBinding.FREE or graph.batch >= lanes
        # with every other row decoding, a chunk must still fit beside them or that prompt would starve
        beside = graph.max_job_tokens - (min(graph.batch, max_rows) - 1)
        fits = beside >= 2 * graph.min_chunk_tokens - 1 if incremental else beside > 0
        if covers and fits:
            return graph
    return None
