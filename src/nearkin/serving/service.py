"""What the routes share: the index, who decodes and embeds for it, and how its answers look."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import DataError, RecipeError
from nearkin.index.index import ColumnRange, Index
from nearkin.index.items import Item
from nearkin.index.search import Classified, Hit, classified
from nearkin.serving import schemas
from nearkin.serving.decoding import Decoder
from nearkin.serving.embedding import Embedder
from nearkin.serving.problems import RequestError
from nearkin.serving.settings import Settings

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NEIGHBOURS = 10
_THREADS = 8
_ROUNDING = 1e-3
_MOST_LABELS = 2000


@dataclass(frozen=True)
class Overview:
    """Counts of one state of an index."""

    items: int
    labelled: int
    labels: list[tuple[str, int]]
    """The most frequent first, at most 2,000."""
    columns: list[ColumnRange]


class Service:
    """One index that is served. Blocking work is done in threads, writing in a single one."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self.decoder = Decoder(settings.decoders, max_pixels=settings.max_pixels)
        self.embedder = Embedder(lambda images, batch_size: index.model.embed(images, batch_size))
        self._threads = ThreadPoolExecutor(_THREADS, "nearkin-search")
        self._writer = ThreadPoolExecutor(1, "nearkin-write")
        self._lock = threading.Lock()
        self._overview: tuple[tuple[int, int], Overview] | None = None

    def close(self) -> None:
        """What was begun is finished."""
        self.decoder.close()
        self.embedder.close()
        self._writer.shutdown()
        self._threads.shutdown()

    async def read(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **options))

    async def write(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """One after another, as an index has one writer."""
        if self.settings.read_only:
            raise RequestError(409, "this index is served read-only: start the server without --read-only to change it")
        return await asyncio.get_running_loop().run_in_executor(self._writer, partial(work, *args, **options))

    async def decoded(self, content: bytes, crop: list[float] | None = None) -> NDArray[np.uint8]:
        """Pixels of an upload as the encoder wants them."""
        if crop is not None and (min(crop[2:]) <= 0 or max(crop[0] + crop[2], crop[1] + crop[3]) > 1 + _ROUNDING):
            raise RequestError(422, f"crop: x, y, width and height are shares of the picture from 0 to 1, got {crop}")
        return await self.decoder.decode(content, shorter_side=self.index.model.shorter_side, crop=crop)

    def check_there(self, ids: list[int]) -> list[Item]:
        """The items, or an answer that one is not there."""
        if len(ids) > self.settings.max_ids:
            raise RequestError(422, f"at most {self.settings.max_ids:,} ids at once, got {len(ids):,}")
        try:
            return self.index.items(ids)
        except DataError as error:
            raise RequestError(404, f"{error}".replace(str(self.index.path), "this index")) from error

    def overview(self) -> Overview:
        """Counted once for each state of the index."""
        with self._lock:
            version = self.index.version
            if self._overview is None or self._overview[0] != version:
                labels = self.index.label_counts()
                labelled = sum(count for _, count in labels)
                columns = self.index.column_ranges()
                self._overview = version, Overview(len(self.index), labelled, labels[:_MOST_LABELS], columns)
            return self._overview[1]

    def search(
        self, options: schemas.Options, query: int | NDArray[np.floating] | None, *, is_image: bool
    ) -> schemas.Hits:
        """What a request asks for; an image is also told what it seems to be."""
        begin = time.perf_counter()
        if named := [*options.like, *options.unlike, *([query] if isinstance(query, int) else [])]:
            self.check_there(named)
        where = {name: _asked(value) for name, value in options.where.items()}
        if self.settings.hide_paths and "path" in (options.group_by, *where):
            raise RecipeError("paths are hidden on this server: filter and group by something else")
        for name, value in where.items():
            if isinstance(value, list) and len(value) > self.settings.max_ids:
                raise RequestError(422, f"where: {name}: at most {self.settings.max_ids:,} values, got {len(value):,}")
        plain = not (where or options.like or options.unlike or options.offset)
        plain = plain and options.group_by is None and options.min_confidence is None
        found: list[Hit] = self.index.search(
            query,
            options.k + 1,
            where=where or None,
            like=options.like,
            unlike=options.unlike,
            group_by=options.group_by,
            min_confidence=options.min_confidence,
            offset=options.offset,
        )
        guess = None
        if is_image and query is not None:
            guess = self._guess(query, found if plain and options.k + 1 >= _NEIGHBOURS else None)
        return schemas.Hits(
            hits=[self.shown_hit(hit) for hit in found[: options.k]],
            offset=options.offset,
            k=options.k,
            more=len(found) > options.k,
            seconds=time.perf_counter() - begin,
            label=None if guess is None else schemas.LabelGuess(label=guess.label, confidence=guess.confidence),
        )

    def _guess(self, query: int | NDArray[np.floating], hits: list[Hit] | None) -> Classified | None:
        """The label by the nearest neighbours; ``hits`` are these if they are known already."""
        counts = self.overview()
        if not counts.labelled:
            return None
        if counts.labelled < counts.items:
            return self.index.classify(query, _NEIGHBOURS)
        hits = (hits or self.index.search(query, _NEIGHBOURS))[:_NEIGHBOURS]
        return classified(hits, 0.5, self.index.calibration)

    def shown_hit(self, hit: Hit) -> schemas.Hit:
        return schemas.Hit(
            id=hit.id,
            score=hit.score,
            confidence=hit.confidence,
            label=hit.label,
            path=self.shown_path(hit.path),
            columns=dict(hit.columns),
            thumbnail=f"/items/{hit.id}/thumbnail",
        )

    def shown_item(self, item: Item) -> schemas.Item:
        return schemas.Item(
            id=item.id,
            path=self.shown_path(item.path),
            label=item.label,
            columns=dict(item.columns),
            thumbnail=f"/items/{item.id}/thumbnail",
        )

    def shown_path(self, path: str | None) -> str | None:
        return None if self.settings.hide_paths else path


def _asked(value: object) -> object:
    return (value.from_, value.to) if isinstance(value, schemas.Range) else value
