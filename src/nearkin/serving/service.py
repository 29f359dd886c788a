"""What the routes share: the index, the threads that work on it, and the form of answers."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from nearkin.index.filters import Where
from nearkin.index.index import Index
from nearkin.index.items import Item
from nearkin.index.search import Hit, check_crop
from nearkin.serving import schemas
from nearkin.serving.decoding import Decoder
from nearkin.serving.errors import RequestError
from nearkin.serving.settings import Settings

Pixels = NDArray[np.uint8]
Vector = NDArray[np.float32]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = tuple[Pixels, "Future[Vector]"]
_THREADS = 8
_MOST_LABELS = 2000


class Embedder:
    """One thread that embeds the images of concurrent requests: those that wait form the next batch."""

    def __init__(self, embed: Callable[[Sequence[Pixels], int], Vector], *, batch_size: int = 32) -> None:
        self._embed, self._batch_size = embed, batch_size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.images = self.batches = 0
        self._thread = threading.Thread(target=self._work, name="nearkin-embed", daemon=True)
        self._thread.start()

    async def embed(self, pixels: Pixels) -> Vector:
        """The vector of one decoded image."""
        future: Future[Vector] = Future()
        self._jobs.put((pixels, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Embed the waiting images, and end."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        batch: list[_Job | None] = []
        while None not in batch:
            batch = [self._jobs.get()]
            while len(batch) < self._batch_size and not self._jobs.empty():
                batch.append(self._jobs.get())
            # Cancelled requests need no vector.
            self._embed_batch([job for job in batch if job is not None and job[1].set_running_or_notify_cancel()])

    def _embed_batch(self, batch: list[_Job]) -> None:
        if not batch:
            return
        try:
            vectors = self._embed([pixels for pixels, _ in batch], self._batch_size)
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for job in batch:  # only the image that the encoder rejects should fail
                self._embed_batch([job])
            return
        self.images += len(batch)
        self.batches += 1
        for (_, future), vector in zip(batch, vectors, strict=True):
            future.set_result(vector)


class Service:
    """One index that is served. Blocking work runs in threads, writing in a single one."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self.decoder = Decoder(settings.decoders, max_pixels=settings.max_pixels)
        self.embedder = Embedder(lambda images, batch_size: index.model.embed(images, batch_size))
        self._threads = ThreadPoolExecutor(_THREADS, "nearkin-search")
        self._writer = ThreadPoolExecutor(1, "nearkin-write")
        self._lock = threading.Lock()
        self._contents: tuple[tuple[int, int], schemas.Contents] | None = None

    def close(self) -> None:
        """Finish the work that has begun."""
        self.decoder.close()
        self.embedder.close()
        self._writer.shutdown()
        self._threads.shutdown()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the index and of uploads, for Prometheus."""
        yield GaugeMetricFamily("nearkin_items", "Items of the index.", value=len(self.index))
        for name, text, value in (
            ("nearkin_images_embedded", "Uploads embedded.", self.embedder.images),
            ("nearkin_batches_embedded", "Batches of them.", self.embedder.batches),
            ("nearkin_images_decoded", "Uploads decoded.", self.decoder.decoded),
            ("nearkin_images_refused", "Uploads that could not be decoded.", self.decoder.refused),
            ("nearkin_decoders_lost", "Decoders that hung or died.", self.decoder.lost),
        ):
            yield CounterMetricFamily(name, text, value=value)

    async def read(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **options))

    async def write(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Do ``work`` after all earlier writes, as an index has one writer."""
        if self.settings.read_only:
            raise RequestError(409, "this index is served read-only: start the server without --read-only to change it")
        return await asyncio.get_running_loop().run_in_executor(self._writer, partial(work, *args, **options))

    async def decoded(self, content: bytes, crop: list[float] | None = None) -> Pixels:
        """Pixels of an upload, in the size that the encoder takes."""
        if crop is not None:
            check_crop(crop)
        return await self.decoder.decode(content, shorter_side=self.index.model.shorter_side, crop=crop)

    def existing(self, ids: list[int]) -> list[schemas.Item]:
        """Items by their ids."""
        if len(ids) > self.settings.max_ids:
            raise RequestError(422, f"at most {self.settings.max_ids:,} ids at once, got {len(ids):,}")
        return self.shown(self.index.items(ids))

    def contents(self) -> schemas.Contents:
        """Counts of the index, which are cached until it changes."""
        with self._lock:
            version = self.index.version
            if self._contents is None or self._contents[0] != version:
                labels = self.index.label_counts()
                contents = schemas.Contents(
                    items=len(self.index),
                    labelled=sum(count for _, count in labels),
                    labels=[schemas.LabelCount(label=label, items=count) for label, count in labels[:_MOST_LABELS]],
                    columns=[
                        schemas.Column(name=name, kind="number" if is_number else "text", min=least, max=most)
                        for name, is_number, least, most in self.index.column_ranges()
                    ],
                )
                self._contents = version, contents
            return self._contents[1]

    def check_limits(self, options: schemas.Browse) -> None:
        """Refuse a request that asks for more than the server gives."""
        limits = self.settings
        sizes = [("k", options.k, limits.max_k), ("offset", options.offset, limits.max_offset)]
        lists = {name: value for name, value in options.where.items() if isinstance(value, list)}
        sizes += [(f"where: {name}", len(values), limits.max_ids) for name, values in lists.items()]
        for name, size, most in sizes:
            if size > most:
                raise RequestError(422, f"{name}: at most {most:,}, got {size:,}")
        fields = [*options.where, getattr(options, "group_by", None)]
        if limits.hide_paths and "path" in fields:
            raise RequestError(422, "paths are hidden on this server: filter and group by something else")

    def browse(self, options: schemas.Browse) -> schemas.Page:
        """The items that meet a filter, by ascending id."""
        ids = self.index.ids(_where(options))
        items = self.index.items(ids[options.offset : options.offset + options.k])
        return schemas.Page(items=self.shown(items), total=len(ids))

    def search(
        self, options: schemas.Options, query: int | NDArray[np.floating] | None, *, is_image: bool
    ) -> schemas.Hits:
        """The hits of a request; for an image also its label by its neighbours."""
        begin = time.perf_counter()
        if ids := [*options.like, *options.unlike, *([query] if isinstance(query, int) else [])]:
            self.existing(ids)
        fields = {"like", "unlike", "group_by", "min_confidence", "offset", "collapse"}
        hits: list[Hit] = self.index.search(
            query, options.k + 1, where=_where(options), **options.model_dump(include=fields)
        )
        guess = None
        if is_image and isinstance(query, np.ndarray) and self.contents().labelled:
            guess = self.index.classify(query)
        return schemas.Hits(
            hits=[schemas.Hit(**self._fields(hit)) for hit in hits[: options.k]],
            offset=options.offset,
            k=options.k,
            more=len(hits) > options.k,
            seconds=time.perf_counter() - begin,
            label=None if guess is None else schemas.LabelGuess(label=guess.label, confidence=guess.confidence),
        )

    def shown(self, items: Sequence[Item]) -> list[schemas.Item]:
        return [schemas.Item(**self._fields(item)) for item in items]

    def _fields(self, item: Item | Hit) -> dict[str, Any]:
        return vars(item) | {"path": self.visible_path(item.path), "thumbnail": f"/items/{item.id}/thumbnail"}

    def visible_path(self, path: str | None) -> str | None:
        return None if self.settings.hide_paths else path


def _where(options: schemas.Browse) -> Where:
    """The filter as an index takes it."""
    return {
        name: (value.from_, value.to) if isinstance(value, schemas.Range) else value
        for name, value in options.where.items()
    }
