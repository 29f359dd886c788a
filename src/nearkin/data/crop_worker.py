"""A process that makes training crops: jobs come in through standard input, pixels go out through shared memory.

:mod:`nearkin.data.loader` starts it. It imports little, so that it is there soon, and ends with its input.
"""

from __future__ import annotations

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
    """What is the same for all jobs; ``file`` is shared, and holds pixels of ``shape`` ``[slots, batch, H, W, 3]``."""

    images: Images
    transform: Transform
    seed: int
    file: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """Some images of batch ``number``: the one at ``first`` and those after it, of which ``rows`` are the rows.

    The pixels go into ``slot``, from position ``begin`` on.
    """

    number: int
    first: int
    rows: list[int]
    slot: int
    begin: int


def main() -> None:
    """Answer every job with None, or with the error that it ended in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loop handles it, and closes the input
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is not an answer
    failed: Exception | None = None
    try:
        setup: Setup = pickle.loads(pickle.load(jobs))
        pixels = np.ndarray(setup.shape, dtype=np.uint8, buffer=mmap.mmap(setup.file, 0))
    except EOFError:
        return
    except Exception as error:  # such as packs that are gone
        failed = error
    while True:
        try:
            job: Job = pickle.load(jobs)
        except EOFError:
            return
        answer = failed or _answer(setup, job, pixels)
        try:
            content = pickle.dumps(answer)
        except Exception:  # an error that cannot be pickled is sent as text
            content = pickle.dumps(RuntimeError(f"{type(answer).__name__}: {answer}"))
        try:
            answers.write(content)
            answers.flush()
        except BrokenPipeError:  # the loop is gone
            os._exit(0)


def _answer(setup: Setup, job: Job, pixels: NDArray[np.uint8]) -> Exception | None:
    try:
        random = ImageRandom(setup.seed)
        for index, row in enumerate(job.rows):
            rng = random.at(job.number, job.first + index)
            pixels[job.slot, job.begin + index] = setup.transform.train(setup.images[row], rng)
    except Exception as error:
        return error.with_traceback(None)
    return None
