"""Running the application under uvicorn, and its orderly end.

Owns the listening socket's life and the signals. Must not know what is served. Life: bind, serve, on SIGTERM or
SIGINT drain, end with the service's exit code.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from calserve.api.protocol import Protocol
from calserve.service.service import DEFAULT_DRAIN_NS, Service

# For bytes that are already written to reach clients that read; nothing runs for them any more.
FLUSH_S = 2
BACKLOG = 2048
KEEP_ALIVE_S = 30


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: a signal drains first, and the service says when to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound before the model is loaded so that a taken port fails at once.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        # Two processes may bind one address; only one may listen on it. Whoever comes second learns it here.
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def serve(
    app: ASGIApp,
    service: Service,
    sock: socket.socket,
    drain_ns: int = DEFAULT_DRAIN_NS,
    takes_signals: bool = True,
) -> int:
    """Serve until the service ends; its exit code.

    Args:
        sock: from `bind`; closed at the end.
        drain_ns: what SIGTERM and SIGINT give open streams to end in.
        takes_signals: False where this does not run on the main thread, which alone may take them.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # what it says of starting and stopping, we say
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody here asks who the client is
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT) if takes_signals else ()
    for number in signals:
        loop.add_signal_handler(number, service.begin_shutdown, drain_ns)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    ended = asyncio.create_task(service.wait_ended())
    try:
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await running
        ended.cancel()
        return ended.result() if ended.done() and not ended.cancelled() else 1
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        service.close()
