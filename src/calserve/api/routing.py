"""Routes by their exact bytes.

Owns the match of a path: segment by segment on the path as it was sent, so that an encoded slash or dot, a doubled
slash or a trailing one can never arrive at another route. Must not know what a route does. Access is decided per
route: what is not listed is a 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from calserve.api import errors
from calserve.api.answers import send_error

Handler: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
# A model's name or a request's id, decoded. Longer ones are no name of ours.
MAX_PARAMETER_BYTES = 512


@dataclass(frozen=True, slots=True)
class Pattern:
    """Literal segments and at most one parameter, shown as None; it never matches an empty segment."""

    segments: tuple[bytes | None, ...]

    @classmethod
    def parse(cls, path: str) -> Pattern:
        return cls(tuple(None if part.startswith("{") else part.encode() for part in path[1:].split("/")))

    def match(self, raw_path: bytes) -> str | None:
        """The parameter ("" when the pattern has none), or None when the path is another."""
        sent = raw_path[1:].split(b"/")
        if not raw_path.startswith(b"/") or len(sent) != len(self.segments):
            return None
        value = ""
        for want, got in zip(self.segments, sent, strict=True):
            if want is None:
                decoded = unquote_to_bytes(got)
                if not decoded or len(decoded) > MAX_PARAMETER_BYTES:
                    return None
                value = decoded.decode("utf-8", "replace")
            elif want != got:
                return None
        return value


class ExactRoute(BaseRoute):
    """One path, its methods and their handlers. HEAD is answered like GET; the server leaves the body out."""

    def __init__(self, path: str, handlers: Mapping[str, Handler]) -> None:
        self._pattern = Pattern.parse(path)
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        value = self._pattern.match(raw_path(scope))
        if value is None:
            return Match.NONE, {}
        return Match.FULL, {"path_params": {"value": value}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is None:
            allow = ", ".join(sorted(self._handlers)).encode()
            await send_error(send, errors.error(errors.METHOD_NOT_ALLOWED), [(b"allow", allow)])
            return
        await handler(scope, receive, send)


def raw_path(scope: MutableMapping[str, Any]) -> bytes:
    """The path as sent, without the query."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    return bytes(raw).split(b"?", 1)[0]


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Everything that is not listed."""
    if scope["type"] == "http":
        await send_error(send, errors.error(errors.NOT_FOUND))
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})


def routes(table: Sequence[tuple[str, Mapping[str, Handler]]]) -> list[BaseRoute]:
    return [ExactRoute(path, handlers) for path, handlers in table]
