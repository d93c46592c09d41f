"""Measures requests and jobs from the record: what happened between an arrival and its end.

Owns running sums and histograms per model, and the times of requests that are open. Must not know how they are
shown. Called on the engine thread for every event; its memory is bounded by the requests and jobs that are open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from calserve.core.commands import Command, Emit, Finish, Reset, SubmitJob
from calserve.core.events import (
    Configured,
    Event,
    JobDone,
    JobFailed,
    JobOverdue,
    JobSubmitted,
    PrepareFailed,
    Submit,
)
from calserve.core.job import JobSpec
from calserve.core.outcomes import FaultClass, FinishReason, RefusalKind
from calserve.observe.histogram import Histogram

# vLLM's buckets for the same names, shortened where nobody would tell two apart.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_S = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
E2E_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
DEVICE_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TURNAROUND_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
RATIO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
NS = 1e-9


@dataclass(slots=True)
class ModelMeasures:
    """Everything measured of one model alias."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    refused: dict[RefusalKind, int] = field(default_factory=lambda: dict.fromkeys(RefusalKind, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    token_gap: Histogram = field(default_factory=lambda: Histogram(TPOT_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_S))
    prompt_length: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output_length: Histogram = field(default_factory=lambda: Histogram(TOKENS))


@dataclass(slots=True)
class BoardMeasures:
    """Everything measured of the board, whatever model it runs."""

    jobs_done: int = 0
    jobs_failed: dict[FaultClass, int] = field(default_factory=lambda: dict.fromkeys(FaultClass, 0))
    prepares_failed: int = 0
    jobs_overdue: int = 0
    resets: int = 0
    rows: Histogram = field(default_factory=lambda: Histogram(ROWS))
    fill: Histogram = field(default_factory=lambda: Histogram(RATIO))
    device: Histogram = field(default_factory=lambda: Histogram(DEVICE_S))
    turnaround: Histogram = field(default_factory=lambda: Histogram(TURNAROUND_S))


@dataclass(slots=True)
class _OpenRequest:
    measures: ModelMeasures
    arrived_ns: int
    prompt_tokens: int
    first_ns: int = 0
    last_ns: int = 0


class Measures:
    """A `Recorder` (see `executor.messages`). models: the aliases this server answers for; any other name is
    counted together as `unknown`, so that clients cannot make series.
    """

    UNKNOWN = "unknown"

    def __init__(self, models: Sequence[str]) -> None:
        self.models = {name: ModelMeasures() for name in (*models, self.UNKNOWN)}
        self.board = BoardMeasures()
        self._open: dict[str, _OpenRequest] = {}
        self._jobs: dict[int, JobSpec] = {}
        self._batches: dict[tuple[str, str], int] = {}

    def __call__(self, now_ns: int, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, JobDone):
            self._end_job(event)
        elif isinstance(event, Submit):
            measures = self.models.get(event.model) or self.models[self.UNKNOWN]
            self._open[event.request] = _OpenRequest(measures, event.arrived_ns, event.prompt_tokens)
        else:
            self._note(event)
        for command in commands:
            if isinstance(command, Emit):
                self._emit(command.request, now_ns)
            elif isinstance(command, SubmitJob):
                self._jobs[command.spec.job] = command.spec
            elif isinstance(command, Finish):
                self._finish(command, now_ns)
            elif isinstance(command, Reset):
                self.board.resets += 1

    def _note(self, event: Event) -> None:
        board = self.board
        if isinstance(event, JobSubmitted):
            if event.idle_ns:
                board.turnaround.observe(event.idle_ns * NS)
        elif isinstance(event, JobFailed):
            self._jobs.pop(event.job, None)
            board.jobs_failed[event.failure.fault] += 1
        elif isinstance(event, PrepareFailed):
            self._jobs.pop(event.job, None)
            board.prepares_failed += 1
        elif isinstance(event, JobOverdue):
            board.jobs_overdue += 1
        elif isinstance(event, Configured) and event.facts is not None:
            for graph in event.facts.graphs:
                self._batches[event.session, graph.name] = graph.batch

    def _end_job(self, event: JobDone) -> None:
        spec = self._jobs.pop(event.job, None)
        if spec is None:
            return
        board = self.board
        board.jobs_done += 1
        board.rows.observe(len(spec.rows))
        board.device.observe(event.device_ns * NS)
        batch = self._batches.get((spec.session, spec.graph))
        if batch:
            board.fill.observe(len(spec.rows) / batch)
        for row, result in zip(spec.rows, event.rows, strict=True):
            request = self._open.get(row.request)
            if request is None:
                continue
            request.measures.generation_tokens += result.text_tokens
            # A row of the prompt ends within it; what it computed was real work, padding is not in the count.
            if row.first_position < request.prompt_tokens:
                request.measures.prompt_tokens += row.token_count

    def _emit(self, name: str, now_ns: int) -> None:
        request = self._open.get(name)
        if request is None:
            return
        if request.first_ns:
            request.measures.token_gap.observe((now_ns - request.last_ns) * NS)
        else:
            request.first_ns = now_ns
            request.measures.ttft.observe((now_ns - request.arrived_ns) * NS)
        request.last_ns = now_ns

    def _finish(self, finish: Finish, now_ns: int) -> None:
        request = self._open.pop(finish.request, None)
        if request is None:
            return
        measures = request.measures
        measures.finished[finish.reason] += 1
        if finish.refusal is not None:
            measures.refused[finish.refusal.kind] += 1
            return
        output = finish.usage.completion_tokens
        measures.e2e.observe((now_ns - request.arrived_ns) * NS)
        measures.prompt_length.observe(request.prompt_tokens)
        measures.output_length.observe(output)
        if output > 1 and request.first_ns:
            # TPOT is (E2E - TTFT) / (output tokens - 1): the first token is not part of it.
            measures.tpot.observe((request.last_ns - request.first_ns) * NS / (output - 1))
