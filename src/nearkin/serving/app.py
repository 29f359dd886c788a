"""The application (an index's routes behind middleware), and the server that runs it until a signal."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable
from types import FrameType

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, generate_latest

import nearkin
from nearkin.errors import OutputError
from nearkin.index.index import Index
from nearkin.serving import map as map_
from nearkin.serving import routes
from nearkin.serving.errors import handle_errors
from nearkin.serving.middleware import BodyLimit, Observer, Security
from nearkin.serving.schemas import Error
from nearkin.serving.service import Service
from nearkin.serving.settings import Settings

_SHUTDOWN_SECONDS = 35
_ERRORS = {
    400: "The request cannot be read",
    401: "The key is missing or wrong",
    403: "The host name or the origin is refused",
    413: "Too large",
    422: "Not valid",
    503: "The index cannot answer",
}


def create_app(index: Index, settings: Settings | None = None) -> FastAPI:
    """``index`` as an ASGI application."""
    service = Service(index, settings or Settings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    has_key = service.settings.key is not None
    app = FastAPI(
        title="nearkin",
        version=nearkin.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if has_key else [],  # for the OpenAPI document
        responses={status: {"model": Error, "description": text} for status, text in _ERRORS.items()},
    )
    app.state.service = service
    registry = CollectorRegistry()
    registry.register(service)
    # The middleware that is added last is called first.
    app.add_middleware(Security, settings=service.settings)
    app.add_middleware(BodyLimit, settings=service.settings)
    app.add_middleware(Observer, registry=registry)
    handle_errors(app, index.path)
    app.include_router(routes.router(service))
    app.include_router(map_.router(service))

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Counts and times, for Prometheus."""
        return (await service.read(generate_latest, registry)).decode()

    return app


def serve(index: Index, settings: Settings, *, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve ``index`` until SIGINT or SIGTERM; ``ready`` is called with the address once clients can connect."""
    _ = index.model  # an error now, not at the first search, if the encoder was moved
    with contextlib.closing(_bound_socket(settings)) as listening:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(index, settings),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        ready(url)  # clients can connect already; they wait until the server has started
        _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that ends without an error on a signal; uvicorn's own handler would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT  # a second Ctrl-C does not wait for requests
        self.should_exit = True


def _bound_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With IPPROTO_TCP asyncio sets TCP_NODELAY; otherwise the second part of an answer waits 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise OutputError(
            f"cannot listen at {settings.host}:{settings.port} ({error.strerror or error}): give another --port, or "
            f"--port 0 for one that is free"
        ) from error
    return listening
