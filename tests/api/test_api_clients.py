"""Clients that go away, stall, or are told of a bad end: lanes come back, and each stream ends exactly once."""

import contextlib
import json
import random
import socket

import pytest
from api_rig import MODEL, PATIENCE_S, Served, begins, events, says, silent

from calserve.core.events import Cancel, CancelCause, ClientStalled
from calserve.core.outcomes import Failure, FaultClass, FinishReason, Refusal, RefusalKind
from calserve.executor.messages import Delivery, Submission


def _send(served: Served, **body: object) -> socket.socket:
    """A request on a bare socket, so that the client can vanish or stop reading."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", served.port))
    content = json.dumps({"model": MODEL, "prompt": "hi"} | body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    sock.sendall(head.encode() + b"\r\n\r\n" + content)
    return sock


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
def test_client_that_goes_away_frees_its_request(served: Served, stream: bool, has_begun: bool) -> None:
    served.engine.script = silent
    sock = _send(served, stream=stream)
    request = served.engine.wait_post(Submission).event.request
    if has_begun:
        served.engine.say(request, "begun")
        if stream:
            assert sock.recv(1)
    sock.close()
    assert served.engine.wait_post(Cancel) == Cancel(request, CancelCause.CLIENT_GONE)
    served.engine.wait_idle()
    assert served.on_loop(lambda: served.bridge.open_streams) == 0


def test_random_disconnects_leave_nothing_open(served: Served) -> None:
    """Clients that leave at once, before and after the first text, streaming or not, beside one that stays."""
    draw = random.Random(7)
    served.engine.script = begins("a")
    for _ in range(100):
        stream = draw.random() < 0.5
        sock = _send(served, stream=stream)
        if stream and draw.random() < 0.5:
            assert sock.recv(1)
        sock.close()
    served.engine.script = says("still here")
    # The tokenizing pool is first in, first out: when this is answered, all before it were submitted or dropped.
    assert served.complete().json()["choices"][0]["text"] == "still here"
    served.engine.wait_idle()
    assert len(served.engine.submissions) > 25


def test_every_choice_of_a_client_that_goes_away_is_cancelled(served: Served) -> None:
    served.engine.script = silent
    sock = _send(served, stream=True, n=3)
    served.engine.wait_post(Submission, 3)
    sock.close()
    served.engine.wait_post(Cancel, 3)
    assert {p.request for p in served.engine.posts if isinstance(p, Cancel)} == {
        s.event.request for s in served.engine.submissions
    }
    served.engine.wait_idle()


def test_reader_that_stops_reading_is_stalled_and_cut_off(served: Served) -> None:
    served.engine.script = silent
    sock = _send(served, stream=True)
    request = served.engine.wait_post(Submission).event.request
    piece = Delivery(request, "x" * 65536, (65,))
    # More than any socket buffer holds, then more than the stream may keep.
    for _ in range(3000):
        served.engine.say_many([piece])
        if served.on_loop(lambda: ClientStalled(request) in served.engine.posts):
            break
    assert served.engine.posts.count(ClientStalled(request)) == 1
    served.engine.wait_idle()
    # Cut off: what the sockets hold can still be read, then the connection is gone, without a proper end.
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 20):
            received = (received + data)[-64:]
    assert b"[DONE]" not in received
    sock.close()
    assert served.on_loop(lambda: served.bridge.open_streams) == 0


def test_slow_reader_that_catches_up_gets_everything(served: Served) -> None:
    served.engine.script = says(*[f"{i:05d}" for i in range(2000)])
    with served.client.stream("POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}) as r:
        text = "".join(
            json.loads(line[6:])["choices"][0]["text"] for line in r.iter_lines() if line.startswith("data: {")
        )
    assert text == "".join(f"{i:05d}" for i in range(2000))
    assert not [p for p in served.engine.posts if isinstance(p, ClientStalled)]


SECRET = "chip 7 at /dev/calculet0, 10.0.0.9"
DEVICE = Failure("wait", 18, FaultClass.DEVICE, SECRET)
# The request's own settings bar every token; and a board that blames a request which this server made.
OWN = Failure("sampling", 0, FaultClass.REQUEST, SECRET)
BLAMED = Failure("prepare", 5, FaultClass.REQUEST, SECRET)
BAD_ENDS = [
    (FinishReason.CANCELLED, None, 499, "cancelled"),
    (FinishReason.DEADLINE, None, 504, "deadline_exceeded"),
    (FinishReason.DEVICE_FAULT, DEVICE, 503, "device_fault"),
    (FinishReason.SHUTDOWN, None, 503, "shutting_down"),
    (FinishReason.INTERNAL, DEVICE, 500, "internal_error"),
    (FinishReason.INTERNAL, BLAMED, 500, "internal_error"),
    (FinishReason.INTERNAL, OWN, 400, "invalid_value"),
    (FinishReason.REFUSED, RefusalKind.INVALID, 400, "invalid_value"),
    (FinishReason.REFUSED, RefusalKind.UNKNOWN_MODEL, 404, "model_not_found"),
    (FinishReason.REFUSED, RefusalKind.TOO_LONG, 400, "context_length_exceeded"),
    (FinishReason.REFUSED, RefusalKind.TOO_LARGE_FOR_KV, 400, "context_length_exceeded"),
    (FinishReason.REFUSED, RefusalKind.QUEUE_FULL, 429, "queue_full"),
    (FinishReason.REFUSED, RefusalKind.QUEUE_TOKENS_FULL, 429, "queue_tokens_full"),
    (FinishReason.REFUSED, RefusalKind.TENANT_QUEUE_FULL, 429, "tenant_queue_full"),
    (FinishReason.REFUSED, RefusalKind.MODEL_DRAINING, 503, "model_draining"),
    (FinishReason.REFUSED, RefusalKind.MODEL_RECOVERING, 503, "model_recovering"),
    (FinishReason.REFUSED, RefusalKind.MODEL_FAILED, 503, "model_failed"),
]
Why = RefusalKind | Failure | None


def _ends(reason: FinishReason, why: Why):
    def script(engine, submission: Submission) -> None:
        refusal = Refusal(why, limit=11, given=22) if isinstance(why, RefusalKind) else None
        failure = why if isinstance(why, Failure) else None
        engine.end(submission.event.request, reason, refusal, failure)

    return script


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("reason", "why", "status", "code"), BAD_ENDS)
def test_bad_end_before_any_text_has_its_own_status(
    served: Served, stream: bool, reason: FinishReason, why: Why, status: int, code: str
) -> None:
    served.engine.script = _ends(reason, why)
    response = served.complete(stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert SECRET not in response.text
    if why in (RefusalKind.TOO_LONG, RefusalKind.QUEUE_TOKENS_FULL, RefusalKind.TOO_LARGE_FOR_KV):
        assert "11" in response.text
        assert "22" in response.text


def test_every_refusal_and_every_bad_end_is_in_the_table() -> None:
    told = {why if isinstance(why, RefusalKind) else reason for reason, why, _, _ in BAD_ENDS}
    good = {FinishReason.STOP, FinishReason.LENGTH, FinishReason.REFUSED}
    assert told == (set(FinishReason) - good) | set(RefusalKind)


@pytest.mark.parametrize("stream", [True, False])
def test_settings_that_bar_every_token_are_the_clients_fault_and_are_told_so(served: Served, stream: bool) -> None:
    served.engine.script = _ends(FinishReason.INTERNAL, OWN)
    response = served.complete(stream=stream)
    told = response.json()["error"]
    assert (response.status_code, told["type"]) == (400, "invalid_request_error")
    assert "settings leave no token to choose" in told["message"]
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    ("reason", "why", "status", "code"), [end for end in BAD_ENDS if end[0] is not FinishReason.REFUSED]
)
def test_bad_end_in_an_open_stream_is_one_error_event_and_no_done(
    served: Served, reason: FinishReason, why: Failure | None, status: int, code: str
) -> None:
    served.engine.script = begins("half")
    with served.client.stream(
        "POST", "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "a"}], "stream": True},
    ) as response:  # fmt: skip
        request = served.engine.wait_post(Submission).event.request
        lines = response.iter_lines()
        assert "role" in next(lines)
        served.engine.end(request, reason, failure=why)
        body = "\n".join(lines)
    assert response.status_code == 200
    data = [line for line in body.split("\n") if line.startswith("data: ")]
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == code
    assert sum('"error"' in line for line in data) == 1
    assert "[DONE]" not in body
    assert SECRET not in body


def test_second_terminal_of_a_request_is_never_seen(served: Served) -> None:
    def twice(engine, submission: Submission) -> None:
        request = submission.event.request
        engine.say(request, "a")
        engine.end(request, FinishReason.STOP)
        engine.open[request] = 0
        engine.say(request, "late")
        engine.end(request, FinishReason.DEVICE_FAULT)

    served.engine.script = twice
    data = events(served.complete(stream=True).text)
    assert data[-1] == "[DONE]"
    assert not [event for event in data if "late" in event or "error" in event]
    assert served.on_loop(lambda: served.bridge.dropped_items) == 2


def test_one_bad_choice_ends_the_answer_and_cancels_the_others(served: Served) -> None:
    def script(engine, submission: Submission) -> None:
        if submission.event.request.endswith("-1"):
            engine.end(submission.event.request, FinishReason.REFUSED, Refusal(RefusalKind.QUEUE_FULL, 3, 4))

    served.engine.script = script
    response = served.complete(n=3)
    assert response.status_code == 429
    served.engine.wait_post(Cancel, 2)
    served.engine.wait_idle()


def test_delete_cancels_an_open_request_and_tells_its_client(served: Served) -> None:
    served.engine.script = begins("half")
    with served.client.stream(
        "POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}
    ) as response:
        lines = response.iter_lines()
        id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert id == response.headers["x-request-id"]
        # A second connection: the first is busy with the stream.
        assert served.client.delete(f"/internal/requests/{id}").status_code == 200
        assert '"code":"cancelled"' in "".join(lines)
    assert served.engine.wait_post(Cancel) == Cancel(id, CancelCause.ASKED)
    assert served.client.delete(f"/internal/requests/{id}").status_code == 404


@pytest.mark.parametrize("id", ["nothing", "chatcmpl-" + "0" * 32, "%2e%2e", "a" * 600])
def test_delete_of_an_unknown_request_is_a_404(served: Served, id: str) -> None:
    assert served.client.delete(f"/internal/requests/{id}").status_code == 404


def test_broken_invariant_is_a_500_without_details_and_the_server_stays(served: Served) -> None:
    served.engine.post_error = RuntimeError(SECRET)
    response = served.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert SECRET not in response.text
    served.engine.post_error = None
    assert served.complete().status_code == 200


class Panic(BaseException):
    """As a library's that is no Exception."""


def test_panic_of_a_library_is_a_500_with_an_error_object_and_the_server_stays(served: Served) -> None:
    served.engine.post_error = Panic(SECRET)
    response = served.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert SECRET not in response.text
    served.engine.post_error = None
    assert served.complete().status_code == 200
