"""The supervisor files: they parse, and what they say of exit codes and times is what the program does."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from calserve.core.config import SchedulerConfig
from calserve.core.supervisor import EXIT_DONE, EXIT_FORCED, EXIT_UNKNOWN_DMA
from calserve.executor.executor import EXIT_BROKEN_INVARIANT
from calserve.service.service import EXIT_ENGINE_STUCK, EXIT_GRACE_NS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "calserve.service"
NS = 1_000_000_000


def section(name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(UNIT.read_text("utf-8"))
    return dict(parser[name])


def drain_s() -> float:
    found = re.search(r"--drain (\d+)", section("Service")["ExecStart"])
    assert found
    return float(found.group(1))


def stop_s_needed() -> float:
    """The longest orderly end: the drain, the grace for a job on the device, and the service's own."""
    return drain_s() + (SchedulerConfig().overdue_grace_ns + EXIT_GRACE_NS) / NS


def test_unit_restarts_on_the_code_of_a_device_that_may_still_write() -> None:
    service = section("Service")
    assert service["Restart"] == "on-failure"
    assert service["RestartForceExitStatus"].split() == [str(EXIT_UNKNOWN_DMA)]


def test_unit_does_not_repeat_a_refused_start() -> None:
    never = {int(code) for code in section("Service")["RestartPreventExitStatus"].split()}
    assert never == {1, 2}
    assert not never & {EXIT_DONE, EXIT_UNKNOWN_DMA, EXIT_FORCED, EXIT_BROKEN_INVARIANT, EXIT_ENGINE_STUCK}


def test_unit_gives_a_stop_more_time_than_the_longest_drain() -> None:
    service = section("Service")
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) > stop_s_needed() + 10
    assert "WatchdogSec" not in service


def test_unit_keeps_the_board_lock_in_a_folder_of_its_user_alone() -> None:
    service = section("Service")
    assert service["Environment"] == f"CALSERVE_RUNTIME_DIR=/run/{service['RuntimeDirectory']}"
    assert service["RuntimeDirectoryMode"] == "0700"
    assert service["User"] != "root"


def test_unit_is_sandboxed() -> None:
    service = section("Service")
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces", "LockPersonality"):
        assert service[name] == "yes", name
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.slow
def test_unit_passes_systemds_own_check(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        # Where there is no systemd its grammar is still held: every line is a key of a section, and none stands twice.
        assert {"Unit", "Service", "Install"} == set(re.findall(r"^\[(\w+)\]$", UNIT.read_text("utf-8"), re.MULTILINE))
        assert section("Install")["WantedBy"] == "multi-user.target"
        return
    # The one thing that cannot be here is the installed program.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text("utf-8").replace("/opt/calserve/bin/calserve", sys.executable), "utf-8")
    done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_readme_and_unit_name_the_same_codes() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    found = re.search(r"Exit codes: (.*?)A second SIGTERM", readme)
    assert found
    told = {int(code) for code in re.findall(r"(?:^|· )(\d+) ", found.group(1))}
    # 3 is of soaks and proofs, which no unit runs
    assert {EXIT_DONE, 1, 2, 3, EXIT_BROKEN_INVARIANT, EXIT_UNKNOWN_DMA, EXIT_FORCED} == told
    assert str(EXIT_UNKNOWN_DMA) in (DEPLOY / "README.md").read_text("utf-8")


def test_dockerfile_is_slim_not_root_and_without_torch() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.endswith(("-slim", "-slim AS build")) for line in lines if line.startswith("FROM "))
    assert "USER calserve" in lines
    assert lines.index("USER calserve") < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert "STOPSIGNAL SIGTERM" in lines
    assert "torch" not in text
    assert "[pack]" not in text


def test_dockerfile_copies_only_what_is_in_the_repository_and_not_ignored() -> None:
    allowed = [
        line.removeprefix("!").strip()
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    ]
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()]
    assert sorted(sources) == sorted(allowed)
    assert all((ROOT / source).exists() for source in sources)


def test_compose_restarts_on_failure_waits_for_readiness_and_gives_the_drain_its_time() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    server = services["calserve"]
    assert server["restart"].startswith("on-failure")
    assert server["healthcheck"]["test"][-1].endswith("/health/ready")
    assert float(server["stop_grace_period"].removesuffix("s")) > stop_s_needed() + 10
    assert services["client"]["depends_on"]["calserve"]["condition"] == "service_healthy"
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
