"""From rows to batches of pixels, prepared while the last batch is being learned from.

Pillow resamples outside the interpreter lock, so on a CPU threads suffice: nothing is pickled, the decoded images are
shared, and Ctrl-C works. A GPU that is fed by threads waits for the interpreter, so there processes make the crops, or
the device itself where the images are on it. The random numbers of an image depend on (seed, batch, place in the batch)
alone: neither who makes the crops, nor the number of workers, nor an interruption changes what a batch shows, nor that
several ranks make a share of it each.
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

from nearkin.data.cache import Images
from nearkin.data.crop_processes import CropProcesses, are_shareable
from nearkin.data.device_images import DeviceImages, erased
from nearkin.data.resampling import to_device
from nearkin.data.threads import in_order, usable_cores
from nearkin.data.transforms import Box, Hole, ImageRandom, Transform
from nearkin.ranks import on_this_machine, share_of
from nearkin.samplers import BatchSampler


@dataclass(frozen=True)
class Batch:
    """``rows`` of the training table, their labels ``[B]`` and pixels ``[B, H, W, 3]`` (uint8).

    Of several processes each has the pixels of its own share of the rows (:func:`nearkin.ranks.share_of`).
    """

    number: int
    rows: NDArray[np.int64]
    images: Tensor
    labels: Tensor


def threads_for(workers: int | None) -> int:
    """As many as ``data.workers`` says, at least one. By default four, or fewer cores.

    Beyond that they wait for the interpreter (16 cores: 2,700 images/s with four threads, 2,000 with sixteen).
    Processes on one machine share its cores.
    """
    return max(1, min(4, usable_cores() // on_this_machine()) if workers is None else workers)


class TrainingLoader:
    """Endless batches for a sampler, with ``sampler_state`` always that of the last batch handed out.

    Batches of :class:`~nearkin.data.device_images.DeviceImages` are on their device, and those for a ``device`` too;
    others are on the host. For a ``device`` processes make the crops, if the images are such as processes can share.
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
        device: torch.device | None = None,
    ) -> None:
        self.images = images
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.transform = transform
        self.sampler = sampler
        self.seed = seed
        self.pin_memory = pin_memory
        self.sampler_state: dict[str, Any] = sampler.state_dict()
        self._next_number = first_batch
        self._threads = threads_for(workers)
        self._processes: CropProcesses | None = None
        if device is not None and not isinstance(images, DeviceImages) and are_shareable(images):
            ahead = sampler.lookahead + 1
            self._processes = CropProcesses(images, transform, seed, device, workers=workers, ahead=ahead)
        # Drawing boxes is Python's own work, of which more threads do not do more; so is waiting for processes.
        alone = isinstance(images, DeviceImages) or self._processes is not None
        self._pool = ThreadPoolExecutor(1 if alone else self._threads, thread_name_prefix="nearkin-loader")

    def __enter__(self) -> TrainingLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

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
        places = share_of(len(rows))
        labels = torch.from_numpy(self.labels[rows])
        if isinstance(self.images, DeviceImages):
            crops = self._cut(self.images, number, rows, places)
            labels = to_device(labels, self.images.device)
        elif self._processes is not None:
            crops = self._processes.begin(number, rows, places, self._pool)
        else:
            crops = self._cropped(self.images, number, rows, places)
        return lambda: Batch(number, rows, crops(), labels)

    def _cropped(self, images: Images, number: int, rows: NDArray[np.int64], places: range) -> Callable[[], Tensor]:
        """By threads, in the host's memory."""
        size = self.transform.size
        pixels = torch.empty(len(places), size, size, 3, dtype=torch.uint8, pin_memory=self.pin_memory)
        target = pixels.numpy()

        def prepare(part: range) -> None:
            random = ImageRandom(self.seed)
            for place in places[part.start : part.stop]:
                crop = self.transform.train(images[int(rows[place])], random.at(number, place))
                target[place - places.start] = crop

        pending = [self._pool.submit(prepare, part) for part in _parts(len(places), self._threads)]

        def finish() -> Tensor:
            for future in pending:
                future.result()
            return pixels

        return finish

    def _cut(self, images: DeviceImages, number: int, rows: NDArray[np.int64], places: range) -> Callable[[], Tensor]:
        """On the device that the images are on; what is random is drawn meanwhile."""
        own = rows[places.start : places.stop]

        def draw() -> tuple[list[Box], list[bool], list[Hole | None]]:
            random = ImageRandom(self.seed)
            boxes, flips, holes = [], [], []
            for place, (height, width) in zip(places, images.shapes[own].tolist(), strict=True):
                rng = random.at(number, place)
                box, mirrored = self.transform.draw(height, width, rng)
                boxes.append(box)
                flips.append(mirrored)
                holes.append(self.transform.draw_hole(rng))
            return boxes, flips, holes

        drawn = self._pool.submit(draw)

        def finish() -> Tensor:
            boxes, flips, holes = drawn.result()
            return erased(images.crops(own, boxes, flips, self.transform.size), holes, self.transform.fill)

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
    threads = threads_for(workers)

    def prepare(part: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.stack([transform.evaluate(images[int(row)]) for row in part])

    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = [[batch[part.start : part.stop] for part in _parts(len(batch), threads)] for batch in batches]
    prepared = in_order(prepare, chain.from_iterable(parts), threads)
    for batch in parts:
        yield torch.from_numpy(np.concatenate(list(islice(prepared, len(batch)))))


def training_batches(
    images: Images,
    transform: Transform,
    rows: NDArray[np.int64],
    places: range,
    rng: Callable[[int], np.random.Generator],
    *,
    batch_size: int,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """The images at some ``places`` of ``rows`` in order, as training crops ``[B, H, W, 3]`` (uint8).

    ``rng`` gives the random numbers of a place, so that they do not depend on who makes its crop.
    """
    threads = threads_for(workers)
    crops = in_order(lambda place: transform.train(images[int(rows[place])], rng(place)), places, threads)
    while batch := list(islice(crops, batch_size)):
        yield torch.from_numpy(np.stack(batch))


def _parts(count: int, threads: int) -> list[range]:
    """Cut ``range(count)`` into about two parts per thread, small enough to balance, large enough to be worth it."""
    step = max(1, -(-count // (2 * threads)))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
