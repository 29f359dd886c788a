"""From rows to batches of pixels, prepared while the network learns from the previous batch.

On a CPU threads make the crops, as Pillow resamples outside the interpreter lock. Worker threads would compete with
the training loop for that lock and stall a GPU, so on CUDA separate processes (:mod:`nearkin.data.crop_worker`) make
them. Decoded images that are on the device are cropped there (:mod:`nearkin.data.device_images`).

The random numbers of an image depend only on (seed, batch, position in the batch). So a batch shows the same whatever
makes the crops, with any number of workers or ranks, and after an interruption.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images, PackedImages, SelectedImages, threaded_map, usable_cores
from nearkin.data.crop_worker import Job, Setup
from nearkin.data.device_images import DeviceImages, erased, to_device
from nearkin.data.transforms import Box, Hole, ImageRandom, Transform
from nearkin.errors import DataError
from nearkin.ranks import on_this_machine, share_of


class Sampler(Protocol):
    """What the loader asks of a sampler: see :class:`nearkin.samplers.BatchSampler`."""

    batch_size: int
    lookahead: int

    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Batch:
    """``rows`` of the training table, their labels ``[B]`` and pixels ``[B, H, W, 3]`` (uint8).

    Each of several ranks has the pixels of its share of the rows (:func:`nearkin.ranks.share_of`).
    """

    number: int
    rows: NDArray[np.int64]
    images: Tensor
    labels: Tensor


def threads_for(workers: int | None) -> int:
    """``data.workers``, by default a rank's cores but at most four, as more wait for the interpreter."""
    return max(1, min(4, usable_cores() // on_this_machine()) if workers is None else workers)


def processes_for(workers: int | None) -> int:
    """``data.workers``, by default a rank's cores except the one that drives its GPU."""
    return max(1, usable_cores() // on_this_machine() - 1 if workers is None else workers)


class TrainingLoader:
    """Endless batches for a sampler, with ``sampler_state`` always that of the last batch handed out.

    With ``device``, processes make the crops if they can share the images (:func:`are_shareable`).
    """

    def __init__(
        self,
        images: Images | DeviceImages,
        labels: NDArray[np.int64],
        transform: Transform,
        sampler: Sampler,
        *,
        seed: int,
        first_batch: int = 0,
        workers: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.images = images
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.transform = transform
        self.sampler = sampler
        self.seed = seed
        self.device = device
        self.sampler_state: dict[str, Any] = sampler.state_dict()
        self._next_number = first_batch
        self._threads = threads_for(workers)
        self._processes: CropProcesses | None = None
        if device is not None and not isinstance(images, DeviceImages) and are_shareable(images):
            batch_size, ahead = len(share_of(sampler.batch_size)), sampler.lookahead + 1
            self._processes = CropProcesses(
                images, transform, seed, device, batch_size=batch_size, ahead=ahead, workers=workers
            )
        # Drawing boxes and waiting for processes need no more than one.
        one_thread = isinstance(images, DeviceImages) or self._processes is not None
        self._pool = ThreadPoolExecutor(1 if one_thread else self._threads, thread_name_prefix="nearkin-loader")

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
        """Start to prepare a batch; calling the result waits until it is ready."""
        positions = share_of(len(rows))
        labels = torch.from_numpy(self.labels[rows])
        if isinstance(self.images, DeviceImages):
            crops = self._cut(self.images, number, rows, positions)
            labels = to_device(labels, self.images.device)
        elif self._processes is not None:
            crops = self._processes.begin(number, rows, positions, self._pool)
        else:
            crops = self._cropped(self.images, number, rows, positions)
        return lambda: Batch(number, rows, crops(), labels)

    def _cropped(self, images: Images, number: int, rows: NDArray[np.int64], positions: range) -> Callable[[], Tensor]:
        """Crops made by threads, in the host's memory."""
        size = self.transform.size
        is_cuda = self.device is not None and self.device.type == "cuda"
        pixels = torch.empty(len(positions), size, size, 3, dtype=torch.uint8, pin_memory=is_cuda)
        target = pixels.numpy()

        def prepare(part: range) -> None:
            random = ImageRandom(self.seed)
            for position in positions[part.start : part.stop]:
                crop = self.transform.train(images[int(rows[position])], random.at(number, position))
                target[position - positions.start] = crop

        pending = [self._pool.submit(prepare, part) for part in _parts(len(positions), self._threads)]

        def finish() -> Tensor:
            for future in pending:
                future.result()
            return pixels

        return finish

    def _cut(
        self, images: DeviceImages, number: int, rows: NDArray[np.int64], positions: range
    ) -> Callable[[], Tensor]:
        """Crops made on the device that holds the images; a thread draws the random boxes."""
        local = rows[positions.start : positions.stop]

        def draw() -> list[tuple[Box, bool, Hole | None]]:
            random = ImageRandom(self.seed)
            return [
                self.transform.draw(height, width, random.at(number, position))
                for position, (height, width) in zip(positions, images.shapes[local].tolist(), strict=True)
            ]

        drawn = self._pool.submit(draw)

        def finish() -> Tensor:
            boxes, flips, holes = zip(*drawn.result(), strict=True) if len(local) else ((), (), ())
            return erased(images.crops(local, boxes, flips, self.transform.size), holes, self.transform.fill)

        return finish


def evaluation_batches(
    images: Images,
    transform: Transform,
    *,
    batch_size: int,
    workers: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[Tensor]:
    """Evaluation crops of ``rows`` (default: all) in order, ``[B, H, W, 3]`` (uint8)."""
    order = range(len(images)) if rows is None else rows.tolist()
    return crop_batches(lambda row: transform.evaluate(images[row]), order, batch_size, workers)


def crop_batches(
    crop: Callable[[int], NDArray[np.uint8]], items: Sequence[int], batch_size: int, workers: int | None = None
) -> Iterator[Tensor]:
    """The crops of ``items`` in order, made by threads, ``[B, H, W, 3]`` (uint8)."""
    threads = threads_for(workers)
    batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    parts = [[batch[part.start : part.stop] for part in _parts(len(batch), threads)] for batch in batches]
    crops = threaded_map(lambda part: np.stack([crop(item) for item in part]), chain.from_iterable(parts), threads)
    for batch_parts in parts:
        yield torch.from_numpy(np.concatenate(list(islice(crops, len(batch_parts)))))


def _parts(count: int, threads: int) -> list[range]:
    """``range(count)`` in about two parts per thread, which balances their load at little cost."""
    step = max(1, -(-count // (2 * threads)))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


@dataclass
class CropCache:
    """Evaluation crops, kept as uint8 on ``device`` up to ``budget`` bytes; the rest are made again each time."""

    images: Images
    transform: Transform
    device: torch.device
    budget: int
    workers: int | None = None
    _stored: dict[bytes, Tensor] = field(default_factory=dict)

    def batches(self, rows: NDArray[np.int64], *, batch_size: int) -> Iterator[Tensor]:
        """Crops of ``rows`` in order, ``[B, H, W, 3]``, stored under the whole array of rows."""
        key = rows.tobytes()
        if key in self._stored:
            yield from torch.split(self._stored[key], batch_size)
            return
        made = evaluation_batches(self.images, self.transform, batch_size=batch_size, workers=self.workers, rows=rows)
        shape = (len(rows), self.transform.size, self.transform.size, 3)
        if (needed := int(np.prod(shape))) > self.budget:
            yield from made
            return
        with torch.inference_mode(False):
            stored = torch.empty(shape, dtype=torch.uint8, device=self.device)
        done = 0
        for crops in made:
            part = stored[done : done + len(crops)]
            part.copy_(crops)
            done += len(crops)
            yield part
        self._stored[key] = stored
        self.budget -= needed


_FOR_ALL_DEVICES = 1


def are_shareable(images: Images) -> bool:
    """Whether processes can read the images without copying them, and share memory, as on Linux."""
    while isinstance(images, SelectedImages):
        images = images.images
    return isinstance(images, PackedImages) and hasattr(os, "memfd_create")


class CropProcesses:
    """Processes that make the crops of ``ahead`` batches at a time, each in a slot of shared memory.

    A slot is free again as soon as its crops are on ``device``.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        seed: int,
        device: torch.device,
        *,
        batch_size: int,
        ahead: int,
        workers: int | None,
    ) -> None:
        self.device = device
        # One slot more than batches are prepared, as the previous one may still be being copied.
        shape = (ahead + 1, batch_size, transform.size, transform.size, 3)
        self._copied: list[torch.cuda.Event | None] = [None] * shape[0]
        self._begun = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        # Not in /dev/shm, which is often too small in containers.
        with open(os.memfd_create("nearkin-crops"), "w+b") as file:
            file.truncate(int(np.prod(shape)))
            pixels = np.ndarray(shape, dtype=np.uint8, buffer=mmap.mmap(file.fileno(), 0))
            self._memory = torch.from_numpy(pixels)
            # Sent as bytes, so that a setup that the worker cannot unpickle leaves the stream readable.
            setup = pickle.dumps(Setup(images, transform, seed, file.fileno(), shape))
            self._workers = [_Worker(setup, file.fileno()) for _ in range(processes_for(workers))]
        if self._stream is not None:
            # Only copies from page-locked memory are asynchronous.
            cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cuda.cudaHostRegister(self._memory.data_ptr(), self._memory.nbytes, _FOR_ALL_DEVICES)

    def begin(self, number: int, rows: NDArray[np.int64], positions: range, waiter: Executor) -> Callable[[], Tensor]:
        """Start to crop the images at ``positions`` of a batch; the result waits until they are on the device."""
        slot, self._begun = self._begun % len(self._copied), self._begun + 1
        if (copied := self._copied[slot]) is not None:
            copied.synchronize()
        pixels = self._memory[slot, : len(positions)]
        local = rows[positions.start : positions.stop]
        busy, first = [], 0
        for worker, part in zip(self._workers, np.array_split(local, len(self._workers)), strict=True):
            if len(part):
                worker.send(Job(number, positions.start + first, part.tolist(), slot, first))
                busy.append(worker)
                first += len(part)

        def fetch() -> tuple[Tensor, torch.cuda.Event | None]:
            for worker in busy:
                worker.wait()
            if self._stream is None:
                return pixels.clone(), None
            with torch.cuda.stream(self._stream):
                crops = pixels.to(self.device, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
            self._copied[slot] = event
            return crops, event

        fetched = waiter.submit(fetch)

        def finish() -> Tensor:
            crops, copied = fetched.result()
            if copied is not None:
                stream = torch.cuda.current_stream(self.device)
                stream.wait_event(copied)
                crops.record_stream(stream)
            return crops

        return finish

    def close(self) -> None:
        """End the processes; their unfinished jobs are lost."""
        for worker in self._workers:
            worker.end()
        if self._stream is not None:
            self._stream.synchronize()
            cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cuda.cudaHostUnregister(self._memory.data_ptr())
        del self._memory


class _Worker:
    """A process of :mod:`nearkin.data.crop_worker`."""

    def __init__(self, setup: bytes, file: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from nearkin.data.crop_worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[file],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout
        self.send(setup)

    def send(self, message: bytes | Job) -> None:
        try:
            self._jobs.write(pickle.dumps(message))
            self._jobs.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def wait(self) -> None:
        """Wait for the answer to the oldest job that has none yet."""
        try:
            answer: Exception | None = pickle.load(self._answers)
        except EOFError as error:
            raise self._ended() from error
        if answer is not None:
            raise answer

    def end(self) -> None:
        with suppress(BrokenPipeError), self._process:
            self._process.kill()

    def _ended(self) -> DataError:
        code = self._process.wait()
        return DataError(
            f"a process that prepares batches ended (exit code {code}; -9 usually means out of memory): "
            "lower data.workers and continue with --resume"
        )
