"""Models, health, metrics, closed-by-default routing, and the orderly end."""

import http.client
import json
import socket

import pytest
from api_rig import MODEL, Served, begins, session_view

from calserve.core.config import SchedulerConfig
from calserve.core.events import Shutdown
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import EngineSnapshot
from calserve.core.states import GenerationState
from calserve.executor.messages import Submission


def _raw(served: Served, method: str, target: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """A request whose target is sent as it stands; httpx would tidy it."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.putrequest(method, target, skip_host=headers is not None)
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_models_lists_what_is_ready_in_openai_shape(served: Served) -> None:
    listed = served.client.get("/v1/models").json()
    entry = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "calserve", "max_model_len": 64}
    assert listed == {"object": "list", "data": [entry]}
    assert served.client.get(f"/v1/models/{MODEL}").json() == entry
    assert served.client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize("state", [state for state in GenerationState if state is not GenerationState.READY])
def test_model_that_is_not_ready_is_not_listed(served: Served, state: GenerationState) -> None:
    served.on_loop(served.bridge.sessions_changed, [session_view(state)])
    assert served.client.get("/v1/models").json()["data"] == []
    assert served.client.get("/health/ready").status_code == 503
    response = served.client.get(f"/v1/models/{MODEL}/ready")
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert served.client.get("/health/live").status_code == 200


def test_ready_answers_per_model_and_for_the_server(served: Served) -> None:
    assert served.client.get("/health/ready").status_code == 200
    assert served.client.get(f"/v1/models/{MODEL}/ready").status_code == 200
    assert served.client.get("/v1/models/other/ready").status_code == 404


@pytest.mark.parametrize(
    ("submitted", "deadline", "now", "status"),
    [
        (None, None, 10**15, 200),  # idle for days
        (10**12, 10**12 + 60 * 10**9, 10**12 + 59 * 10**9, 200),  # a long prefill within its own deadline
        # Past its deadline, within the grace (5 s) and the drain (10 s) a recovery may take.
        (10**12, 10**12 + 60 * 10**9, 10**12 + 74 * 10**9, 200),
        (10**12, 10**12 + 60 * 10**9, 10**12 + 76 * 10**9, 503),
        (10**12, None, 10**12 + 24 * 10**9, 200),  # without a deadline the floor (10 s) counts
        (10**12, None, 10**12 + 26 * 10**9, 503),
    ],
)
def test_liveness_is_the_oldest_job_against_its_own_deadline(
    served: Served, submitted: int | None, deadline: int | None, now: int, status: int
) -> None:
    view = session_view(oldest_job_submitted_ns=submitted, oldest_job_deadline_ns=deadline, waiting_requests=128)
    served.engine.snapshot = EngineSnapshot((view,), {})
    served.now_ns = now
    assert served.client.get("/health/live").status_code == status


@pytest.mark.slow
def test_liveness_fails_when_the_engine_does_not_answer(served: Served) -> None:
    served.engine.answers_inspect = False
    response = served.client.get("/health/live")
    assert response.status_code == 503
    assert "has not answered" in response.json()["reason"]
    served.engine.answers_inspect = True


def test_metrics_are_rendered_from_a_fresh_snapshot(served: Served) -> None:
    response = served.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.text == "calserve_up 1\n"
    assert served.metrics_snapshots == [served.engine.snapshot]


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1", "/v1/", "/v1/models/", "//v1/models", "/v1//models", "/v1/models//", "/v1/models//ready",
        "/v1%2Fmodels", "/v1/%6dodels", "/v1/./models", "/v1/models/../models", "/v1/models/%2e%2e/models",
        "/x/../v1/models", "/%76%31/models", "/V1/MODELS", "/v1/models;x", "/v1/models%00", "/metrics/",
        "/health", "/docs", "/openapi.json", "/admin", "/internal/requests", "/internal/requests/", "*",
        "/internal/requests/a/b", "/v1/models/toy/ready/x", "/v1/models/" + "a" * 513,
    ],
)  # fmt: skip
def test_path_that_is_not_listed_is_a_404_in_openai_shape(served: Served, target: str) -> None:
    status, body = _raw(served, "GET", target)
    assert status == 404 if target != "*" else status in (400, 404)
    if status == 404:
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_encoded_name_reaches_its_own_route_only(served: Served) -> None:
    assert _raw(served, "GET", "/v1/models/%74oy")[0] == 200
    assert _raw(served, "GET", "/v1/models/toy%2Fready")[0] == 404
    assert _raw(served, "GET", "/v1/models/..%2F..%2Fmetrics")[0] == 404
    assert _raw(served, "GET", "/v1/models?x=/metrics")[0] == 200


@pytest.mark.parametrize("host", ["/metrics", "evil/../health/live", "a" * 5000, "127.0.0.1:1"])
def test_host_header_does_not_choose_the_route(served: Served, host: str) -> None:
    assert _raw(served, "GET", "/v1/nothing", {"host": host})[0] == 404
    assert b'"id":"toy"' in _raw(served, "GET", "/v1/models", {"host": host})[1]


def test_absolute_form_target_is_routed_by_its_path(served: Served) -> None:
    assert b'"id":"toy"' in _raw(served, "GET", "http://elsewhere/v1/models")[1]
    assert _raw(served, "GET", "http://v1/models")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/models", "GET, HEAD"), ("GET", "/v1/completions", "POST"), ("PUT", "/v1/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"), ("GET", "/internal/requests/x", "DELETE"),
        ("DELETE", "/metrics", "GET, HEAD"), ("POST", "/health/live", "GET, HEAD"),
    ],
)  # fmt: skip
def test_method_that_is_not_listed_is_a_405(served: Served, method: str, path: str, allow: str) -> None:
    response = served.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allow)
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_head_is_answered_without_a_body(served: Served) -> None:
    response = served.client.head("/health/ready")
    assert (response.status_code, response.content) == (200, b"")


def test_shutdown_fails_readiness_at_once_and_lets_streams_end(served: Served) -> None:
    served.engine.script = begins("half")
    with served.client.stream(
        "POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}
    ) as response:
        served.on_loop(served.service.begin_shutdown, 10 * 10**9)
        served.on_loop(served.service.begin_shutdown, 99 * 10**9)  # who asks again does not want to wait
        assert served.engine.wait_post(Shutdown) == Shutdown(served.now_ns + 10 * 10**9)
        assert served.engine.wait_post(Shutdown, 2) == Shutdown(served.now_ns)
        assert served.client.get("/health/ready").status_code == 503
        assert served.client.get("/health/live").status_code == 200
        assert served.client.get("/v1/models").json()["data"] == []
        refused = served.complete()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_draining")
        assert "retry-after" in refused.headers
        request = served.engine.wait_post(Submission).event.request
        served.engine.say(request, " and whole")
        served.engine.end(request, FinishReason.STOP)
        served.engine.outlet.exit(0, "drained")
        body = response.read().decode()
    assert "and whole" in body
    assert body.endswith("data: [DONE]\n\n")
    assert served.wait_closed() == 0


def test_body_that_never_ends_does_not_hold_a_drain(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    with caplog.at_level("INFO"), socket.create_connection(("127.0.0.1", served.port), 10) as sock:
        sock.sendall(head)
        for _ in range(100_000):
            if served.on_loop(lambda: len(served.service._drain_calls)):
                break
        served.on_loop(served.service.begin_shutdown, 10 * 10**9)
        received = b""
        while data := sock.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in received
    assert b"model_draining" in received
    assert served.wait_closed() == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    drains = [record.getMessage() for record in caplog.records if record.name == "calserve.service.service"]
    assert drains == ["draining: 0 open streams get at most 10.0 s"]


def test_process_that_ends_without_a_drain_waits_for_no_body(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", served.port), 10) as sock:
        sock.sendall(head)
        for _ in range(100_000):
            if served.on_loop(lambda: len(served.service._drain_calls)):
                break
        served.engine.outlet.exit(75, "unknown DMA")
        assert b" 503 " in sock.recv(65536)
    assert served.wait_closed() == 75
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(("code", "word"), [(0, "shutting_down"), (75, "device_fault"), (70, "internal_error")])
def test_process_end_tells_every_open_stream(served: Served, code: int, word: str) -> None:
    served.engine.script = begins("half")
    with served.client.stream(
        "POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}
    ) as response:
        served.engine.outlet.exit(code, "unknown DMA")
        body = response.read().decode()
    assert body.count('"error"') == 1
    assert word in body
    assert served.wait_closed() == code


@pytest.mark.slow
def test_engine_that_does_not_end_by_the_deadline_is_left_behind() -> None:
    served = Served(SchedulerConfig(overdue_grace_ns=0))
    served.engine.script = begins("half")
    with served.client.stream(
        "POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}
    ) as response:
        served.on_loop(served.service.begin_shutdown, 0)  # then 2 s for the order to arrive, in wall time
        assert '"code":"shutting_down"' in response.read().decode()
    assert served.wait_closed() == 70
    served.close()
