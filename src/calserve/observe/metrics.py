"""Prometheus exposition: what was measured, and the engine's own counts, as text.

Owns metric names and labels. vLLM's names are kept where the meaning is the same, under the prefix `calserve_`.
Must not know how a number was made. Gauges are computed from a snapshot at each scrape, so they are right also when
nothing runs. Labels are model aliases and fixed enums only: traffic cannot make a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from calserve.core.concurrency import Doubt
from calserve.core.snapshot import EngineSnapshot, SessionView
from calserve.core.states import GenerationState, LaneState
from calserve.observe.board import BoardReading, board_gauges
from calserve.observe.families import PREFIX
from calserve.observe.families import counter as _counter
from calserve.observe.families import gauge as _gauge
from calserve.observe.histogram import Histogram
from calserve.observe.requests import Measures, ModelMeasures

MODEL = "model_name"
QUEUES = ("decode", "short", "medium", "long")
KV_STATES = ("free", "held", "quarantined", "unknown")
_NS = 1e-9

_MODEL_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelMeasures], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Arrival to the first token.", lambda m: m.ttft),
    ("inter_token_latency_seconds", "Gaps between a request's tokens.", lambda m: m.token_gap),
    ("time_per_output_token_seconds", "Mean gap of a request.", lambda m: m.tpot),
    ("e2e_request_latency_seconds", "Arrival to the end.", lambda m: m.e2e),
    ("request_prompt_tokens", "Prompt length of ended requests.", lambda m: m.prompt_length),
    ("request_generation_tokens", "Output length of ended requests.", lambda m: m.output_length),
)
_SESSION_GAUGES: tuple[tuple[str, str, Callable[[SessionView], float]], ...] = (
    ("num_requests_running", "Requests admitted and not ended.", lambda v: v.running_requests),
    ("num_requests_waiting", "Requests not yet admitted.", lambda v: v.waiting_requests),
    ("waiting_prompt_tokens", "Prompt tokens of requests not yet admitted.", lambda v: v.waiting_prompt_tokens),
    ("jobs_in_flight", "Jobs on the board.", lambda v: v.jobs_in_flight),
    ("max_jobs_in_flight", "Jobs allowed on the board at once now.", lambda v: v.max_in_flight),
    ("kv_units", "KV units of the board.", lambda v: v.kv_units_total),
    ("kv_units_held", "KV units that hold tokens.", lambda v: v.kv_units_held),
    ("kv_units_reserved", "KV units promised to admitted requests.", lambda v: v.kv_units_reserved),
)


class Metrics:
    """The `/metrics` page. `measures` is written by the engine thread; `render` runs on the event loop.

    read_board: reads the board at each scrape; must not block. None leaves its gauges out.
    """

    def __init__(self, measures: Measures, read_board: Callable[[], BoardReading] | None = None) -> None:
        self._measures = measures
        self._read_board = read_board
        self._snapshot: EngineSnapshot | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Source(self._collect))

    def render(self, snapshot: EngineSnapshot | None) -> bytes:
        """The exposition text. Without a snapshot the engine did not answer, and its gauges are left out."""
        self._snapshot = snapshot
        return generate_latest(self._registry)

    def _collect(self) -> Iterator[Metric]:
        yield _gauge("up", "1 while the engine answers.", [([], 0.0 if self._snapshot is None else 1.0)], [])
        yield from self._model_metrics()
        yield from self._board_metrics()
        if self._read_board is not None:
            yield from board_gauges(self._read_board())
        if self._snapshot is not None:
            yield from self._snapshot_metrics(self._snapshot)

    def _model_metrics(self) -> Iterator[Metric]:
        models = self._measures.models.items()
        yield _counter("prompt_tokens", "Prompt tokens computed.", [([n], m.prompt_tokens) for n, m in models], [MODEL])
        yield _counter(
            "generation_tokens", "Tokens generated.", [([n], m.generation_tokens) for n, m in models], [MODEL]
        )
        # vLLM's name; every end is counted, and its reason says whether it was a success.
        ends = [([n, reason.value], count) for n, m in models for reason, count in m.finished.items()]
        yield _counter("request_success", "Ended requests by reason.", ends, [MODEL, "finished_reason"])
        refusals = [([n, kind.value], count) for n, m in models for kind, count in m.refused.items()]
        yield _counter("request_refused", "Refused requests by reason.", refusals, [MODEL, "reason"])
        for name, text, pick in _MODEL_HISTOGRAMS:
            family = HistogramMetricFamily(PREFIX + name, text, labels=[MODEL])
            for model, measures in models:
                histogram = pick(measures)
                family.add_metric([model], histogram.cumulative(), histogram.total)
            yield family

    def _board_metrics(self) -> Iterator[Metric]:
        board = self._measures.board
        yield _counter("jobs_done", "Jobs that succeeded.", [([], board.jobs_done)], [])
        failed = [([fault.value], count) for fault, count in board.jobs_failed.items()]
        yield _counter("jobs_failed", "Jobs that failed after submit, by class.", failed, ["fault"])
        yield _counter("jobs_not_submitted", "Jobs that failed before submit.", [([], board.prepares_failed)], [])
        yield _counter("jobs_overdue", "Jobs that passed their deadline.", [([], board.jobs_overdue)], [])
        yield _counter("resets", "Resets ordered.", [([], board.resets)], [])
        for name, text, histogram in (
            ("batch_rows", "Active rows of a job.", board.rows),
            ("batch_fill_ratio", "Active rows over the compiled batch.", board.fill),
            ("job_device_seconds", "Time of a job on the device.", board.device),
            ("job_turnaround_seconds", "End of a job to the next submit.", board.turnaround),
        ):
            family = HistogramMetricFamily(PREFIX + name, text, labels=[])
            family.add_metric([], histogram.cumulative(), histogram.total)
            yield family

    def _snapshot_metrics(self, snapshot: EngineSnapshot) -> Iterator[Metric]:
        models = [name for name in self._measures.models if name != Measures.UNKNOWN]
        views = {name: [view for view in snapshot.sessions if view.model == name] for name in models}
        for name, text, pick in _SESSION_GAUGES:
            yield _gauge(name, text, [([model], sum(map(pick, views[model]))) for model in models], [MODEL])
        shares = [([model], _share(views[model])) for model in models]
        yield _gauge("kv_cache_usage_perc", "KV units held; 1 is all of them.", shares, [MODEL])
        states = [
            ([model, state.value], sum(view.state is state for view in views[model]))
            for model in models
            for state in GenerationState
        ]
        yield _gauge("model_state", "Sessions of the model in each state.", states, [MODEL, "state"])
        doubts = [
            ([model, doubt.value], sum(view.downgrade_reason == doubt.value for view in views[model]))
            for model in models
            for doubt in Doubt
        ]
        yield _gauge("in_flight_lowered", "Sessions with one job at a time, two in doubt.", doubts, [MODEL, "reason"])
        lanes = [
            ([model, state.value], sum(view.lanes_by_state.get(state.value, 0) for view in views[model]))
            for model in models
            for state in LaneState
        ]
        yield _gauge("lanes", "Lanes by state.", lanes, [MODEL, "state"])
        units = [
            ([model, state], sum(view.kv_units_by_state.get(state, 0) for view in views[model]))
            for model in models
            for state in KV_STATES
        ]
        yield _gauge("kv_units_by_state", "KV units by state; together all of them.", units, [MODEL, "state"])
        yield from _queue_gauges(views)
        events = [([name], count) for name, count in sorted(snapshot.counters.items())]
        yield _counter("engine_events", "What the engine counted.", events, ["event"])


class _Source:
    """prometheus-client's collector interface over one function."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known at the first scrape, and no other collector shares the prefix."""
        return ()


def _queue_gauges(views: dict[str, list[SessionView]]) -> Iterator[Metric]:
    depths, waits = [], []
    for model, sessions in views.items():
        for queue in QUEUES:
            seen = [view for session in sessions for view in session.queues if view.queue == queue]
            depths.append(([model, queue], float(sum(view.depth for view in seen))))
            waits.append(([model, queue], max((view.oldest_wait_ns for view in seen), default=0) * _NS))
    yield _gauge("queue_depth", "Requests in each queue.", depths, [MODEL, "queue"])
    yield _gauge("queue_oldest_wait_seconds", "Longest wait in each queue.", waits, [MODEL, "queue"])


def _share(views: list[SessionView]) -> float:
    total = sum(view.kv_units_total for view in views)
    return sum(view.kv_units_held for view in views) / total if total else 0.0
