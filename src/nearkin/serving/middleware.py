"""Middleware: logs and metrics, the limit of a request's size, and the check of host, origin and key."""

from __future__ import annotations

import datetime
import hmac
import json
import logging
import socket
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serving.errors import RequestError
from nearkin.serving.settings import LOOPBACK_NAMES, Settings, address, is_loopback

logger = logging.getLogger("nearkin.serving")

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What browsers may do with an answer."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_FREQUENT = ("/items/{id}/thumbnail", "/static/{name}", "/health", "/metrics")
_MOST_JSON_BYTES = 1 << 20
_WITHOUT_KEY = ("/", "/health", "/favicon.ico")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON, with the fields of ``extra={"fields": {…}}``.

    >>> record = logging.LogRecord("nearkin", logging.INFO, "", 0, "it is %s", ("late",), None)
    >>> json.loads(JsonLines().format(record))["event"]
    'it is late'
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(level: str) -> None:
    """Send the logs of this server and of uvicorn to the error stream."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, least in (("nearkin.serving", level.upper()), ("uvicorn", "WARNING")):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(least)


class Observer:
    """Counts, times and logs every request, and answers unexpected errors with 500."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        labels = ("method", "route", "status")
        self._requests = Counter("nearkin_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "nearkin_request_seconds", "Time to the end of an answer.", ("route",), buckets=BUCKETS, registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("a request failed", extra={"fields": {"method": scope["method"], "path": scope["path"]}})
            if status:
                raise
            error = RequestError(500, "this should not have happened: the server's log has the details")
            await error.answer()(scope, receive, send_with_headers)
        finally:
            self._record(scope, status, time.perf_counter() - begin)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # By the route's pattern, as ids would make a line for each item.
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or ("",))[0],
        }
        level = logging.DEBUG if status < 400 and route in _FREQUENT else logging.INFO
        logger.log(level, "request", extra={"fields": fields})


class BodyLimit:
    """Refuses requests with too many bytes, by their header or as they arrive."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._max_bytes = app, settings.max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_upload = headers.get("content-type", "").lower().startswith("multipart/form-data")
        most = self._max_bytes if is_upload else min(_MOST_JSON_BYTES, self._max_bytes)
        too_large = RequestError(413, f"such a request has at most {most:,} bytes: send less", {"Connection": "close"})
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise too_large  # which the application answers
            return message

        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            await too_large.answer()(scope, receive, send)
            return
        await self._app(scope, limited_receive, send)


class Security:
    """Checks the server's name, the page's origin and the key of a request.

    A page on the Internet can make a browser send requests to a server on the same machine; ``Origin`` reveals this. It
    could read the answers under a name of its own for this machine (DNS rebinding); ``Host`` reveals that.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._names = {*LOOPBACK_NAMES} if is_loopback(settings.host) else {settings.host}
        self._names |= {name.lower() for name in settings.allow_hosts}
        self._is_everywhere = settings.host in ("0.0.0.0", "::")
        if self._is_everywhere:
            self._names |= {*LOOPBACK_NAMES, socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except RequestError as error:
                await error.answer()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host_name(host)
        # A server on all addresses does not know them all; unlike a name, an address cannot be rebound.
        if name not in self._names and not (self._is_everywhere and address(name) is not None):
            raise RequestError(403, f"this server is not called {name[:100]!r}: allow it with --allow-host NAME")
        if method not in _SAFE_METHODS and origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RequestError(403, "requests from pages of other servers are not answered")
        if self._settings.key is not None and path not in _WITHOUT_KEY and not path.startswith("/static/"):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(key.strip().encode(), self._settings.key.encode())
            if scheme.lower() != "bearer" or not is_right:
                text = "this server needs its key: send 'Authorization: Bearer KEY'"
                raise RequestError(401, text, {"WWW-Authenticate": "Bearer"})


def host_name(host: str) -> str:
    """A ``Host`` header without its port, which differs behind a tunnel.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()
