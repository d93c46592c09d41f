"""The supervisor's side against a real process: the image's health check, and a start again after 75."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_rig import calserve, environment, quick_profile

from calserve.core.supervisor import EXIT_UNKNOWN_DMA
from calserve.runtime.sim.oracle import greedy_tokens

DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = pytest.mark.slow


class Supervised:
    """`serve --board sim` as a supervisor keeps it: one process at a time, the next one only when told."""

    def __init__(self, tmp_path: Path, *args: str) -> None:
        self._command = calserve("serve", "--board", "sim", "--port", "0", "--log-level", "warning", *args)
        self._env = environment(tmp_path / "runtime")
        self.process: subprocess.Popen[str] | None = None
        self.base = ""

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._env
        )
        assert self.process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", self.process.stdout.readline())
        assert found, "no ready line"
        self.base = found.group()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(60)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.wait()


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def make(*args: str) -> Supervised:
        made.append(Supervised(tmp_path, *args))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        if server.process is not None and server.process.poll() is None:
            server.stop()


def health_command() -> list[str]:
    """The Dockerfile's own, with this machine's interpreter and path of the script."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    found = re.search(r"^HEALTHCHECK .*CMD (\[.*\])", text, re.MULTILINE)
    assert found
    python, script = json.loads(found.group(1))
    assert (python, script) == ("python", "/opt/calserve/healthcheck.py")
    return [sys.executable, str(DEPLOY / "healthcheck.py")]


def health(url: str) -> int:
    env = {**os.environ, "CALSERVE_HEALTH_URL": url, "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(health_command(), env=env, capture_output=True, timeout=60, check=False).returncode


def test_health_check_is_0_for_a_live_server_and_1_once_it_ended(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    server = supervise("--board-profile", str(quick_profile(tmp_path / "lanes.yaml", "assumed-lanes")))
    assert health(f"{server.base}/health/live") == 0
    assert health(f"{server.base}/health/ready") == 0
    assert health(f"{server.base}/v1/models/nobody/ready") == 1
    assert server.stop() == 0
    assert health(f"{server.base}/health/live") == 1


def test_health_check_is_1_for_something_that_is_no_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"220 mail\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert health(f"http://127.0.0.1:{other.getsockname()[1]}/health/live") == 1
        thread.join()
    assert health("not a url") == 1


def warm_up_jobs(server: Supervised) -> int:
    found = re.search(
        r"^calserve_board_jobs_finished_total (\S+)$", httpx.get(f"{server.base}/metrics").text, re.MULTILINE
    )
    assert found
    return int(float(found.group(1)))


def body(prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    return {"model": "sim-model", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}


def test_job_that_never_returns_ends_the_process_with_75_and_a_new_one_serves(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    """No reset is proven on this board, so only a new process is sure that nothing writes its memory."""
    profile = ("--board-profile", str(quick_profile(tmp_path / "span.yaml", "calculet-2chip", context=2048)))
    sound = supervise(*profile)
    loaded = warm_up_jobs(sound)
    assert sound.stop() == 0
    # Every process meets the fault at the same job: in the middle of the long request, and after the short one.
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"schema: calserve-fault-plan/v1\nfaults: [{{point: job_never_completes, at_visit: {loaded + 8}}}]\n"
    )
    server = supervise(
        *profile, "--fault-plan", str(plan),
        "--set", "executor.execution_deadline_floor_ms=200", "--set", "executor.overdue_grace_ms=200",
    )  # fmt: skip
    waiting: list[httpx.Response] = []
    with httpx.stream(
        "POST", f"{server.base}/v1/completions", json=body([3, 1], 500, stream=True), timeout=60
    ) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        # The board has one lane: this one is in the queue when the fault comes.
        other = threading.Thread(
            target=lambda: waiting.append(httpx.post(f"{server.base}/v1/completions", json=body([5], 4), timeout=60))
        )
        other.start()
        told = [json.loads(line.removeprefix("data: ")) for line in [first, *lines] if line]
    other.join(60)
    assert told[-1]["error"]["code"] == "device_fault"
    right = bytes(t for t in greedy_tokens([3, 1], 500, 256) if t not in CONTROL).decode("utf-8", "replace")
    said = "".join(event["choices"][0]["text"] or "" for event in told[:-1])
    assert said
    assert right.startswith(said)
    assert [response.status_code for response in waiting] == [503]
    assert "retry-after" in waiting[0].headers
    assert server.wait() == EXIT_UNKNOWN_DMA

    server.start()
    again = httpx.post(f"{server.base}/v1/completions", json=body([5], 4), timeout=60)
    assert again.status_code == 200
    right = bytes(t for t in greedy_tokens([5], 4, 256) if t not in CONTROL).decode("utf-8", "replace")
    assert again.json()["choices"][0]["text"] == right
    assert server.stop() == 0


# Bytes of the simulated vocabulary that are in no UTF-8 text: control tokens, without text of their own.
CONTROL = {0xC0, 0xC1, *range(0xF5, 0x100)}
