"""What happens on a connection outside of its requests: no HTTP, another protocol, answers nobody reads."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from api_rig import MODEL, PATIENCE_S, Served, says, silent
from uvicorn.server import ServerState

from calserve.api.protocol import Protocol
from calserve.executor.messages import Submission

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


def _answers(served: Served, sent: bytes) -> bytes:
    """Everything the server says to `sent` until it closes."""
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as sock:
        sock.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
        return received


def _check_refused(received: bytes) -> None:
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"  # the whole rest is one body: one answer, no second


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n"
        % len(GET),
        b"POST /v1/completions HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: %d\r\n\r\n"
        % len(GET),
        b"GET /v1/models HTTP/1.1\r\nconnection: keep-alive, Upgrade\r\nupgrade: h2c\r\n\r\n",
        b"CONNECT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_wish_for_another_protocol_is_refused_and_nothing_after_it_is_read(
    served: Served, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        _check_refused(_answers(served, head + GET + GET))
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"hello\r\n\r\n"])
def test_bytes_that_are_not_http_get_openais_error_and_no_log_line(
    served: Served, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        _check_refused(_answers(served, sent))
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_upgrade_behind_an_open_answer_does_not_write_into_it(served: Served) -> None:
    served.engine.script = silent
    body = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as sock:
        sock.sendall(head % len(body) + body)
        served.engine.wait_post(Submission)
        sock.sendall(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(65536) == b""
    served.engine.wait_idle()


class Loop:
    """Keeps what it is to call later; a test calls it, so that time is the test's."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        entry = (delay, call, args)
        self.later.append(entry)

        class Handle:
            def cancel(_) -> None:  # noqa: N805 - the loop is `self`
                if entry in self.later:
                    self.later.remove(entry)

        return Handle()  # type: ignore[return-value]

    def fire(self) -> None:
        ((delay, call, args),) = self.later
        assert delay == 30.0
        self.later.clear()
        call(*args)


class Transport:
    def __init__(self) -> None:
        self.size, self.is_aborted, self.is_closed, self.written = 0, False, False, b""

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
def connection() -> tuple[Protocol, Loop, Transport]:
    loop, transport = Loop(), Transport()
    config = uvicorn.Config(lambda: None, ws="none", log_config=None, lifespan="off")  # type: ignore[arg-type]
    protocol = Protocol(config, ServerState(), {}, _loop=loop)
    protocol.connection_made(transport)  # type: ignore[arg-type]
    return protocol, loop, transport


def test_bytes_that_come_after_a_refusal_are_not_read(connection: tuple[Protocol, Loop, Transport]) -> None:
    protocol, _, transport = connection
    protocol.data_received(b"GET /v1/models HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
    _check_refused(transport.written)
    protocol.data_received(GET)  # were it parsed, a task would begin for it
    _check_refused(transport.written)
    assert protocol.cycle is None


def test_client_that_takes_nothing_for_30_s_is_cut_off(connection: tuple[Protocol, Loop, Transport]) -> None:
    protocol, loop, transport = connection
    transport.size = 100_000
    protocol.pause_writing()
    loop.fire()
    assert transport.is_aborted


def test_client_that_reads_slowly_is_kept(connection: tuple[Protocol, Loop, Transport]) -> None:
    protocol, loop, transport = connection
    transport.size = 100_000
    protocol.pause_writing()
    for size in (99_999, 50, 1):
        transport.size = size
        loop.fire()
    transport.size = 0
    loop.fire()
    assert not transport.is_aborted
    assert loop.later == []


def test_rest_of_an_answer_nobody_reads_does_not_outlive_the_connections_end(
    connection: tuple[Protocol, Loop, Transport],
) -> None:
    """Below the mark at which writing pauses, a regular close would wait for the client for ever."""
    protocol, loop, transport = connection
    transport.size = 10
    protocol.timeout_keep_alive_handler()
    assert transport.is_closed
    loop.fire()
    assert transport.is_aborted


def test_lost_connection_leaves_no_timer(connection: tuple[Protocol, Loop, Transport]) -> None:
    protocol, loop, transport = connection
    transport.size = 100_000
    protocol.pause_writing()
    protocol.connection_lost(ConnectionResetError())
    assert loop.later == []


def test_unread_whole_answer_does_not_stay(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with real sockets: an answer larger than their buffers, and a client that never reads."""
    lost, lose = threading.Event(), Protocol.connection_lost

    def connection_lost(protocol: Protocol, error: Exception | None) -> None:
        lose(protocol, error)
        lost.set()

    monkeypatch.setattr("calserve.api.protocol.WRITE_STALL_S", 0.05)
    monkeypatch.setattr(Protocol, "connection_lost", connection_lost)
    served.engine.script = says("x" * (32 << 20))
    body = json.dumps({"model": MODEL, "prompt": "a"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as sock:
        sock.sendall(head % len(body) + body)
        assert lost.wait(PATIENCE_S)
