"""The two generating routes.

Owns a request from its first byte to its last: body, parameters, the stream read to its end, and letting go when the
client does. Must not know shapes, tokens or scheduling. One task reads the engine's stream and writes the
connection; a second waits for the client to go away and then ends the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from calserve.api import errors
from calserve.api.answers import Disconnected, read_body, send_error, send_json
from calserve.api.logprobs import TokenView
from calserve.api.parameters import parse_chat, parse_completion
from calserve.api.schemas import ChatBody, Common, CompletionBody
from calserve.api.shapes import ChatShape, CompletionShape, Head, Shape
from calserve.api.sse import EventWriter
from calserve.service.answer import Answer
from calserve.service.bridge import Stream
from calserve.service.generation import Ask, Refused
from calserve.service.service import Service
from calserve.service.terms import Delivery, Ending, RefusalKind

# Token ids as JSON numbers take some six bytes each, text four a token: room for a context of 262,144 tokens.
MAX_BODY_BYTES = 2 << 20
BODY_TIMEOUT_S = 30.0

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers events would undo streaming
]

Parsed: TypeAlias = tuple[Common, Ask] | errors.ApiError


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int = MAX_BODY_BYTES
    timeout_s: float = BODY_TIMEOUT_S


DEFAULT_LIMITS = BodyLimits()


class Watch:
    """Ends the task it was entered in when the client goes away, or when told to give up.

    Invariants: only while entered; the task's own end, however it comes, ends the watch. A cancellation that the
    watch caused is swallowed on the way out, any other is not.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._has_fired = False

    def give_up(self) -> None:
        """On the loop. Idempotent."""
        if not self._has_fired and self._task is not None:
            self._has_fired = True
            self._task.cancel()

    async def __aenter__(self) -> Watch:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._wait_gone())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None, "left without having been entered"
        assert self._watcher is not None
        self._watcher.cancel()
        return self._has_fired and task.uncancel() == 0 and kind is asyncio.CancelledError

    async def _wait_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.give_up()


class GenerateRoutes:
    """`POST /v1/completions` and `POST /v1/chat/completions`. unix_time: seconds, for `created`."""

    def __init__(self, service: Service, limits: BodyLimits, unix_time: Callable[[], float]) -> None:
        self._service = service
        self._limits = limits
        self._unix_time = unix_time

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send, parse_completion)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send, parse_chat)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, parse: Callable[[bytes, int], Parsed]) -> None:
        try:
            body = await self._read(scope, receive)
        except Disconnected:
            return
        parsed = body if isinstance(body, errors.ApiError) else parse(body, self._service.now_ns())
        if isinstance(parsed, errors.ApiError):
            await send_error(send, parsed)
            return
        stream: Stream | Refused | None = None
        async with Watch(receive) as watch:
            stream = await self._service.submit(parsed[1])
            if isinstance(stream, Refused):
                await send_error(send, _refused_error(stream, parsed[1]))
                return
            stream.on_stall = watch.give_up
            with self._service.reading(stream):
                shape = self._shape(stream.id, *parsed)
                if parsed[1].is_streaming:
                    await _send_stream(send, stream, shape)
                else:
                    await _send_whole(send, stream, shape)
        if isinstance(stream, Stream) and stream.is_stalled:
            await _abort(receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | errors.ApiError:
        """Nobody waits for the rest of a body once a drain began: its request could not be taken any more."""
        try:
            async with asyncio.timeout(None) as drain:
                with self._service.told_of_drain(lambda: drain.reschedule(0.0)):
                    return await read_body(scope, receive, self._limits.max_bytes, self._limits.timeout_s)
        except TimeoutError:
            error = errors.error(errors.REFUSALS[RefusalKind.MODEL_DRAINING])
            return replace(error, headers=(*error.headers, (b"connection", b"close")))

    def _shape(self, id: str, asked: Common, ask: Ask) -> Shape:
        head = Head(id, int(self._unix_time()), ask.model, ask.n)
        has_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        view = None
        if ask.sampling.logprobs is not None:
            eos = frozenset() if ask.ignore_eos else self._service.eos_ids(ask.model)
            view = TokenView(
                lambda token: self._service.token_bytes(ask.model, token),
                eos | frozenset(ask.stop_token_ids),
                ask.sampling.logprobs,
            )
        if isinstance(asked, ChatBody):
            return ChatShape(head, has_usage, view)
        assert isinstance(asked, CompletionBody), "there are two endpoints"
        return CompletionShape(head, has_usage, view)


async def _send_stream(send: Send, stream: Stream, shape: Shape) -> None:
    """The status line waits for the first news, so that a request that is refused gets its own status."""
    parts = await stream.wait_parts()
    error = _first_error(parts, shape)
    if error is not None:
        await send_error(send, error)
        return
    headers = [*_SSE_HEADERS, (b"x-request-id", stream.id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    writer = EventWriter(shape, len(stream.members))
    while True:
        events = writer.render(parts)
        if events or writer.is_ended:
            # The connection's write buffer may be full: only then does a full stream mean a stalled client.
            stream.is_blocked = True
            await send({"type": "http.response.body", "body": events, "more_body": not writer.is_ended})
            stream.is_blocked = False
        if writer.is_ended:
            return
        parts = await stream.wait_parts()


async def _send_whole(send: Send, stream: Stream, shape: Shape) -> None:
    answers = [Answer() for _ in stream.members]
    while any(answer.reason is None for answer in answers):
        parts = await stream.wait_parts()
        error = _first_error(parts, shape)
        if error is not None:
            await send_error(send, error)
            return
        for index, item in parts:
            answers[index].take(item)
    await send_json(send, 200, shape.body(answers), [(b"x-request-id", stream.id.encode())])


def _first_error(parts: Sequence[tuple[int, Delivery | Ending]], shape: Shape) -> errors.ApiError | None:
    for _, item in parts:
        error = errors.ending_error(item, shape.prompt_field) if isinstance(item, Ending) else None
        if error is not None:
            return error
    return None


def _refused_error(refused: Refused, ask: Ask) -> errors.ApiError:
    if refused.refusal.kind is RefusalKind.UNKNOWN_MODEL:
        name = ask.model if len(ask.model) <= 100 else ask.model[:100] + "..."
        return errors.refusal_error(refused.refusal, f"The model {name!r} does not exist here.", "model")
    return errors.refusal_error(refused.refusal, refused.message, refused.field)


async def _abort(receive: Receive, send: Send) -> None:
    """Cut a connection whose client does not read: a regular close would wait for it to take what is buffered.

    ASGI has no word for it; uvicorn's `send` is a method of an object that holds the transport. On another server
    the connection stays until its peer leaves, with a bounded buffer and nothing running for it.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
    while (await receive())["type"] != "http.disconnect":
        pass
