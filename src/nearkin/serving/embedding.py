"""Images of concurrent requests are embedded together: what arrives while one batch is embedded is the next."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Vector = NDArray[np.float32]
Embed = Callable[[Sequence[Pixels], int | None], NDArray[np.float32]]
_Job = tuple[Pixels, "Future[Vector]"]


class Embedder:
    """One thread that has the encoder to itself."""

    def __init__(self, embed: Embed, *, most: int = 32) -> None:
        self._embed, self._most = embed, most
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.images = self.batches = 0
        self._thread = threading.Thread(target=self._work, name="nearkin-embed", daemon=True)
        self._thread.start()

    async def vector_of(self, pixels: Pixels) -> Vector:
        """The vector of one decoded image."""
        future: Future[Vector] = Future()
        self._jobs.put((pixels, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Embed what has been given, and end."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, last = [job], False
            while len(batch) < self._most and not last and not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    last = True
                else:
                    batch.append(job)
            # Whoever was given up on meanwhile needs no vector.
            self._embed_all([each for each in batch if each[1].set_running_or_notify_cancel()])
            if last:
                return

    def _embed_all(self, batch: list[_Job]) -> None:
        if not batch:
            return
        try:
            vectors = self._embed([pixels for pixels, _ in batch], self._most)
        except Exception as error:  # goes to whoever asked
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for each in batch:  # one image that an encoder cannot take is not the fault of the others
                self._embed_all([each])
            return
        self.images += len(batch)
        self.batches += 1
        for (_, future), vector in zip(batch, vectors, strict=True):
            future.set_result(vector)
