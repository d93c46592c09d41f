"""Routes that say how things are: models, health, metrics, and the operator's cancel.

Owns what may be shown: names and states clients already know. Must not know, and never shows, chips, paths,
addresses, or who asked for what.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.types import Receive, Scope, Send

from calserve.api import errors
from calserve.api.answers import send_bytes, send_error, send_json
from calserve.service.service import ServedName, Service
from calserve.service.terms import EngineSnapshot, RefusalKind

RenderMetrics = Callable[[EngineSnapshot | None], bytes]
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
OWNER = "calserve"


class StatusRoutes:
    """started: Unix seconds; shown as each model's `created`. render_metrics: the exposition text, from a snapshot
    or, when the engine does not answer, from None. is_simulated: whoever asks what is served, or how it is, is told
    that no hardware stands behind it."""

    def __init__(
        self, service: Service, render_metrics: RenderMetrics, started: int, is_simulated: bool = False
    ) -> None:
        self._service = service
        self._render_metrics = render_metrics
        self._started = started
        self._mark = {"simulated": True} if is_simulated else {}

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only what is Ready: a client that picks from this list is served."""
        data = [self._model(name) for name in self._service.ready_models()]
        await send_json(send, 200, msgspec.json.encode({"object": "list", "data": data}))

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        if found is None:
            await send_error(send, errors.error(errors.REFUSALS[RefusalKind.UNKNOWN_MODEL], param="model"))
            return
        await send_json(send, 200, msgspec.json.encode(self._model(found)))

    async def model_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._find(scope) is not None:
            await self._say(send, 200, "ready")
        elif self._service.has_model(scope["path_params"]["value"]):
            await send_error(send, errors.error(errors.MODEL_NOT_READY))
        else:
            await send_error(send, errors.error(errors.REFUSALS[RefusalKind.UNKNOWN_MODEL], param="model"))

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        liveness = await self._service.liveness()
        status = "live" if liveness.is_live else "stuck"
        body = msgspec.json.encode({"status": status, "reason": liveness.reason, **self._mark})
        await send_json(send, 200 if liveness.is_live else 503, body)

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ready while any model is, and never once a drain began."""
        if self._service.is_draining:
            await self._say(send, 503, "draining")
        elif self._service.ready_models():
            await self._say(send, 200, "ready")
        else:
            await self._say(send, 503, "no model is ready")

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        snapshot = await self._service.inspect()
        await send_bytes(send, 200, self._render_metrics(snapshot), [METRICS_TYPE])

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`DELETE /internal/requests/{id}`: the id is the one its client was given."""
        if self._service.cancel(scope["path_params"]["value"]):
            await send_json(send, 200, b'{"status":"cancelling"}')
        else:
            await send_error(send, errors.error(errors.UNKNOWN_REQUEST))

    async def _say(self, send: Send, code: int, status: str) -> None:
        await send_json(send, code, msgspec.json.encode({"status": status, **self._mark}))

    def _find(self, scope: Scope) -> ServedName | None:
        wanted = scope["path_params"]["value"]
        return next((name for name in self._service.ready_models() if name.alias == wanted), None)

    def _model(self, name: ServedName) -> dict[str, object]:
        return {
            "id": name.alias,
            "object": "model",
            "created": self._started,
            "owned_by": OWNER,
            "max_model_len": name.context,
            **self._mark,
        }
