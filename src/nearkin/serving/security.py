"""Who may ask: the name that the server was called by, where the page comes from that asks, and the key.

A page on the Internet can make a browser send requests to a server on the same machine, and by a name that it lets
point there (DNS rebinding) read the answers. The first is told by ``Origin``, the second by ``Host``.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serving.problems import RequestError
from nearkin.serving.settings import LOOPBACK_NAMES, Settings

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OPEN = ("/", "/health", "/favicon.ico")
_SAFE = ("GET", "HEAD", "OPTIONS")


class Security:
    """Lets a request through, or answers it with why not."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._names = {*LOOPBACK_NAMES} if settings.is_loopback else {settings.host}
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
        if not self._is_ours(name_of(host)):
            raise RequestError(
                403,
                f"this server is not called {name_of(host)[:100]!r}: start it with --allow-host NAME if it should be",
            )
        if method not in _SAFE and origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RequestError(403, "requests from pages of other servers are not answered")
        if self._settings.key is not None and path not in _OPEN and not path.startswith("/static/"):
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self._settings.key.encode())
            if kind.lower() != "bearer" or not right:
                raise RequestError(
                    401, "this server needs its key: send 'Authorization: Bearer KEY'", {"WWW-Authenticate": "Bearer"}
                )

    def _is_ours(self, name: str) -> bool:
        # Where a server is reached at all of a machine's addresses these are too many to list, and none is a name.
        return name in self._names or (self._is_everywhere and _is_address(name))


def add_headers(message: Message) -> None:
    """Tell a browser what an answer may be used for."""
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers.setdefault(name, value)


def name_of(host: str) -> str:
    """A ``Host`` header without its port; the port may be another behind a tunnel.

    >>> name_of("localhost:8000"), name_of("[::1]:8000"), name_of("::1")
    ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
