"""Short soaks of the real server on real time: a smoke of each board, and what a soak leaves when it is ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_rig import environment, quick_profile

from calserve.progress import SilentProgress
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE, BoardLock
from calserve.simulate.wall import WallOptions, run_wall_soak
from calserve.simulate.wall import report as wall_report
from calserve.simulate.wall import run as wall_run
from calserve.simulate.wall.cases import SimCases
from calserve.simulate.wall.report import JSON_NAME, SVG_NAME, WallReport

pytestmark = pytest.mark.slow

# A job counts as lost after 300 ms in place of ten seconds, and is given up 300 ms later.
QUICK = ("--set", "executor.execution_deadline_floor_ms=300", "--set", "executor.overdue_grace_ms=300")
FAULTS = """\
schema: calserve-fault-plan/v1
faults:
  - {point: kv_apply_fails, at_visit: 500}
  - {point: status_ccu_exception, at_visit: 800}
  - {point: submit_busy, at_visit: 1200, times: 2}
  - {point: logits_nan, at_visit: 1500}
  - {point: job_never_completes, at_visit: 2500}
  - {point: wait_timeout, at_visit: 3000, times: 3}
"""


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The board's lock of this test alone; it is free again afterwards, so no server was left running."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))
    yield
    for board in ("sim", "openvino-CPU"):
        BoardLock.acquire(board, tmp_path / "runtime").release()


def soak(out: Path, minutes: float, **changes: object) -> WallReport:
    values = {"serve_args": QUICK, "deadline_ms": 1500, "seed": 3, **changes}
    return run_wall_soak(WallOptions(out=out, minutes=minutes, **values), SilentProgress())  # type: ignore[arg-type]


def test_soak_on_a_simulated_board_with_faults_passes_and_says_what_it_saw(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(FAULTS)
    profile = str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes"))
    report = soak(tmp_path / "out", 0.5, board_profile=profile, fault_plan=plan)
    assert report.passed, (report.reason, report.wrong, report.checks)
    assert report.sent == report.ended > 400
    assert report.injected > 150
    assert report.golden == "passed"
    assert set(report.outcomes) == {
        "whole", "stream", "delete", "leave_stream", "leave_whole", "stall", "overdue", "bad",
    }  # fmt: skip
    # Whether a device fault is told depends on who streams at that moment: a whole answer starts over.
    assert {"cancelled", "deadline_exceeded", "invalid_value"} <= set(report.told)
    # The exception and the lost job each cost a generation.
    assert max(sample.value("board_resets_total") or 0 for sample in report.samples) >= 2
    assert len(report.samples) >= 25
    found = json.loads((tmp_path / "out" / JSON_NAME).read_text())
    assert (found["verdict"], found["sent"], found["schema"]) == ("passed", report.sent, "calserve-soak-wall/v1")
    assert (tmp_path / "out" / SVG_NAME).exists()


def test_soak_on_a_real_model_passes(tmp_path: Path, tiny_package: Path) -> None:
    report = soak(
        tmp_path / "out", 0.2, board="openvino", model=tiny_package, serve_args=(), deadline_ms=400, rate=20.0
    )
    assert report.passed, (report.reason, report.wrong, report.checks)
    assert report.sent == report.ended > 120
    assert report.golden == "passed"
    assert "cancelled" in report.told


def test_soak_starts_a_server_that_ends_with_75_again(tmp_path: Path) -> None:
    """A board without a proven reset: every lost job costs the process, and the next one serves."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("schema: calserve-fault-plan/v1\nfaults: [{point: job_never_completes, at_visit: 700}]\n")
    profile = str(quick_profile(tmp_path / "span.yaml", "calculet-2chip", context=2048))
    report = soak(tmp_path / "out", 0.2, board_profile=profile, fault_plan=plan, rate=10.0)
    assert report.passed, (report.reason, report.wrong, report.checks)
    assert report.restarts >= 1
    assert report.exits[-1] == 0
    assert set(report.exits) == {75, 0}
    assert {"device_fault", "model_failed"} & set(report.told)


def test_soak_that_gets_wrong_answers_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_run, "SimCases", lambda _model, context: SimCases("another model", context))
    profile = str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes"))
    report = soak(tmp_path / "out", 0.05, board_profile=profile, has_faults=False)
    assert report.verdict == "failed"
    assert {check.name for check in report.checks if check.ok is False} == {"answers", "golden at the end"}
    assert "is not" in report.wrong[0]


def test_soak_that_crashes_leaves_its_record_and_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> Iterator[object]:
        yield from list(real(*args))[:10]  # type: ignore[arg-type]
        raise RuntimeError("the schedule broke")

    real = wall_run.arrivals
    monkeypatch.setattr(wall_run, "arrivals", broken)
    profile = str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes"))
    with pytest.raises(RuntimeError, match="the schedule broke"):
        soak(tmp_path / "out", 1, board_profile=profile, has_faults=False)
    found = json.loads((tmp_path / "out" / JSON_NAME).read_text())
    assert (found["verdict"], found["reason"]) == ("crashed", "RuntimeError: the schedule broke")
    assert found["sent"] >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_soak_told_to_stop_leaves_its_record_and_no_server(tmp_path: Path, number: signal.Signals) -> None:
    profile = str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes"))
    script = (
        # a shell's background job inherits SIGINT ignored; this is about one on a terminal
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from pathlib import Path; from calserve.progress import PlainProgress\n"
        "from calserve.simulate.wall import WallOptions, run_wall_soak\n"
        f"options = WallOptions(out=Path({str(tmp_path / 'out')!r}), minutes=5, board_profile={profile!r})\n"
        "run_wall_soak(options, PlainProgress(sys.stderr))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment(tmp_path / "runtime")
    )
    assert process.stderr is not None
    while "Soaking" not in process.stderr.readline():
        pass
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert f"calserve.stopping.Stopped: {number.value}" in said  # which the command line turns into a word and a code
    found = json.loads((tmp_path / "out" / JSON_NAME).read_text())
    assert (found["verdict"], found["reason"]) == ("stopped", "it was told to stop before its end")


def test_soak_whose_disk_is_full_still_comes_to_its_verdict_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(wall_report, "replace_file", full)
    profile = str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes"))
    report = soak(tmp_path / "out", 0.05, board_profile=profile, has_faults=False)
    assert report.verdict == "passed", report.reason
    assert report.unwritten == f"{tmp_path / 'out' / JSON_NAME} could not be written: No space left on device."
