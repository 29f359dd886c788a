"""Training crops by processes of their own, which do not wait for the interpreter that drives the GPU.

They map the same packs and write into memory that is shared with the loop. From there a batch is copied to the device
beside what the device computes.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from typing import IO, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images, SelectedImages
from nearkin.data.crop_worker import Job, Setup
from nearkin.data.packs import PackedImages
from nearkin.data.threads import usable_cores
from nearkin.data.transforms import Transform
from nearkin.errors import DataError
from nearkin.ranks import on_this_machine

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
