"""The ASGI application: the table of routes, and what happens when a route breaks.

Owns the list of everything that is reachable; what is not in it is a 404. Must not know what routes do. Built once
by the composition root; it holds no state of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from calserve.api import errors
from calserve.api.answers import send_error
from calserve.api.generate import DEFAULT_LIMITS, BodyLimits, GenerateRoutes
from calserve.api.routing import not_found, routes
from calserve.api.status import RenderMetrics, StatusRoutes
from calserve.service.service import Service

_log = logging.getLogger(__name__)


def build_app(
    service: Service,
    render_metrics: RenderMetrics,
    limits: BodyLimits = DEFAULT_LIMITS,
    unix_time: Callable[[], float] = time.time,
    is_simulated: bool = False,
) -> ASGIApp:
    """The whole HTTP interface over one service. is_simulated: models and health say so."""
    generate = GenerateRoutes(service, limits, unix_time)
    status = StatusRoutes(service, render_metrics, int(unix_time()), is_simulated)
    table = routes(
        [
            ("/v1/models", {"GET": status.models}),
            ("/v1/models/{id}", {"GET": status.model}),
            ("/v1/models/{id}/ready", {"GET": status.model_ready}),
            ("/v1/completions", {"POST": generate.completions}),
            ("/v1/chat/completions", {"POST": generate.chat}),
            ("/internal/requests/{id}", {"DELETE": status.cancel}),
            ("/health/live", {"GET": status.live}),
            ("/health/ready", {"GET": status.ready}),
            ("/metrics", {"GET": status.metrics}),
        ]
    )
    return _guarded(Router(table, redirect_slashes=False, default=not_found))


def _guarded(app: ASGIApp) -> ASGIApp:
    """A broken invariant is logged whole and told as a 500 without details."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        try:
            await app(scope, receive, send)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a library's panic is no Exception, and the client is owed an error object all the same
            _log.exception("a route failed: %s %r", scope.get("method"), scope.get("path"))
            try:
                await send_error(send, errors.error(errors.FAULT))
            except RuntimeError:
                # The answer had begun; returning now makes the server cut the connection, which tells the client.
                _log.debug("the answer had already begun")

    return guarded
