"""A client in its own process: N streams over plain sockets, cheap enough not to be what is measured.

Counts server-sent events and stamps them; reads the usage of the last chunk to know the true token count.
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from calserve.bench.workload import Work

NAP_S = 0.0005
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


class _Reader:
    """One stream's socket. `take` is called when it is readable; True when the stream has ended."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._tail = b""
        self.result = StreamResult()

    def send(self) -> None:
        self.result.sent = time.perf_counter()
        self.socket.sendall(self._request)
        self.socket.setblocking(False)

    def take(self) -> bool:
        data = self.socket.recv(65536)
        now = time.perf_counter()
        if not data:
            raise RuntimeError(f"the stream ended early: {self._tail[-400:].decode(errors='replace')}")
        events = data.count(_EVENT)
        result = self.result
        if events:
            if not result.events:
                result.first = now
            else:
                result.gaps.append(now - result.last)
            result.events += events
            result.last = now
        self._tail = data if len(data) > 1024 else self._tail[-1024:] + data
        if _DONE not in self._tail:
            return False
        result.tokens = _usage(self._tail)
        self.socket.close()
        return True


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


def run_streams(host: str, port: int, model: str, work: Work) -> list[StreamResult]:
    """All streams at once; returns when the last ended."""
    readers = [_Reader((host, port), _request(model, prompt, work)) for prompt in work.prompts]
    by_file = {reader.socket.fileno(): reader for reader in readers}
    poll = select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    for reader in readers:
        reader.send()
    while by_file:
        poll.poll(60)
        # A step's tokens arrive together: one nap takes them in one go, instead of a wake-up for each on cores that
        # the server is computing on. It is what every time below is blurred by.
        time.sleep(NAP_S)
        for file, _ in poll.poll(0):
            if by_file[file].take():
                del by_file[file]  # closing the socket took it out of the poll
    poll.close()
    return [reader.result for reader in readers]


def measure(host: str, port: int, model: str, work: Work) -> dict[str, Any]:
    """One turn: tokens, seconds from first send to last event, and per-stream times."""
    results = run_streams(host, port, model, work)
    seconds = max(r.last for r in results) - min(r.sent for r in results)
    return {
        "tokens": sum(r.tokens for r in results),
        "seconds": seconds,
        "ttft": [r.first - r.sent for r in results],
        "tpot": [r.tpot for r in results],
        "streams": [asdict(r) for r in results] if len(results) == 1 else [],
    }
