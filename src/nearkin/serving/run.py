"""A server that runs until it is told to stop, and then finishes what it took."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nearkin.errors import OutputError
from nearkin.index.index import Index
from nearkin.serving.app import create_app
from nearkin.serving.settings import Settings

_FOR_CLOSING = 5


def _impatient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, closing connections on which the head of a request takes longer than ``seconds``.

    uvicorn waits for ever for the first and for what was begun, so that whoever sends a byte now and then could hold
    all the connections that a process may have.
    """

    class Impatient(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:  # its head is here; limits.py has the rest
                self._stop()
            elif self._patience is None:
                self._patience = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return Impatient


class _Server(uvicorn.Server):
    """Says when it can be reached."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(index: Index, settings: Settings, *, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve ``index`` until SIGINT or SIGTERM; ``ready`` is told the address once requests are answered."""
    _ = index.model  # an encoder that has moved is said now, and not to the first who searches
    with contextlib.closing(_bound(settings)) as place:
        url = f"http://{_in_url(settings.host)}:{place.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(index, settings),
            http=_impatient(settings.timeout),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout) + _FOR_CLOSING,
        )
        with _signals_end_quietly():
            _Server(config, lambda: ready(url)).run(sockets=[place])


def _bound(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Said to be TCP, or asyncio leaves on what makes the second part of an answer wait 40 ms for the first one's ACK.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((settings.host, settings.port))
    except OSError as error:
        place.close()
        raise OutputError(
            f"cannot listen at {settings.host}:{settings.port} ({error.strerror or error}): give another --port, or "
            f"--port 0 for one that is free"
        ) from error
    return place


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn sends itself again the signal that ended it, once all is done; by then it has been obeyed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
