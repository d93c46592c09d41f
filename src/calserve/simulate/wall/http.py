"""HTTP/1.1 as clients speak it, over plain asyncio streams, with the bad manners an ordinary client hides.

Owns one exchange: connect, send, read events or a body, leave early, stop reading, cancel. Must not know what an
answer should be. One connection per request: what is soaked is the server, not a pool.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from calserve.simulate.wall.judge import End, Result
from calserve.simulate.wall.schedule import Arrival, Kind

ROUTE = "/v1/completions"
HEAD_LIMIT = 1 << 20
# A client that will stop reading keeps little in its socket, or the kernel would read in its place.
STALLED_BUFFER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(slots=True)
class Answer:
    """A response's head; the body follows from `reader`."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


class Connection:
    """One connection for one request. Invariant: closed on the way out, whatever happened."""

    def __init__(self, address: Address, small: bool = False) -> None:
        self._address, self._small = address, small
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Connection:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if self._small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_BUFFER_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (self._address.host, self._address.port))
        except BaseException:
            sock.close()
            raise
        limit = STALLED_BUFFER_BYTES if self._small else HEAD_LIMIT
        self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            # Not a polite close: a client that goes away does not wait for what is still coming.
            self._writer.transport.abort()

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        assert self._writer is not None, "not connected"
        head = f"{method} {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    async def head(self) -> Answer | None:
        """The status line and headers; None when the connection closed without one."""
        assert self._reader is not None, "not connected"
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        return Answer(int(lines[0].split(" ", 2)[1]), {name.lower(): value.strip() for name, value in pairs})

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body as it comes. A connection that closes early raises IncompleteReadError."""
        assert self._reader is not None, "not connected"
        if answer.headers.get("transfer-encoding", "") != "chunked":
            length = int(answer.headers.get("content-length", "0"))
            yield await self._reader.readexactly(length)
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]


async def call(address: Address, method: str, path: str, body: bytes = b"", limit_s: float = 10.0) -> tuple[int, bytes]:
    """A plain request; (0, b"") when nothing was heard within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s), Connection(address) as connection:
            await connection.send(method, path, body)
            answer = await connection.head()
            if answer is None:
                return 0, b""
            return answer.status, b"".join([piece async for piece in connection.pieces(answer)])
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return 0, b""


def body_of(model: str, arrival: Arrival) -> bytes:
    """The request as JSON."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(arrival.case.prompt),
        "max_tokens": arrival.case.max_tokens,
        "temperature": 0,
        "ignore_eos": arrival.case.is_long,
        "stream": arrival.is_streaming,
    }
    if arrival.is_streaming:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body | arrival.fields()).encode()


async def exchange(address: Address, model: str, arrival: Arrival, patience_s: float) -> Result:
    """One client from its connection to the one end it saw."""
    result = Result(End.UNREACHABLE)
    try:
        async with asyncio.timeout(patience_s):
            await _exchange(address, model, arrival, result)
    except TimeoutError:
        result.end = End.ENDLESS
    except (ValueError, LookupError, TypeError):
        # No JSON, or not the shape of an answer: no code and no status let it pass.
        result.end, result.status, result.code = End.REFUSED, 0, ""
    except (OSError, asyncio.IncompleteReadError):
        if result.end is not End.UNREACHABLE:
            result.end = End.CUT if result.status == 200 else End.UNANSWERED
    return result


async def _exchange(address: Address, model: str, arrival: Arrival, result: Result) -> None:
    async with Connection(address, small=arrival.kind is Kind.STALL) as connection:
        result.end = End.UNANSWERED
        await connection.send("POST", ROUTE, body_of(model, arrival))
        if arrival.kind is Kind.LEAVE_WHOLE:
            answer = await _head_within(connection, arrival.wait_s)
            if answer is None:
                result.end = End.LEFT
                return
        else:
            answer = await connection.head()
        if answer is None:
            return
        result.status = answer.status
        result.retry_after = "retry-after" in answer.headers
        if answer.status != 200 or not arrival.is_streaming:
            _take_whole(b"".join([piece async for piece in connection.pieces(answer)]), result)
            return
        await _read_stream(connection, answer, address, arrival, result)


async def _head_within(connection: Connection, wait_s: float) -> Answer | None:
    try:
        async with asyncio.timeout(wait_s):
            return await connection.head()
    except TimeoutError:
        return None


def _take_whole(body: bytes, result: Result) -> None:
    said = json.loads(body)
    if result.status != 200:
        result.end = End.REFUSED
        result.code = _error_code(said)
        return
    result.end = End.ANSWERED
    choice = said["choices"][0]
    result.text, result.finish = choice["text"], choice["finish_reason"]
    result.tokens = said["usage"]["completion_tokens"]


async def _read_stream(
    connection: Connection, answer: Answer, address: Address, arrival: Arrival, result: Result
) -> None:
    """Events until the end, or until this client has had enough."""
    result.end = End.CUT
    rest, seen, is_cancelled = b"", 0, False
    async for piece in connection.pieces(answer):
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            seen += 1
            _take_event(event.removeprefix(b"data: "), result)
        if seen < arrival.events or is_cancelled or result.marks:
            continue
        if arrival.kind is Kind.LEAVE_STREAM:
            result.end = End.LEFT
            return
        if arrival.kind in (Kind.DELETE, Kind.STALL):
            is_cancelled = True
            await _interfere(address, arrival, answer.headers.get("x-request-id", ""))
    # The body ended by its own framing: without a terminal mark in it the client was not told.
    if result.marks:
        result.end = End.TOLD if result.code else End.ANSWERED


async def _interfere(address: Address, arrival: Arrival, request_id: str) -> None:
    """Cancel by name, or read nothing for a while."""
    if arrival.kind is Kind.STALL:
        await asyncio.sleep(arrival.wait_s)
    else:
        await call(address, "DELETE", f"/internal/requests/{request_id}")


def _take_event(data: bytes, result: Result) -> None:
    if data == b"[DONE]":
        result.marks += 1
        return
    said = json.loads(data)
    if "error" in said:
        result.marks += 1
        result.code = _error_code(said)
        return
    if said.get("usage"):
        result.tokens = said["usage"]["completion_tokens"]
    for choice in said["choices"]:
        if choice["index"]:
            continue  # a greedy request's other choices are the first one again
        result.text += choice["text"] or ""
        if choice["finish_reason"]:
            result.finish = choice["finish_reason"]
            result.finishes += 1


def _error_code(said: Any) -> str:
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("code", "")) if isinstance(error, dict) else ""
