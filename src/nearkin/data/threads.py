"""Work on images in threads: how many, and one result after another."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_MOST_WORKERS = 16

T = TypeVar("T")
R = TypeVar("R")


def threaded_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map`` over a pool of threads that runs only a few items ahead, so that few results wait in memory.

    >>> list(threaded_map(abs, [-1, 2, -3], workers=2))
    [1, 2, 3]
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="nearkin-images") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 4 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def usable_cores() -> int:
    """The cores this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)
