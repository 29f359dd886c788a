"""The application: an index's routes, behind its limits."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer

import nearkin
from nearkin.index.index import Index
from nearkin.serving import about, corrected, gallery, items, search
from nearkin.serving import map as map_
from nearkin.serving.limits import Limits
from nearkin.serving.metrics import Metrics
from nearkin.serving.observing import Observing
from nearkin.serving.problems import answer_problems
from nearkin.serving.schemas import Error
from nearkin.serving.security import Security
from nearkin.serving.service import Service
from nearkin.serving.settings import Settings

_ALWAYS = {
    400: "Not to be read",
    401: "No key, or not the right one",
    403: "Not from here",
    413: "Too large",
    422: "Not valid",
    429: "Too many requests",
    503: "Too busy, or too slow",
}


def create_app(index: Index, settings: Settings | None = None) -> FastAPI:
    """``index`` over HTTP, as ASGI servers run it."""
    service = Service(index, settings or Settings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="nearkin",
        version=nearkin.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[]
        if service.settings.key is None
        else [Depends(HTTPBearer(auto_error=False))],  # for the document
        responses={status: {"model": Error, "description": text} for status, text in _ALWAYS.items()},
    )
    app.state.service = service
    metrics = Metrics(
        {
            "nearkin_items": ("gauge", "Items of the index.", lambda: len(index)),
            "nearkin_images_embedded_total": ("counter", "Uploads embedded.", lambda: service.embedder.images),
            "nearkin_batches_embedded_total": ("counter", "Batches of them.", lambda: service.embedder.batches),
            "nearkin_images_decoded_total": ("counter", "Uploads decoded.", lambda: service.decoder.decoded),
            "nearkin_images_refused_total": ("counter", "Uploads not to be decoded.", lambda: service.decoder.refused),
            "nearkin_decoders_lost_total": ("counter", "Decoders that hung or died.", lambda: service.decoder.lost),
        }
    )
    # The last that is added is the first that is asked; keys are not to be tried out faster than the limits allow.
    app.add_middleware(Security, settings=service.settings)
    app.add_middleware(Limits, settings=service.settings)
    app.add_middleware(Observing, metrics=metrics)
    answer_problems(app, index.path)
    for routes in (about, search, items, corrected, gallery, map_):
        app.include_router(routes.router(service))

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> str:
        """Counts and times, for Prometheus."""
        return await service.read(metrics.text)

    return app
