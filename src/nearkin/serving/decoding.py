"""Uploads are decoded in separate processes, which can be killed: a crafted file may crash or hang a decoder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from nearkin.serving.decode_worker import ANSWER, JOB
from nearkin.serving.errors import RequestError

MEMORY = 2 << 30
"""Address space of a process; cropping an image of 64 million pixels needs about half of it."""
SECONDS = 10
WORKER = ["-m", "nearkin.serving.decode_worker"]
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL", "TMPDIR")


class Decoder:
    """Processes that decode one upload at a time; a process that hangs or dies is replaced."""

    def __init__(self, processes: int, *, max_pixels: int, memory: int = MEMORY, seconds: int = SECONDS) -> None:
        self._max_pixels, self._memory, self._seconds = max_pixels, memory, seconds
        self._threads = ThreadPoolExecutor(processes, "nearkin-decode")
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._idle.put(None)
        self.decoded = self.refused = self.lost = 0
        """Images decoded, images refused, and processes that hung or died."""

    async def decode(
        self, content: bytes, *, shorter_side: int | None, crop: Sequence[float] | None = None
    ) -> NDArray[np.uint8]:
        """Pixels ``[H, W, 3]`` of an upright image or its part ``crop``, shrunk to ``shorter_side``."""
        head = JOB.pack(len(content), self._max_pixels, shorter_side or 0, crop is not None, *(crop or (0, 0, 0, 0)))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, head, content)

    def close(self) -> None:
        """Finish the uploads that were begun, and end the processes."""
        self._threads.shutdown()
        while not self._idle.empty():
            if (process := self._idle.get()) is not None:
                process.end()

    def _decode(self, head: bytes, content: bytes) -> NDArray[np.uint8]:
        # There are as many threads as processes in the queue, so this never waits.
        process = self._idle.get()
        try:
            if process is None or not process.is_alive():
                process = _Process(self._memory)
            pixels = process.ask(head, content, self._seconds)
            self.decoded += 1
            return pixels
        except RequestError:
            self.refused += 1
            raise
        except _LostError as error:
            self.lost += 1
            raise RequestError(422, f"the image cannot be read: {error}") from error
        finally:
            self._idle.put(process if process is not None and process.is_alive() else None)


class _LostError(Exception):
    """The reason why a process did not answer."""


class _Process:
    """A process of :mod:`nearkin.serving.decode_worker`."""

    CPU_SECONDS = SECONDS

    def __init__(self, memory: int) -> None:
        # It does not see the server's environment, such as its key.
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *WORKER, str(memory), str(self.CPU_SECONDS)],
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

    def ask(self, head: bytes, content: bytes, seconds: float) -> NDArray[np.uint8]:
        """The answer of the process; it is killed if there is none within ``seconds``."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            return self._exchange(head, content)
        except OSError as error:  # the process has ended
            self.end()
            raise _LostError("decoding it took too long" if late.is_set() else "its decoder crashed") from error
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():
                self.end()

    def _exchange(self, head: bytes, content: bytes) -> NDArray[np.uint8]:
        self._jobs.write(head)
        self._jobs.write(content)
        self._jobs.flush()
        status, first, second = ANSWER.unpack(self._read(ANSWER.size))
        if status != 200:
            raise RequestError(status, self._read(first).decode())
        return np.frombuffer(self._read(first * second * 3), dtype=np.uint8).reshape(first, second, 3)

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
