"""Routes for people: the gallery at ``/``, its files, and some items to begin with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel

from nearkin.serving.problems import RequestError
from nearkin.serving.service import Service

WEB = Path(__file__).parent / "web"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = (
    *("api.js", "app.js", "box.js", "chart.js", "corrections.js", "detail.js", "dom.js", "facts.js", "filters.js"),
    *("map.js", "overlay.js", "points.js", "query.js", "results.js", "selection.js", "state.js"),
    *("style.css", "icons.svg", "mark.svg"),
)
"""All that ``/static`` gives: what is asked for is looked up here and never becomes a path."""


class Sample(BaseModel):
    id: int
    label: str | None


class Samples(BaseModel):
    """Some items, to begin with."""

    items: list[Sample]


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    files = {name: (WEB / name).read_bytes() for name in ("index.html", *FILES)}

    def file(name: str, seen: str | None) -> Response:
        tag = f'"{hashlib.sha256(files[name]).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if seen == tag:
            return Response(status_code=304, headers=headers)
        return Response(files[name], media_type=_KINDS[Path(name).suffix], headers=headers)

    @routes.get("/", include_in_schema=False)
    async def page(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return file("index.html", if_none_match)

    @routes.get("/static/{name}", include_in_schema=False)
    async def static(name: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if name not in FILES:
            raise RequestError(404, "there is no such file")
        return file(name, if_none_match)

    @routes.get("/samples")
    async def samples(n: Annotated[int, Query(ge=1, le=100)] = 24) -> Samples:
        """Some items at random, to begin a search with."""

        def some() -> list[Sample]:
            ids = service.index.ids()
            chosen = np.random.default_rng().choice(ids, min(n, len(ids)), replace=False)
            return [Sample(id=item.id, label=item.label) for item in service.index.items(chosen)]

        return Samples(items=await service.read(some))

    return routes
