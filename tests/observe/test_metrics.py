"""Metrics from records with literal times, and gauges from snapshots."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from calserve.core.board import GraphProfile, RowBinding, SessionFacts
from calserve.core.commands import Emit, Finish, SubmitJob
from calserve.core.events import Configured, JobDone, JobSubmitted, RowResult, Submit, Tick
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.core.outcomes import FinishReason, Refusal, RefusalKind, RowEnd, Usage
from calserve.core.snapshot import EngineSnapshot, QueueView, SessionView
from calserve.core.states import GenerationState
from calserve.observe.board import BoardReading, DeviceReading
from calserve.observe.metrics import Metrics
from calserve.observe.requests import Measures

MS = 1_000_000


def _row(request: str, first: int, count: int) -> Row:
    return Row(request, 0, (0,), first, count, LogitsWanted.LAST)


def _job(number: int, *rows: Row) -> SubmitJob:
    return SubmitJob(JobSpec(number, 1, "s", "g", Task.MIXED, Bank.AUTO, 0, rows))


def _done(number: int, rows: int) -> JobDone:
    return JobDone(number, 1, (RowResult(RowEnd.NONE, 1),) * rows, 20 * MS)


def _samples(metrics: Metrics, snapshot: EngineSnapshot | None = None) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values with the model's first) -> value."""
    text = metrics.render(snapshot).decode()
    return {
        (s.name, tuple(s.labels[k] for k in sorted(s.labels, key=lambda k: (k != "model_name", k)))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def _one_request(measures: Measures, name: str = "r", model: str = "m") -> None:
    """Three prompt tokens, three output tokens at 100, 120 and 160 ms after an arrival at 1 s."""
    base = 1000 * MS
    measures(base, Submit(name, "default", model, 3, 3, base), [_job(1, _row(name, 0, 3))])
    measures(base + 100 * MS, _done(1, 1), [_job(2, _row(name, 3, 1)), Emit(name, 1, 0)])
    measures(base + 120 * MS, _done(2, 1), [_job(3, _row(name, 4, 1)), Emit(name, 2, 0)])
    finish = Finish(name, FinishReason.LENGTH, Usage(3, 3))
    measures(base + 160 * MS, _done(3, 1), [Emit(name, 3, 0), finish])


def test_request_times_and_tokens_are_measured() -> None:
    measures = Measures(["m"])
    _one_request(measures)
    samples = _samples(Metrics(measures))
    assert samples["calserve_prompt_tokens_total", ("m",)] == 3
    assert samples["calserve_generation_tokens_total", ("m",)] == 3
    assert samples["calserve_request_success_total", ("m", "length")] == 1
    for name, count, total in (
        ("time_to_first_token_seconds", 1, 0.1),
        ("inter_token_latency_seconds", 2, 0.06),
        ("time_per_output_token_seconds", 1, 0.03),
        ("e2e_request_latency_seconds", 1, 0.16),
        ("request_generation_tokens", 1, 3),
    ):
        assert samples[f"calserve_{name}_count", ("m",)] == count
        assert samples[f"calserve_{name}_sum", ("m",)] == pytest.approx(total)
    assert samples["calserve_time_to_first_token_seconds_bucket", ("m", "0.1")] == 1
    assert samples["calserve_time_to_first_token_seconds_bucket", ("m", "0.08")] == 0


def test_refusal_counts_its_reason_and_no_latency() -> None:
    measures = Measures(["m"])
    finish = Finish("r", FinishReason.REFUSED, Usage(0, 0), Refusal(RefusalKind.QUEUE_FULL, 1, 2))
    measures(5, Submit("r", "default", "m", 3, 3, 5), [finish])
    samples = _samples(Metrics(measures))
    assert samples["calserve_request_refused_total", ("m", "queue_full")] == 1
    assert samples["calserve_e2e_request_latency_seconds_count", ("m",)] == 0


def test_fill_and_turnaround_are_measured() -> None:
    measures = Measures(["m"])
    profile = GraphProfile("g", frozenset({Task.MIXED}), 8, False, RowBinding.FREE, 64, 64, 64, 1)
    facts = SessionFacts("s", (profile,), frozenset(), 8, 1, 64, False, 1)
    measures(1, Configured("s", 1, facts), [])
    measures(2, JobSubmitted(1, 1, 50_000), [_job(1, _row("a", 0, 1), _row("b", 0, 1))])
    measures(3, _done(1, 2), [])
    samples = _samples(Metrics(measures))
    assert samples["calserve_batch_fill_ratio_sum", ()] == 0.25
    assert samples["calserve_batch_rows_sum", ()] == 2
    assert samples["calserve_job_turnaround_seconds_sum", ()] == pytest.approx(50e-6)


def test_series_do_not_grow_with_names_of_models_and_requests() -> None:
    measures = Measures(["m"])
    metrics = Metrics(measures)
    before = set(_samples(metrics))
    for i in range(1000):
        _one_request(measures, f"r{i}\n", f"model {i}")
    after = _samples(metrics)
    assert set(after) == before
    assert after["calserve_generation_tokens_total", ("unknown",)] == 3000
    assert measures._open == {}
    assert measures._jobs == {}


def _view(**changes: object) -> SessionView:
    values: dict[str, object] = {
        "session": "chip-0",
        "model": "m",
        "package": "p",
        "generation": 1,
        "state": GenerationState.READY,
        "waiting_requests": 5,
        "waiting_prompt_tokens": 50,
        "running_requests": 2,
        "jobs_in_flight": 1,
        "oldest_job_submitted_ns": 1,
        "lanes_total": 4,
        "lanes_by_state": {"active": 2, "free": 2},
        "kv_units_total": 10,
        "kv_units_held": 4,
        "kv_units_reserved": 6,
        "context_tokens": 64,
        "queues": (QueueView("short", 5, 2_000_000_000),),
        "waiting_reason": "",
    }
    return SessionView(**(values | changes))  # type: ignore[arg-type]


def test_gauges_come_from_the_snapshot_of_the_scrape() -> None:
    metrics = Metrics(Measures(["m"]))
    busy = _samples(metrics, EngineSnapshot((_view(), _view(session="chip-1")), {"stale_completions": 3}))
    assert busy["calserve_num_requests_running", ("m",)] == 4
    assert busy["calserve_num_requests_waiting", ("m",)] == 10
    assert busy["calserve_kv_cache_usage_perc", ("m",)] == 0.4
    assert busy["calserve_lanes", ("m", "active")] == 4
    assert busy["calserve_model_state", ("m", "ready")] == 2
    assert busy["calserve_queue_depth", ("m", "short")] == 10
    assert busy["calserve_queue_oldest_wait_seconds", ("m", "short")] == 2
    assert busy["calserve_engine_events_total", ("stale_completions",)] == 3
    idle_view = _view(waiting_requests=0, running_requests=0, kv_units_held=0, lanes_by_state={"free": 4}, queues=())
    idle = _samples(metrics, EngineSnapshot((idle_view,), {"stale_completions": 3}))
    assert idle["calserve_num_requests_running", ("m",)] == 0
    assert idle["calserve_lanes", ("m", "active")] == 0
    assert idle["calserve_queue_depth", ("m", "short")] == 0
    assert set(idle) == set(busy)


def test_kv_units_are_shown_by_state_and_add_up() -> None:
    units = {"free": 5, "held": 3, "quarantined": 1, "unknown": 1}
    views = (_view(kv_units_by_state=units), _view(session="chip-1", kv_units_by_state={**units, "free": 6}))
    samples = _samples(Metrics(Measures(["m"])), EngineSnapshot(views, {}))
    assert {state: samples["calserve_kv_units_by_state", ("m", state)] for state in units} == {
        "free": 11, "held": 6, "quarantined": 2, "unknown": 2,
    }  # fmt: skip


def _reading(**changes: object) -> BoardReading:
    values: dict[str, object] = {
        "is_simulated": True,
        "is_healthy": True,
        "devices": (DeviceReading(100, 1000, 55.5, None, None, 2), DeviceReading(0, 1000)),
        "jobs_pending": 1,
        "jobs_left": 3,
        "jobs_finished": 40,
        "buffers_leased": 2,
        "buffers_quarantined": 1,
    }
    return BoardReading(**(values | changes))  # type: ignore[arg-type]


def test_board_is_read_at_each_scrape_also_when_the_engine_does_not_answer() -> None:
    readings = [_reading(), _reading(is_simulated=False, is_healthy=False, jobs_left=0, buffers_leased=0)]
    metrics = Metrics(Measures(["m"]), lambda: readings.pop(0))
    first = _samples(metrics, None)
    assert first["calserve_board_simulated", ()] == 1
    assert first["calserve_board_healthy", ()] == 1
    assert first["calserve_board_jobs", ("pending",)] == 1
    assert first["calserve_board_jobs", ("left",)] == 3
    assert first["calserve_board_jobs_finished_total", ()] == 40
    assert first["calserve_buffers", ("leased",)] == 2
    assert first["calserve_buffers", ("quarantined",)] == 1
    second = _samples(metrics, None)
    assert second["calserve_board_simulated", ()] == 0
    assert second["calserve_board_healthy", ()] == 0
    assert second["calserve_board_jobs", ("left",)] == 0
    assert second["calserve_buffers", ("leased",)] == 0


def test_what_a_board_cannot_read_has_no_series_and_zero_has_one() -> None:
    samples = _samples(Metrics(Measures(["m"]), _reading))
    assert samples["calserve_board_memory_used_bytes", ("0",)] == 100
    assert samples["calserve_board_memory_used_bytes", ("1",)] == 0
    assert samples["calserve_board_temperature_celsius", ("0",)] == 55.5
    assert ("calserve_board_temperature_celsius", ("1",)) not in samples
    assert not any(name == "calserve_board_power_watts" for name, _ in samples)
    assert samples["calserve_board_resets_total", ("0",)] == 2
    assert ("calserve_board_resets_total", ("1",)) not in samples


def test_engine_that_does_not_answer_has_no_gauges_and_is_not_up() -> None:
    samples = _samples(Metrics(Measures(["m"])), None)
    assert samples["calserve_up", ()] == 0
    assert ("calserve_num_requests_running", ("m",)) not in samples


def test_page_shows_no_session_or_package_names() -> None:
    page = Metrics(Measures(["m"])).render(EngineSnapshot((_view(package="secret"),), {})).decode()
    assert "chip-0" not in page
    assert "secret" not in page


def test_recording_a_step_of_sixteen_rows_is_cheap() -> None:
    measures = Measures(["m"])
    names = [f"r{i}" for i in range(16)]
    for name in names:
        measures(0, Submit(name, "default", "m", 1, 10**6, 0), [])
    rows = tuple(_row(name, 5, 1) for name in names)
    done, commands = _done(1, 16), [_job(1, *rows), *(Emit(name, 1, i) for i, name in enumerate(names))]
    measures(1, Tick(), [_job(1, *rows)])

    def once() -> float:
        began = time.perf_counter()
        for step in range(100):
            measures(step, done, commands)
        return (time.perf_counter() - began) / 100

    # 17 records of a step in about 5 us here; the best of several bounds what the code costs, not the machine.
    assert min(once() for _ in range(20)) < 200e-6
