"""One client's connection, with two habits of uvicorn's replaced.

Owns what happens before a request is one (bytes that are no HTTP, wishes to speak another protocol) and after its
answer has been written (a client that does not read it). Must not know routes. Life: uvicorn makes one per
connection.

Whatever follows an upgrade is by the client's word not HTTP, while uvicorn would go on reading requests from it: such
a connection is answered once and closed, and nothing after is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from calserve.api import errors

# A client that takes not one byte of what waits for it for so long is gone.
WRITE_STALL_S = 30.0

_log = logging.getLogger(__name__)
_NO_UPGRADE = "This server speaks HTTP/1.1 only; send the request without 'Upgrade' and not as CONNECT."
_NO_HTTP = "This is not a valid HTTP request."


class Protocol(HttpToolsProtocol):
    """Invariants: after a refusal no byte of the connection reaches the parser; unread bytes of ours are kept while
    the client takes some of them every `WRITE_STALL_S`, and no longer, also on a connection that is closing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_refused = False
        self._stall: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.send_400_response(_NO_UPGRADE)
        except httptools.HttpParserError as error:
            _log.debug("not HTTP: %s", error)
            self.send_400_response(_NO_HTTP)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # Raised through the parser, which stops: neither this request nor its body is looked at.
            raise httptools.HttpParserUpgrade(0)
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the connection; `msg` is the sentence."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        # An answer still under way on this connection would be torn in two by this one.
        if self.cycle is None or self.cycle.response_complete:
            body = errors.error(errors.NOT_HTTP, msg).body
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()
        self._watch_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_writing()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().connection_lost(exc)

    def _watch_writing(self) -> None:
        size = self.transport.get_write_buffer_size()
        if self._stall is None and size:
            self._stall = self.loop.call_later(WRITE_STALL_S, self._check_writing, size)

    def _check_writing(self, before: int) -> None:
        """before: bytes that waited `WRITE_STALL_S` ago. More were written since, if anything: less is progress."""
        self._stall = None
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._watch_writing()
        else:
            _log.debug("a client did not read for %.0f s", WRITE_STALL_S)
            self.transport.abort()
