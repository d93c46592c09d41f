"""Sending a whole answer, and reading a whole body, over raw ASGI.

Owns bounds on bodies: size while it streams in, and time. Must not know what is in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from calserve.api import errors

JSON = (b"content-type", b"application/json")
# A body over the limit is still read, and thrown away, up to this many bytes: a client that is answered while it
# sends may see a broken connection in place of the answer.
MAX_DISCARDED_BYTES = 64 << 20

Headers = Sequence[tuple[bytes, bytes]]


class Disconnected(Exception):
    """The client went away before its request was read."""


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    await send_bytes(send, status, body, [JSON, *headers])


async def send_error(send: Send, error: errors.ApiError, headers: Headers = ()) -> None:
    await send_bytes(send, error.status, error.body, [JSON, *error.headers, *headers])


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name (lower case), or b""."""
    value: Any = next((value for key, value in scope["headers"] if key == name), b"")
    return bytes(value)


async def read_body(scope: Scope, receive: Receive, max_bytes: int, timeout_s: float) -> bytes | errors.ApiError:
    """The whole body, or the error it is refused with.

    Raises:
        Disconnected: nobody is left to answer.
    """
    content_type = header(scope, b"content-type").split(b";", 1)[0].strip().lower()
    if content_type != b"application/json":
        return errors.error(errors.WRONG_CONTENT_TYPE)
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared[:20]) > max_bytes + MAX_DISCARDED_BYTES:
        return errors.error(errors.BODY_TOO_LARGE, limit=max_bytes)
    body = bytearray()
    discarded = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk = message.get("body", b"")
                if discarded or len(body) + len(chunk) > max_bytes:
                    body.clear()
                    discarded += len(chunk)
                else:
                    body += chunk
                if not message.get("more_body", False) or discarded > MAX_DISCARDED_BYTES:
                    break
    except TimeoutError:
        return errors.error(errors.BODY_TOO_SLOW, limit=round(timeout_s))
    return errors.error(errors.BODY_TOO_LARGE, limit=max_bytes) if discarded else bytes(body)
