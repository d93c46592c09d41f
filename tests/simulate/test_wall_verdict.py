"""The bounds of a soak on real time: slopes by hand, audits that see what is wrong."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from calserve.simulate.wall.conclude import conclude
from calserve.simulate.wall.report import WallReport, print_report
from calserve.simulate.wall.samples import SAMPLES_MAX, Sample, Samples, lives, parse_metrics
from calserve.simulate.wall.verdict import (
    MIB,
    count_check,
    drift,
    drift_checks,
    idle_check,
    kv_check,
    slope,
)

IDLE = {
    "kv_units": 16.0,
    "kv_units_by_state:free": 16.0,
    "lanes:free": 16.0,
    "num_requests_running": 0.0,
    "num_requests_waiting": 0.0,
    "buffers:leased": 0.0,
    "board_jobs:left": 0.0,
}


def life(rss: list[int], number: int = 1, **values: float) -> list[Sample]:
    return [Sample(float(at), number, size, 20, 8, 0, values) for at, size in enumerate(rss)]


def test_slope_is_the_least_squares_line() -> None:
    # By hand: x mean 1, y mean 2; (−1·−1 + 0·−1 + 1·2) / 2 = 1.5.
    assert slope([(0, 1), (1, 1), (2, 4)]) == pytest.approx(1.5)
    assert slope([(3, 1), (3, 9)]) == 0.0


def test_drift_leaves_the_warm_up_out() -> None:
    # Thirty percent warm-up that climbs, then flat: no drift. The same climb all along: drift.
    assert drift(life([100 * i for i in range(30)] + [3000] * 70), lambda s: s.rss) == pytest.approx(0.0)
    # 70 samples climbing by 2 are 69 steps apart.
    assert drift(life([2 * i for i in range(100)]), lambda s: s.rss) == pytest.approx(138.0)
    assert drift(life([1, 2, 3]), lambda s: s.rss) is None


def failed(samples: list[list[Sample]]) -> list[str]:
    return [check.name for check in drift_checks(samples) if check.ok is False]


def test_drift_checks_see_a_leak_and_not_a_restart() -> None:
    flat = [200 * MIB] * 60
    assert failed([life(flat)]) == []
    assert failed([life([200 * MIB + i * MIB for i in range(60)])]) == []  # 41 MiB of 200 and 32 to spare: just within
    assert failed([life([200 * MIB + 2 * i * MIB for i in range(60)])]) == ["rss drift"]
    # A new process begins with little memory and is a life of its own.
    assert failed([life(flat), life([150 * MIB] * 60, number=2)]) == []


def test_drift_checks_see_descriptors_threads_and_a_queue_that_grows() -> None:
    def leaking(**grows: float) -> list[Sample]:
        return [
            Sample(
                float(i),
                1,
                100 * MIB,
                20 + int(i * grows.get("descriptors", 0)),
                8 + int(i * grows.get("threads", 0)),
                0,
                {"num_requests_waiting": i * grows.get("queue", 0)},
            )
            for i in range(100)
        ]

    assert failed([leaking()]) == []
    assert failed([leaking(descriptors=1)]) == ["descriptor drift"]
    assert failed([leaking(threads=0.1)]) == ["thread drift"]
    assert failed([leaking(queue=1)]) == ["queue drift"]


def test_drift_of_device_memory_counts_only_while_the_model_serves() -> None:
    def device(at: int, used: float, ready: float) -> Sample:
        values = {"board_memory_used_bytes": used, "model_state:ready": ready, "board_simulated": 1.0}
        return Sample(float(at), 1, None, None, None, 0, values)

    recovering = [device(i, 0.0 if i % 7 == 0 else 5.0 * MIB, float(i % 7 != 0)) for i in range(100)]
    assert failed([recovering]) == []
    growing = [device(i, 5.0 * MIB + i, 1.0) for i in range(100)]
    assert failed([growing]) == ["device memory drift"]


def test_drift_of_what_was_never_seen_is_not_judged_and_does_not_count_as_passed() -> None:
    real = [Sample(float(i), 1, 100 * MIB, 20, 8, 0, {"board_simulated": 0.0}) for i in range(100)]
    verdicts = {check.name: check.ok for check in drift_checks([real])}
    assert verdicts["device memory drift"] is None
    assert verdicts["rss drift"] is True
    assert {check.ok for check in drift_checks([])} == {None}


def test_report_names_what_was_not_judged_apart_from_what_passed() -> None:
    report = WallReport({}, {})
    report.golden = "passed"
    report.exit_code = 0
    report.samples = [Sample(0.0, 1, 100 * MIB, 20, 8, 0, {**IDLE, "model_state:ready": 1.0})]
    conclude(report, IDLE, unsent=0, has_faults=False)
    plain = {check["name"]: check["ok"] for check in report.to_json()["checks"]}
    assert plain["rss drift"] is None
    assert plain["golden at the end"] is True
    assert report.passed
    assert report.reason.startswith("every check that was judged is in its bounds; not judged: rss drift, ")
    shown = io.StringIO()
    print_report(report, Console(file=shown, width=200))
    (line,) = (line for line in shown.getvalue().splitlines() if "rss drift" in line and "nothing to judge" in line)
    assert "not judged" in line
    assert " ok " not in line


def test_kv_check_wants_every_unit_in_one_state() -> None:
    good = Sample(1.0, 1, values={"kv_units": 16.0, "kv_units_by_state:free": 14.0, "kv_units_by_state:held": 2.0})
    lost = Sample(2.0, 1, values={"kv_units": 16.0, "kv_units_by_state:free": 13.0, "kv_units_by_state:held": 2.0})
    assert kv_check([good]).ok
    assert not kv_check([good, lost]).ok
    assert "1 wrong of 2" in kv_check([good, lost]).given
    assert not kv_check([Sample(1.0, 1)]).ok  # nothing was seen at all


@pytest.mark.parametrize(
    "change",
    [
        {"buffers:leased": 1.0},
        {"num_requests_running": 1.0},
        {"kv_units_held": 1.0},
        {"kv_units_reserved": 2.0},
        {"board_jobs:left": 1.0},
        {"lanes:unknown": 1.0},
        {"kv_units_by_state:free": 15.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_idle_check_names_what_is_still_held(change: dict[str, float]) -> None:
    assert idle_check(IDLE).ok
    assert not idle_check(IDLE | change).ok
    assert not idle_check({}).ok


def test_count_check_wants_as_many_ends_as_submits() -> None:
    counted = {"engine_events_total:submitted": 5.0, "request_success_total:stop": 3.0}
    assert not count_check(counted).ok
    assert count_check(counted | {"request_success_total:refused": 2.0}).ok


def test_parse_metrics_sums_series_and_keeps_states_apart() -> None:
    text = (
        "# HELP calserve_lanes Lanes by state.\n"
        'calserve_lanes{model_name="a",state="free"} 3.0\n'
        'calserve_lanes{model_name="b",state="free"} 4.0\n'
        'calserve_lanes{model_name="a",state="unknown"} 1.0\n'
        'calserve_board_memory_used_bytes{device="0"} 1e+09\n'
        'calserve_board_memory_used_bytes{device="1"} 2e+09\n'
        'calserve_request_success_total{finished_reason="stop",model_name="a"} 2.0\n'
        'calserve_nobody_asked{state="x"} 9.0\n'
    )
    assert parse_metrics(text) == {
        "lanes:free": 7.0,
        "lanes:unknown": 1.0,
        "board_memory_used_bytes": 3e9,
        "request_success_total:stop": 2.0,
    }


def test_samples_are_thinned_and_stay_in_order() -> None:
    samples = Samples()
    for i in range(5 * SAMPLES_MAX):
        samples.add(Sample(float(i), 1 + i // (3 * SAMPLES_MAX)))
    assert SAMPLES_MAX / 4 < len(samples.kept) < SAMPLES_MAX
    times = [sample.at_s for sample in samples.kept]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] > 5 * SAMPLES_MAX * 0.99
    assert len(lives(samples.kept)) == 2
