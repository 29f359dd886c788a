"""Routes of an index's map: its points, their labels, and making it in a thread."""

from __future__ import annotations

import threading
from typing import Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel

from nearkin.errors import NearkinError
from nearkin.index.index import Index
from nearkin.index.map_layout import NAME, Layout, make_layout, read_layout
from nearkin.serving.errors import RequestError
from nearkin.serving.schemas import BINARY, ERROR
from nearkin.serving.service import Service


class MapStatus(BaseModel):
    """Whether there is a map; while it is being made, ``done`` of ``of`` steps are done."""

    state: Literal["none", "working", "ready"]
    done: int = 0
    of: int = 0
    error: str | None = None


class Maps:
    """The map of one index, made in a thread, and cached until the index changes."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._progress: MapStatus | None = None
        self._failed: str | None = None
        self._packed: tuple[object, tuple[bytes, list[str]]] | None = None

    def status(self) -> MapStatus:
        return self._progress or MapStatus(state="ready" if self._file() else "none", error=self._failed)

    def begin(self) -> MapStatus:
        """Begin to make the map, unless it is being made."""
        with self._lock:
            if self._progress is None:
                self._progress, self._failed = MapStatus(state="working"), None
                threading.Thread(target=self._make, name="nearkin-map", daemon=True).start()
            return self._progress

    def packed(self) -> tuple[bytes, list[str]]:
        """Rows of id, x, y and label number, and the labels, most frequent first; a 404 without a map."""
        with self._lock:
            state = (self._index.version, self._file())
            if self._packed is None or self._packed[0] != state:
                if (layout := read_layout(self._index)) is None:
                    raise RequestError(404, "this index has no map yet: POST /map makes one")
                self._packed = state, _packed(layout, self._index)
            return self._packed[1]

    def _file(self) -> object:
        try:
            stat = (self._index.path / NAME).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _make(self) -> None:
        def update(done: int, of: int) -> None:
            self._progress = MapStatus(state="working", done=done, of=of)

        try:
            make_layout(self._index, progress=update)
        except NearkinError as error:
            self._failed = str(error)
        finally:
            self._progress = None


def router(service: Service) -> APIRouter:
    routes, maps = APIRouter(), Maps(service.index)

    @routes.get(
        "/map",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": BINARY}}, 404: ERROR},
    )
    async def rows() -> Response:
        """Little-endian float32 [N, 4]: id, x, y, number of the label; id −1 for a proxy, label −1 for none."""
        content, _ = await service.read(maps.packed)
        headers = {"X-Map-Rows": str(len(content) // 16), "Cache-Control": "no-cache"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @routes.get("/map/labels", responses={404: ERROR})
    async def labels() -> list[str]:
        """The labels by their numbers in the map."""
        return (await service.read(maps.packed))[1]

    @routes.get("/map/status")
    async def status() -> MapStatus:
        """Whether there is a map, and the progress of making one."""
        return maps.status()

    @routes.post("/map", status_code=202, responses={409: ERROR})
    async def make() -> MapStatus:
        """Make the map, replacing the old one."""
        return await service.write(maps.begin)

    return routes


def _packed(layout: Layout, index: Index) -> tuple[bytes, list[str]]:
    labels = [label for label, _ in index.label_counts()]
    labels += sorted(set(layout.classes) - set(labels))
    number = {label: i for i, label in enumerate(labels)}
    label_of = dict(zip(*(column.tolist() for column in index.labels()), strict=True))
    items = [number.get(label_of.get(id, ""), -1) for id in layout.ids.tolist()]
    proxies = [number[name] for name in layout.classes]
    ids = np.concatenate([layout.ids, np.full(len(proxies), -1)])
    rows = np.column_stack([ids, np.concatenate([layout.points, layout.proxies]), [*items, *proxies]])
    return rows.astype("<f4").tobytes(), labels
