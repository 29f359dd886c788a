"""Decoding of uploads in separate processes, as a crafted file may crash or hang a decoder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from nearkin.serving.decode_worker import ANSWER, JOB
from nearkin.serving.errors import RequestError

MEMORY = 2 << 30
"""Address space of a process; cropping an image of 64 million pixels needs about half of it."""
SECONDS = 10
"""For one image, until the process is killed."""
CPU_SECONDS = SECONDS
WORKER = ["-m", "nearkin.serving.decode_worker"]
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL", "TMPDIR")


class Decoder:
    """Processes that each decode one upload at a time; those that hang or die are replaced."""

    def __init__(self, processes: int, *, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._threads = ThreadPoolExecutor(processes, "nearkin-decode")
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._idle.put(None)
        self.decoded = self.refused = self.lost = 0
        """Images decoded, images refused, and processes that hung or died."""

    async def decode(
        self, content: bytes, *, shorter_side: int | None, crop: Sequence[float] | None = None
    ) -> NDArray[np.uint8]:
        """Pixels ``[H, W, 3]`` of an upright image, or of its part ``crop``, shrunk to ``shorter_side``."""
        head = JOB.pack(len(content), self._max_pixels, shorter_side or 0, crop is not None, *(crop or (0, 0, 0, 0)))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, head, content)

    def close(self) -> None:
        """Finish the uploads that have begun, and end the processes."""
        self._threads.shutdown()
        while not self._idle.empty():
            if (process := self._idle.get()) is not None:
                process.end()

    def _decode(self, head: bytes, content: bytes) -> NDArray[np.uint8]:
        process = self._idle.get()  # never waits: there are as many processes as threads
        try:
            if process is None or not process.is_alive():
                process = _Process()
            pixels = process.ask(head, content)
            self.decoded += 1
            return pixels
        except RequestError:
            if process is not None and process.is_alive():
                self.refused += 1
            else:
                self.lost += 1
            raise
        finally:
            self._idle.put(process)


class _Process:
    """A process of :mod:`nearkin.serving.decode_worker`."""

    def __init__(self) -> None:
        # It does not see the server's environment, which may hold the key.
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *WORKER, str(MEMORY), str(CPU_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, head: bytes, content: bytes) -> NDArray[np.uint8]:
        """The answer of the process; it is killed after ``SECONDS`` without one."""
        deadline = time.monotonic() + SECONDS
        timer = threading.Timer(SECONDS, self._process.kill)
        timer.start()
        try:
            self._jobs.writelines([head, content])
            self._jobs.flush()
            status, first, second = ANSWER.unpack(self._read(ANSWER.size))
            if status != 200:
                raise RequestError(status, self._read(first).decode())
            return np.frombuffer(self._read(first * second * 3), dtype=np.uint8).reshape(first, second, 3)
        except OSError as error:  # the process has ended
            self.end()
            reason = "decoding it took too long" if time.monotonic() >= deadline else "its decoder crashed"
            raise RequestError(422, f"the image cannot be read: {reason}") from error
        finally:
            timer.cancel()
            timer.join()
            if time.monotonic() >= deadline:  # it was killed, perhaps just after its answer
                self.end()

    def _read(self, size: int) -> bytes:
        content = self._answers.read(size)
        if len(content) < size:
            raise BrokenPipeError
        return content

    def end(self) -> None:
        for pipe in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.kill()
        self._process.wait()
