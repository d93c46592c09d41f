"""A service that ends while its model loads: the code says whether a supervisor should try again, the sentence why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from server_rig import calserve, environment, quick_profile

from calserve.core.supervisor import EXIT_UNKNOWN_DMA

pytestmark = pytest.mark.slow


def ended(tmp_path: Path, faults: str, *args: str) -> tuple[int, str]:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"schema: calserve-fault-plan/v1\nfaults: [{faults}]\n")
    profile = quick_profile(tmp_path / "quick.yaml", "assumed-lanes")
    command = calserve("serve", "--board", "sim", "--port", "0", "--board-profile", str(profile))
    done = subprocess.run(
        [*command, "--fault-plan", str(plan), "--log-level", "warning", *args],
        capture_output=True, text=True, timeout=60, env=environment(tmp_path / "runtime"), check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("faults", "word"),
    [
        ("{point: device_lost}", "device unavailable"),
        ("{point: reset_fails, times: 100}, {point: status_ccu_exception, times: 1000}", "soft reset failed"),
        ("{point: job_never_completes}, {point: reset_fails, times: 100}", "code"),
    ],
    ids=["lost", "never", "stuck"],
)
def test_board_that_fails_while_loading_ends_the_process_with_the_code_that_was_ordered(
    tmp_path: Path, faults: str, word: str
) -> None:
    args = ("--set", "recovery.lifecycle_deadline_ms=1500") if "never_completes" in faults else ()
    code, said = ended(tmp_path, faults, *args)
    assert code == EXIT_UNKNOWN_DMA
    assert said.startswith("calserve: sim-model could not be loaded: ")
    assert word in said


def test_board_that_refuses_the_configuration_is_a_refusal(tmp_path: Path) -> None:
    code, said = ended(tmp_path, "{point: configure_fails, times: 100}")
    assert code == 1
    assert said.startswith("calserve: sim-model could not be loaded: configure failed with code 5")
