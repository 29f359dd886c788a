"""From rows to batches of pixels, prepared while the last batch is being learned from.

Pillow resamples outside the interpreter lock, so on a CPU threads suffice: nothing is pickled, the decoded images are
shared, and Ctrl-C works. A GPU that is fed by threads waits for the interpreter, so there processes make the crops, or
the device itself where the images are on it. The random numbers of an image depend on (seed, batch, place in the batch)
alone: neither who makes the crops, nor the number of workers, nor an interruption changes what a batch shows, nor that
several ranks make a share of it each.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import IO, Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images, SelectedImages
from nearkin.data.crop_worker import Job, Setup
from nearkin.data.device_images import DeviceImages, erased, to_device
from nearkin.data.packs import PackedImages
from nearkin.data.threads import threaded_map, usable_cores
from nearkin.data.transforms import Box, Hole, ImageRandom, Transform
from nearkin.errors import DataError
from nearkin.ranks import on_this_machine, share_of


class Sampler(Protocol):
    """What the loader asks of a sampler; ``lookahead`` is how many batches may be drawn before they are used."""

    lookahead: int

    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]: ...


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
        sampler: Sampler,
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
    prepared = threaded_map(prepare, chain.from_iterable(parts), threads)
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
    crops = threaded_map(lambda place: transform.train(images[int(rows[place])], rng(place)), places, threads)
    while batch := list(islice(crops, batch_size)):
        yield torch.from_numpy(np.stack(batch))


def _parts(count: int, threads: int) -> list[range]:
    """Cut ``range(count)`` into about two parts per thread, small enough to balance, large enough to be worth it."""
    step = max(1, -(-count // (2 * threads)))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


class CropCache:
    """The evaluation crops of whatever was asked for, as uint8 on ``device``, up to ``budget`` bytes of them.

    What does not fit is made anew each time.
    """

    def __init__(
        self, images: Images, transform: Transform, device: torch.device, *, budget: int, workers: int | None = None
    ) -> None:
        self.images = images
        self.transform = transform
        self.device = device
        self.budget = budget
        self.workers = workers
        self._kept: dict[bytes, Tensor] = {}

    def batches(self, rows: NDArray[np.int64], *, batch_size: int) -> Iterator[Tensor]:
        """Crops of ``rows`` in order, ``[B, H, W, 3]``; those of the first time wherever these rows come again."""
        key = blake2b(rows.tobytes()).digest()
        if key in self._kept:
            yield from torch.split(self._kept[key], batch_size)
            return
        made = evaluation_batches(self.images, self.transform, batch_size=batch_size, workers=self.workers, rows=rows)
        shape = (len(rows), self.transform.size, self.transform.size, 3)
        if (needed := int(np.prod(shape))) > self.budget:
            yield from made
            return
        with torch.inference_mode(False):
            kept = torch.empty(shape, dtype=torch.uint8, device=self.device)
        done = 0
        for crops in made:
            part = kept[done : done + len(crops)]
            part.copy_(crops)
            done += len(crops)
            yield part
        self._kept[key] = kept
        self.budget -= needed


_FOR_ALL_DEVICES = 1


def are_shareable(images: Images) -> bool:
    """Whether processes can read the images without a copy each, and be given a file of shared memory."""
    while isinstance(images, SelectedImages):
        images = images.images
    return isinstance(images, PackedImages) and os.name == "posix"


def default_processes() -> int:
    """All cores but the one that drives the GPU; of a share of them, where torchrun has started several loops here."""
    return max(1, usable_cores() // on_this_machine() - 1)


class CropProcesses:
    """``ahead`` batches at a time, each in a slot of shared memory until it is on ``device``."""

    def __init__(
        self,
        images: Images,
        transform: Transform,
        seed: int,
        device: torch.device,
        *,
        workers: int | None = None,
        ahead: int = 5,
    ) -> None:
        self.device = device
        self._setup = (images, transform, seed)
        self._count = max(1, default_processes() if workers is None else workers)
        # One more than wait, as the one before is perhaps still being copied.
        self._slots = ahead + 1
        self._copied: list[torch.cuda.Event | None] = [None] * self._slots
        self._fetched: deque[Future[tuple[Tensor, torch.cuda.Event | None]]] = deque(maxlen=self._slots)
        self._begun = 0
        self._workers: list[_Worker] = []
        self._memory: Tensor | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def begin(self, number: int, rows: NDArray[np.int64], places: range, waiter: Executor) -> Callable[[], Tensor]:
        """Have the images at ``places`` of a batch cropped; the result waits until they are on the device."""
        memory = self._shared(len(places))
        slot, self._begun = self._begun % self._slots, self._begun + 1
        if (copied := self._copied[slot]) is not None:
            copied.synchronize()
        asked = []
        for worker, part in zip(self._workers, np.array_split(np.arange(len(places)), self._count), strict=True):
            if len(part):
                begin = int(part[0])
                own = rows[[places[index] for index in part]].tolist()
                worker.ask(Job(number, places[begin], own, slot, begin))
                asked.append(worker)

        def fetch() -> tuple[Tensor, torch.cuda.Event | None]:
            for worker in asked:
                worker.wait()
            pixels = memory[slot, : len(places)]
            if self._stream is None:
                return pixels.clone(), None
            with torch.cuda.stream(self._stream):
                there = pixels.to(self.device, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
            self._copied[slot] = event
            return there, event

        fetched = waiter.submit(fetch)
        self._fetched.append(fetched)

        def finish() -> Tensor:
            crops, copied = fetched.result()
            if copied is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(copied)
                crops.record_stream(here)
            return crops

        return finish

    def _shared(self, batch: int) -> Tensor:
        """The memory of all slots; the first batch says how large they are, and a larger one makes new ones."""
        if self._memory is None or batch > self._memory.shape[1]:
            wait(self._fetched)
            self.close()
            images, transform, seed = self._setup
            shape = (self._slots, batch, transform.size, transform.size, 3)
            with _memory_file() as file:
                file.truncate(int(np.prod(shape)))
                memory = np.ndarray(shape, dtype=np.uint8, buffer=mmap.mmap(file.fileno(), 0))
                self._memory = torch.from_numpy(memory)
                # Twice, so that what cannot be read there does not spoil what comes after it.
                setup = pickle.dumps(pickle.dumps(Setup(images, transform, seed, file.fileno(), shape)))
                self._workers = [_Worker(setup, file.fileno()) for _ in range(self._count)]
            if self._stream is not None:
                # Copies from pages that the system may not move are the only ones that nobody waits for.
                _cuda().cudaHostRegister(self._memory.data_ptr(), self._memory.nbytes, _FOR_ALL_DEVICES)
        return self._memory

    def close(self) -> None:
        """End the processes; what they were at is lost."""
        for worker in self._workers:
            worker.end()
        self._workers = []
        if self._memory is not None and self._stream is not None:
            self._stream.synchronize()
            _cuda().cudaHostUnregister(self._memory.data_ptr())
        self._memory, self._copied, self._begun = None, [None] * self._slots, 0


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
        self._send(setup)

    def ask(self, job: Job) -> None:
        self._send(pickle.dumps(job))

    def wait(self) -> None:
        """Wait for the answer to the oldest job that has none yet."""
        try:
            answer: Exception | None = pickle.load(_open(self._process.stdout))
        except EOFError:
            self._gone()
        if answer is not None:
            raise answer

    def end(self) -> None:
        self._process.kill()  # it has nothing to lose, and perhaps jobs to do
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                _open(stream).close()

    def _send(self, content: bytes) -> None:
        stream = _open(self._process.stdin)
        try:
            stream.write(content)
            stream.flush()
        except BrokenPipeError:
            self._gone()

    def _gone(self) -> NoReturn:
        code = self._process.wait()
        raise DataError(
            f"a process that prepares batches ended by itself (exit code {code}; -9 is usually a lack of memory): "
            f"lower data.workers and go on with --resume"
        )


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # as they were asked for
    return stream


def _memory_file() -> IO[bytes]:
    """A file that lies in memory where the system has such; /dev/shm is often too small in containers."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("nearkin-crops"), "w+b")
    return tempfile.TemporaryFile()


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
