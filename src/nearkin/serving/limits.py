"""How much may be asked: requests a second, requests at once, bytes and seconds of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serving.problems import RequestError
from nearkin.serving.settings import Settings

_SECONDS_AT_ONCE = 10.0
_MOST_CLIENTS = 10_000
_MOST_WITHOUT_IMAGE = 1 << 20


class Rate:
    """So many requests a second of each client, of which ten seconds' worth may come at once.

    >>> rate = Rate(0.1, clock=iter([0.0, 1.0, 11.0]).__next__)
    >>> rate.wait("a"), rate.wait("a"), rate.wait("a")
    (0.0, 9.0, 0.0)
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, max(1.0, rate * _SECONDS_AT_ONCE), clock
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, client: str) -> float:
        """Seconds until this client may ask; 0 for now, and then it has."""
        now = self._clock()
        left, since = self._left.get(client, (self._most, now))
        left = min(self._most, left + (now - since) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._left) >= _MOST_CLIENTS:  # those that have been away long enough are as if they were new
            self._left = {
                each: (kept, then)
                for each, (kept, then) in self._left.items()
                if kept + (now - then) * self._rate < self._most
            }
        self._left[client] = left - 1, now
        return 0.0


class Limits:
    """Lets a request through within its limits, or answers it with which one it met."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._rate = None if settings.rate is None else Rate(settings.rate)
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        began = False

        async def send_and_note(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        self.active += 1
        try:
            most = self._check(scope)
            async with asyncio.timeout(self._settings.timeout):
                await self._app(scope, _limited(receive, most), send_and_note)
        except (RequestError, TimeoutError) as error:
            if began:
                raise
            await (error if isinstance(error, RequestError) else self._too_slow()).answer()(scope, receive, send)
        finally:
            self.active -= 1

    def _check(self, scope: Scope) -> int:
        """Lets a request begin, with so many bytes."""
        if self.active > self._settings.concurrency:
            raise RequestError(503, "the server has too much to do: try again in a moment", {"Retry-After": "1"})
        if self._rate is not None and (wait := self._rate.wait((scope.get("client") or ("",))[0])):
            seconds = int(wait) + 1
            raise RequestError(429, f"too many requests: try again in {seconds} s", {"Retry-After": str(seconds)})
        headers = Headers(scope=scope)
        has_image = headers.get("content-type", "").lower().startswith("multipart/form-data")
        most = self._settings.max_bytes if has_image else min(_MOST_WITHOUT_IMAGE, self._settings.max_bytes)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise _too_large(most)
        return most

    def _too_slow(self) -> RequestError:
        return RequestError(
            503,
            f"this took longer than {self._settings.timeout:g} s and was given up; if it was to change something, look "
            f"whether it has",
            {"Retry-After": "5"},
        )


def _limited(receive: Receive, most: int) -> Receive:
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        return message

    return limited


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"such a request has at most {most:,} bytes: send less", {"Connection": "close"})
