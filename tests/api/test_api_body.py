"""Reading a body: bounded in bytes and time, whatever its pieces are."""

import asyncio
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from calserve.api.answers import Disconnected, read_body
from calserve.api.errors import ApiError

SCOPE = {"headers": [(b"content-type", b"Application/JSON; charset=utf-8")]}


def _read(messages: Iterable[dict[str, Any]], max_bytes: int = 10, timeout_s: float = 10.0) -> bytes | ApiError:
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        for message in waiting:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return asyncio.run(read_body(SCOPE, receive, max_bytes, timeout_s))


def _piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_pieces_are_joined_up_to_the_limit() -> None:
    assert _read([_piece(b"01234"), _piece(b"56789", more=False)]) == b"0123456789"


def test_one_byte_over_the_limit_is_refused_after_the_rest_was_thrown_away() -> None:
    answer = _read([_piece(b"01234"), _piece(b"567890"), _piece(b"tail", more=False)])
    assert isinstance(answer, ApiError)
    assert answer.status == 413


def test_body_that_never_ends_in_time_is_a_408() -> None:
    answer = _read([_piece(b"0")], timeout_s=0.0)
    assert isinstance(answer, ApiError)
    assert answer.status == 408


def test_client_that_leaves_while_sending_is_not_answered() -> None:
    with pytest.raises(Disconnected):
        _read([_piece(b"0"), {"type": "http.disconnect"}])


@pytest.mark.slow
def test_tiny_pieces_by_the_hundred_thousand_take_no_memory() -> None:
    tracemalloc.start()
    try:
        answer = _read((_piece(b"x", more=i < 299_999) for i in range(300_000)), max_bytes=100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(answer, ApiError)
    assert answer.status == 413
    assert peak < 1 << 20
