"""From rows to batches of pixels, prepared while the last batch is being learned from.

Pillow resamples outside the interpreter lock, so on a CPU threads suffice: nothing is pickled, the decoded images are
shared, and Ctrl-C works. Where the images are on the device that trains, only what is random is drawn here. The random
numbers of an image depend on (seed, batch, place in the batch) alone: neither the number of threads, nor where crops
are made, nor an interruption changes which part of an image a batch shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images, in_order, usable_cores
from nearkin.data.device_images import DeviceImages
from nearkin.data.resampling import to_device
from nearkin.data.transforms import Box, Transform
from nearkin.samplers import BatchSampler


@dataclass(frozen=True)
class Batch:
    """``rows`` of the training table, their pixels ``[B, H, W, 3]`` (uint8) and labels ``[B]``."""

    number: int
    rows: NDArray[np.int64]
    images: Tensor
    labels: Tensor


def default_workers() -> int:
    """Four threads, or fewer cores: beyond that they wait for the interpreter (16 cores: 2,700 images/s with four
    threads, 2,000 with sixteen)."""
    return min(4, usable_cores())


def image_rng(seed: int, number: int, place: int) -> np.random.Generator:
    """The random numbers of the image at ``place`` in batch ``number``."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, place, number, 0]))


class TrainingLoader:
    """Endless batches for a sampler, with ``sampler_state`` always that of the last batch handed out.

    Batches of :class:`~nearkin.data.device_images.DeviceImages` are on their device, others on the host.
    """

    def __init__(
        self,
        images: Images | DeviceImages,
        labels: NDArray[np.int64],
        transform: Transform,
        sampler: BatchSampler,
        *,
        seed: int,
        first_batch: int = 0,
        workers: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.images = images
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.transform = transform
        self.sampler = sampler
        self.seed = seed
        self.pin_memory = pin_memory
        self.sampler_state: dict[str, Any] = sampler.state_dict()
        self._next_number = first_batch
        self._workers = default_workers() if workers is None else workers
        # Drawing boxes is Python's own work, of which more threads do not do more.
        threads = 1 if isinstance(images, DeviceImages) else max(1, self._workers)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="nearkin-loader")

    def __enter__(self) -> TrainingLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Batch]:
        waiting: deque[tuple[Callable[[], Batch], dict[str, Any]]] = deque()
        while True:
            while len(waiting) <= self.sampler.lookahead:
                rows = self.sampler.next_batch()
                number, self._next_number = self._next_number, self._next_number + 1
                waiting.append((self._begin(number, rows), self.sampler.state_dict()))
            finish, state = waiting.popleft()
            batch = finish()
            self.sampler_state = state
            yield batch

    def _begin(self, number: int, rows: NDArray[np.int64]) -> Callable[[], Batch]:
        """Have a batch prepared; the result waits until it is there."""
        if isinstance(self.images, DeviceImages):
            return self._on_device(self.images, number, rows)
        images, size = self.images, self.transform.size
        pixels = torch.empty(len(rows), size, size, 3, dtype=torch.uint8, pin_memory=self.pin_memory)
        target = pixels.numpy()

        def prepare(places: range) -> None:
            for place in places:
                rng = image_rng(self.seed, number, place)
                target[place] = self.transform.train(images[int(rows[place])], rng)

        pending = [self._pool.submit(prepare, part) for part in _parts(len(rows), self._workers)]

        def finish() -> Batch:
            for future in pending:
                future.result()
            return Batch(number, rows, pixels, torch.from_numpy(self.labels[rows]))

        return finish

    def _on_device(self, images: DeviceImages, number: int, rows: NDArray[np.int64]) -> Callable[[], Batch]:
        def draw() -> tuple[list[Box], list[bool]]:
            drawn = [
                self.transform.draw(height, width, image_rng(self.seed, number, place))
                for place, (height, width) in enumerate(images.shapes[rows].tolist())
            ]
            return [box for box, _ in drawn], [mirrored for _, mirrored in drawn]

        drawn = self._pool.submit(draw)

        def finish() -> Batch:
            crops = images.crops(rows, *drawn.result(), self.transform.size)
            return Batch(number, rows, crops, to_device(torch.from_numpy(self.labels[rows]), images.device))

        return finish


def evaluation_batches(
    images: Images,
    transform: Transform,
    *,
    batch_size: int,
    workers: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[Tensor]:
    """The images of ``rows`` (default: all) in order, as evaluation crops ``[B, H, W, 3]`` (uint8)."""
    order = np.arange(len(images), dtype=np.int64) if rows is None else rows
    threads = max(1, default_workers() if workers is None else workers)

    def prepare(part: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.stack([transform.evaluate(images[int(row)]) for row in part])

    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = [[batch[part.start : part.stop] for part in _parts(len(batch), threads)] for batch in batches]
    prepared = in_order(prepare, chain.from_iterable(parts), threads)
    for batch in parts:
        yield torch.from_numpy(np.concatenate(list(islice(prepared, len(batch)))))


def _parts(count: int, workers: int) -> list[range]:
    """Cut ``range(count)`` into about two parts per worker, small enough to balance, large enough to be worth it."""
    step = max(1, -(-count // max(1, 2 * workers)))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
