"""The soak's client against a server that plays a script: what it reports is what was on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from calserve.simulate.wall.cases import Case
from calserve.simulate.wall.http import Address, body_of, call, exchange
from calserve.simulate.wall.judge import End, Result
from calserve.simulate.wall.schedule import Arrival, Kind

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def arrival(kind: Kind, events: int = 1, wait_s: float = 0.0) -> Arrival:
    return Arrival(7, 0.0, kind, Case((1, 2), 6), events, wait_s)


def chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def text_event(text: str, finish: str | None = None, index: int = 0) -> bytes:
    return chunk(json.dumps({"choices": [{"index": index, "text": text, "finish_reason": finish}]}))


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Request-Id: cmpl-9\r\n\r\n"
DONE, END = chunk("[DONE]"), b"0\r\n\r\n"


def played(play: Play, asked: Arrival, patience_s: float = 10.0) -> Result:
    """One exchange with a server that reads one request and then does as it is told."""

    async def run() -> Result:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            await play(reader, writer)
            writer.close()
            over.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            result = await exchange(Address("127.0.0.1", port), "m", asked, patience_s)
            await over.wait()  # the server sees the end too
            return result

    return asyncio.run(run())


def says(*parts: bytes) -> Play:
    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()

    return play


def whole(status: str, body: object, more: str = "") -> bytes:
    text = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{more}\r\n".encode() + text


def test_exchange_stream_to_its_end_is_answered() -> None:
    usage = chunk(json.dumps({"choices": [], "usage": {"completion_tokens": 2}}))
    script = says(STREAM, text_event("ab"), text_event("é", "length"), usage, DONE, END)
    assert played(script, arrival(Kind.STREAM)) == Result(
        End.ANSWERED, 200, "", "abé", "length", finishes=1, marks=1, tokens=2
    )


def test_exchange_event_in_pieces_is_one_event() -> None:
    event = b'data: {"choices": [{"index": 0, "text": "ab", "finish_reason": null}]}\n\n'
    pieces = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (event[:9], event[9:])]
    assert played(says(STREAM, *pieces, DONE, END), arrival(Kind.STREAM)).text == "ab"


def test_exchange_second_end_in_a_stream_is_seen() -> None:
    result = played(says(STREAM, text_event("a", "stop"), DONE, DONE, END), arrival(Kind.STREAM))
    assert (result.end, result.marks) == (End.ANSWERED, 2)
    error = chunk(json.dumps({"error": {"code": "device_fault"}}))
    assert played(says(STREAM, error, DONE, END), arrival(Kind.STREAM)).marks == 2


def test_exchange_error_event_is_told() -> None:
    error = chunk(json.dumps({"error": {"code": "device_fault"}}))
    result = played(says(STREAM, text_event("a"), error, END), arrival(Kind.STREAM))
    assert (result.end, result.code, result.text, result.marks) == (End.TOLD, "device_fault", "a", 1)


def test_exchange_stream_without_an_end_is_cut() -> None:
    assert played(says(STREAM, text_event("a"), END), arrival(Kind.STREAM)).end is End.CUT
    assert played(says(STREAM, text_event("a")), arrival(Kind.STREAM)).end is End.CUT


def test_exchange_without_a_byte_is_unanswered_and_without_a_server_unreachable() -> None:
    assert played(says(), arrival(Kind.WHOLE)).end is End.UNANSWERED

    async def nobody() -> Result:
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await exchange(Address("127.0.0.1", port), "m", arrival(Kind.WHOLE), 10)

    assert asyncio.run(nobody()).end is End.UNREACHABLE


def test_exchange_whole_answer_and_refusal_are_read() -> None:
    said = {"choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    result = played(says(whole("200 OK", said)), arrival(Kind.WHOLE))
    assert (result.end, result.text, result.finish, result.tokens) == (End.ANSWERED, "ab", "stop", 3)
    script = says(whole("429 Too Many", {"error": {"code": "queue_full"}}, "Retry-After: 1\r\n"))
    assert played(script, arrival(Kind.STREAM)) == Result(End.REFUSED, 429, "queue_full", retry_after=True)


@pytest.mark.parametrize("body", [[], {"choices": []}, "text", {"error": "text"}])
def test_exchange_answer_of_no_shape_passes_for_nothing(body: object) -> None:
    result = played(says(whole("200 OK", body)), arrival(Kind.WHOLE))
    assert (result.end, result.status, result.code) == (End.REFUSED, 0, "")


def test_exchange_that_never_ends_is_endless() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        with suppress(ConnectionResetError):
            await reader.read()  # until the client gives up

    assert played(play, arrival(Kind.STREAM), patience_s=0.05).end is End.ENDLESS


def test_exchange_client_that_leaves_closes_the_connection() -> None:
    gone = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines((STREAM, text_event("a"), text_event("b")))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        gone.append(True)

    assert played(play, arrival(Kind.LEAVE_STREAM, events=2)) == Result(End.LEFT, 200, text="ab")
    assert played(play, arrival(Kind.LEAVE_WHOLE)).end is End.LEFT
    assert gone == [True, True]


def test_exchange_delete_names_the_request_and_reads_on() -> None:
    asked: list[bytes] = []

    async def run() -> Result:
        cancelled = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"DELETE"):
                asked.append(head.split(b" ")[1])
                writer.write(whole("200 OK", {}))
                cancelled.set()
            else:
                writer.writelines((STREAM, text_event("a")))
                await cancelled.wait()
                writer.writelines((chunk(json.dumps({"error": {"code": "cancelled"}})), END))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await exchange(
                Address("127.0.0.1", server.sockets[0].getsockname()[1]), "m", arrival(Kind.DELETE), 10
            )

    result = asyncio.run(run())
    assert asked == [b"/internal/requests/cmpl-9"]
    assert (result.end, result.code, result.text) == (End.TOLD, "cancelled", "a")


def test_exchange_other_choices_do_not_mix_with_the_first() -> None:
    script = says(STREAM, text_event("a"), text_event("x", "stop", 1), text_event("b", "stop"), DONE, END)
    result = played(script, arrival(Kind.STREAM))
    assert (result.text, result.finishes) == ("ab", 1)


def test_body_of_a_bad_request_is_wrong_in_one_way_only() -> None:
    good = json.loads(body_of("m", arrival(Kind.WHOLE)))
    for number in range(12):
        bad = json.loads(body_of("m", Arrival(1, 0.0, Kind.BAD, Case((1, 2), 6), bad=number)))
        assert len([key for key in good | bad if good.get(key) != bad.get(key)]) == 1, bad


def test_call_hears_nothing_from_a_server_that_says_nothing() -> None:
    async def run() -> tuple[int, bytes]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await call(Address("127.0.0.1", server.sockets[0].getsockname()[1]), "GET", "/", limit_s=0.05)

    assert asyncio.run(run()) == (0, b"")
