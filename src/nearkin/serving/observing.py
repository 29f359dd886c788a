"""Every request is counted, timed and logged, and whatever nobody foresaw is answered with 500 and logged whole."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serving.logs import logger
from nearkin.serving.metrics import Metrics
from nearkin.serving.problems import RequestError
from nearkin.serving.security import add_headers

_OFTEN = ("/items/{id}/thumbnail", "/static/{path:path}", "/health", "/metrics")


class Observing:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            add_headers(message)
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            logger.exception("a request failed", extra={"fields": {"method": scope["method"], "path": scope["path"]}})
            if status:
                raise
            error = RequestError(500, "this should not have happened: the server's log says what did")
            await error.answer()(scope, receive, send_and_note)
        finally:
            self._note(scope, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        self._metrics.note(method, route, status, seconds)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or ("",))[0],
        }
        often = status < 400 and route in _OFTEN
        logger.log(logging.DEBUG if often else logging.INFO, "request", extra={"fields": fields})
