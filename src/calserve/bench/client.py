"""A client in its own process: N streams over plain sockets, cheap enough not to be what is measured.

Counts server-sent events and stamps them; reads the usage of the last chunk to know the true token count.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from calserve.bench.workload import Work

_EVENT = b"data: {"
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class StreamResult:
    """Times in seconds on this process's clock; stamps: arrival of each read with at least one event."""

    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    events: int = 0
    gaps: list[float] = field(default_factory=list)

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / max(1, self.tokens - 1)


class _StreamReader(asyncio.Protocol):
    def __init__(self, request: bytes, done: asyncio.Future[StreamResult]) -> None:
        self._request = request
        self._done = done
        self._tail = b""
        self.result = StreamResult()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.result.sent = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        events = data.count(_EVENT)
        result = self.result
        if events:
            if not result.events:
                result.first = now
            else:
                result.gaps.append(now - result.last)
            result.events += events
            result.last = now
        self._tail = (self._tail + data)[-4096:]
        if _DONE in self._tail:
            result.tokens = _usage(self._tail)
            self._transport.close()
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            text = self._tail[-400:].decode(errors="replace")
            self._done.set_exception(RuntimeError(f"the stream ended early: {text}"))

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(self.result)


def _usage(tail: bytes) -> int:
    at = tail.rfind(b'"completion_tokens":')
    digits = tail[at + len(b'"completion_tokens":') :].lstrip()
    return int(digits[: next(i for i, c in enumerate(digits) if not chr(c).isdigit())])


def _request(model: str, prompt: tuple[int, ...], work: Work) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": work.new_tokens,
            "min_tokens": work.new_tokens,
            "ignore_eos": True,
            "temperature": work.temperature,
            "top_p": work.top_p,
            "seed": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run_streams(host: str, port: int, model: str, work: Work) -> list[StreamResult]:
    """All streams at once; returns when the last ended."""
    loop = asyncio.get_running_loop()
    futures = []
    for prompt in work.prompts:
        done: asyncio.Future[StreamResult] = loop.create_future()
        reader = _StreamReader(_request(model, prompt, work), done)
        await loop.create_connection(partial(_same, reader), host, port)
        futures.append(done)
    return list(await asyncio.gather(*futures))


def _same(reader: _StreamReader) -> _StreamReader:
    return reader


def measure(host: str, port: int, model: str, work: Work) -> dict[str, Any]:
    """One turn: tokens, seconds from first send to last event, and per-stream times."""
    results = asyncio.run(run_streams(host, port, model, work))
    seconds = max(r.last for r in results) - min(r.sent for r in results)
    return {
        "tokens": sum(r.tokens for r in results),
        "seconds": seconds,
        "ttft": [r.first - r.sent for r in results],
        "tpot": [r.tpot for r in results],
        "streams": [asdict(r) for r in results] if len(results) == 1 else [],
    }
