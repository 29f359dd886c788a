"""A process that makes training crops: jobs come in through standard input, pixels go out through shared memory.

It imports little, so that it starts quickly, and ends when its input ends.
"""

from __future__ import annotations

import functools
import mmap
import os
import pickle
import signal
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.data.transforms import ImageRandom, Transform


@dataclass(frozen=True)
class Setup:
    """What all jobs share; ``file`` is the shared memory for pixels of ``shape`` ``[slots, batch, H, W, 3]``."""

    images: Images
    transform: Transform
    seed: int
    file: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """``rows`` of batch ``number`` from position ``first`` on; their pixels go into ``slot``, from ``begin`` on."""

    number: int
    first: int
    rows: list[int]
    slot: int
    begin: int


def main() -> None:
    """Answer every job with None, or with the error that it raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training loop handles it, and closes the input
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # so that what a library prints is not taken for an answer
    try:
        setup: bytes = pickle.load(jobs)
        while True:
            job: Job = pickle.load(jobs)
            answers.write(_answer(setup, job))
            answers.flush()
    except EOFError:
        return
    except BrokenPipeError:  # the loop is gone
        os._exit(0)


def _answer(setup: bytes, job: Job) -> bytes:
    try:
        shared, pixels = _opened(setup)
        random = ImageRandom(shared.seed)
        for index, row in enumerate(job.rows):
            rng = random.at(job.number, job.first + index)
            pixels[job.slot, job.begin + index] = shared.transform.train(shared.images[row], rng)
    except Exception as error:
        try:
            return pickle.dumps(error.with_traceback(None))
        except Exception:  # an error that cannot be pickled is sent as text
            return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickle.dumps(None)


@functools.cache
def _opened(content: bytes) -> tuple[Setup, NDArray[np.uint8]]:
    """The setup, and the pixels in shared memory."""
    setup: Setup = pickle.loads(content)
    return setup, np.ndarray(setup.shape, dtype=np.uint8, buffer=mmap.mmap(setup.file, 0))
