"""Clients that go away, and the end of the process, on a live server with a tiny model."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
from typing import Any

import httpx
import pytest
from server_rig import Server

pytestmark = pytest.mark.slow

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the", "temperature": 0, "ignore_eos": True}
# All 16 lanes to the end of the context: seconds of work, which a signal or a cancel comes well before the end of.
LONG: dict[str, Any] = {**BODY, "max_tokens": 480, "n": 16, "stream": True}


def gauge(server: Server, name: str) -> float:
    text = httpx.get(f"{server.base}/metrics").text
    found = re.search(rf"^calserve_{name}(?:{{[^}}]*}})? ([\d.e+-]+)$", text, re.MULTILINE)
    assert found, name
    return float(found.group(1))


def until_idle(server: Server) -> None:
    """Ask until nothing runs; every answer takes the engine's own turn, so this is no sleep."""
    for _ in range(20_000):
        if gauge(server, "num_requests_running") == 0 and gauge(server, "num_requests_waiting") == 0:
            return
    raise AssertionError("requests still run")


def connect(server: Server, body: dict[str, Any]) -> socket.socket:
    host, port = server.base.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "whole"])
def test_client_that_goes_away_frees_its_lane(tiny_server: Server, streams: bool) -> None:
    gone = connect(tiny_server, {**BODY, "max_tokens": 480, "stream": streams})
    if streams:
        assert gone.recv(16)
    else:
        while gauge(tiny_server, "num_requests_running") == 0:
            pass
    gone.close()
    until_idle(tiny_server)
    assert gauge(tiny_server, "kv_units_held") == 0
    assert gauge(tiny_server, "kv_units_reserved") == 0


def test_200_random_disconnects_leave_nothing_reserved_and_the_server_up(tiny_server: Server) -> None:
    chance = random.Random(7)
    for i in range(200):
        body = {**BODY, "prompt": "the " * chance.randrange(1, 30), "max_tokens": 200, "stream": i % 2 == 0}
        sock = connect(tiny_server, body)
        if body["stream"] and chance.random() < 0.7:
            sock.recv(chance.randrange(1, 400))
        sock.close()
    until_idle(tiny_server)
    assert gauge(tiny_server, "kv_units_reserved") == 0
    answer = httpx.post(f"{tiny_server.base}/v1/completions", json={**BODY, "max_tokens": 4}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 4
    code, said = tiny_server.stop()
    assert code == 0
    assert "Traceback" not in said


def test_delete_ends_a_request_and_unknown_ids_are_404(tiny_server: Server) -> None:
    with httpx.stream("POST", f"{tiny_server.base}/v1/completions", json=LONG, timeout=60) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert httpx.delete(f"{tiny_server.base}/internal/requests/{first['id']}").is_success
        rest = [line for line in lines if line]
    # A stream that ran to its end would close with [DONE]: this one did not, and says why.
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "cancelled"
    assert "data: [DONE]" not in rest
    assert httpx.delete(f"{tiny_server.base}/internal/requests/{first['id']}").status_code == 404
    until_idle(tiny_server)


def test_sigterm_ends_readiness_at_once_tells_streams_and_exits_0(tiny_server: Server) -> None:
    told: list[str] = []
    began = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{tiny_server.base}/v1/completions", json=LONG, timeout=60) as answer:
            for line in answer.iter_lines():
                told.append(line)
                began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(60)
    with httpx.Client(base_url=tiny_server.base) as operator:
        assert operator.get("/health/ready").status_code == 200
        tiny_server.process.terminate()
        answers = (operator.get("/health/ready") for _ in range(20_000))
        drained = next(answer for answer in answers if answer.status_code != 200)
        told_by_then = len(told)
        assert (drained.status_code, drained.json()) == (503, {"status": "draining"})
        assert operator.post("/v1/completions", json={**BODY, "max_tokens": 2}).status_code == 503
    reader.join(60)
    code, said = tiny_server.stop()
    assert code == 0
    assert "Traceback" not in said
    lines = [line for line in told if line]
    # Readiness had ended while the stream was still open, and the stream went on to an end of its own.
    assert len(told) > told_by_then
    assert not any(line == "data: [DONE]" or '"error"' in line for line in told[:told_by_then])
    assert lines[-1] == "data: [DONE]" or '"error"' in lines[-1]


def test_ordinary_routes_show_no_chips_paths_or_addresses(tiny_server: Server) -> None:
    texts = [
        httpx.get(f"{tiny_server.base}{path}").text
        for path in ("/v1/models", "/health/live", "/health/ready", "/v1/models/tiny/ready", "/metrics")
    ]
    texts.append(httpx.post(f"{tiny_server.base}/v1/completions", json={**BODY, "max_tokens": 2}).text)
    for text in texts:
        assert not re.search(r"chip|/tmp|/root|/home|0x[0-9a-f]{6}|openvino", text), text
