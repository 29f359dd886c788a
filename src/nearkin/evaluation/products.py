"""Similarities of many pairs at once, as exact as they are said to be and as fast as the processor has it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Block = tuple[int, int]
"""Where a block of queries and a block of references begin."""
MOST_WORKERS = 16


@dataclass(frozen=True)
class Product:
    """Similarities of a block of queries to a block of references, as exact as they are fast."""

    queries: Tensor
    references: Tensor
    absolute: float
    relative: float

    @classmethod
    def single(cls, queries: Tensor, references: Tensor, error: float) -> Product:
        """In float32, of unit vectors; ``error`` is that of a float32 similarity."""
        return cls(queries, references, error, 0.0)

    @classmethod
    def half(cls, queries: Tensor, references: Tensor, error: float) -> Product:
        """In bfloat16, added in float32, the sum rounded to bfloat16; what the vectors lost is measured."""
        here = queries.bfloat16()
        there = here if references is queries else references.bfloat16()
        lost, lost_there = _lost(queries, here), _lost(references, there)
        return cls(here, there, lost + lost_there + lost * lost_there + 1.02 * error, 2.0**-8)

    def of(self, rows: slice, columns: slice) -> Tensor:
        return self.queries[rows] @ self.references[columns].T

    def error(self, values: Tensor) -> Tensor:
        """How far values may be from the true similarities."""
        return values.abs().double() * self.relative + self.absolute

    def rounded_down(self, thresholds: Tensor) -> Tensor:
        """Thresholds that this product's type can have, none above what it was."""
        return (thresholds - thresholds.abs() * (2.0 * self.relative + 2.0**-23)).to(self.queries.dtype).float()


def row_products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of rows ``[P]``; NumPy makes no product of all entries first."""
    return (x * y).sum(1) if x.is_cuda else torch.from_numpy(np.einsum("pd,pd->p", x.numpy(), y.numpy()))


@functools.cache
def half_pays() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32, and as exactly as it should."""
    x = torch.linspace(-1.0, 1.0, 256 * 512).sin_().view(256, 512).div_(16.0)
    half = x.bfloat16()
    exact = half.double() @ half.double().T
    if not torch.allclose((half @ half.T).double(), exact, rtol=2.0**-8, atol=1e-4):
        return False
    best = {half: math.inf, x: math.inf}
    for _ in range(20):
        for side in best:
            begin = time.perf_counter()
            side @ side.T
            best[side] = min(best[side], time.perf_counter() - begin)
    return best[half] < 0.75 * best[x]


def _lost(x: Tensor, rounded: Tensor) -> float:
    """The greatest length of what rounding took off a row, with a little for computing it."""
    pieces = zip(x.split(8192), rounded.split(8192), strict=True)  # type: ignore[no-untyped-call]
    return 1.001 * max(float(torch.linalg.vector_norm(half.float() - row, dim=1).max()) for row, half in pieces)


@contextmanager
def workers(device: torch.device) -> Iterator[Callable[[Callable[[Block], None], Sequence[Block]], None]]:
    """A function that does something for each of several blocks: on a CPU side by side, one thread each.

    That way the many small operations beside the products share the cores too.
    """
    threads = min(torch.get_num_threads(), MOST_WORKERS)
    if device.type == "cuda" or threads == 1:

        def one_by_one(work: Callable[[Block], None], blocks: Sequence[Block]) -> None:
            for block in blocks:
                work(block)

        yield one_by_one
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def side_by_side(work: Callable[[Block], None], blocks: Sequence[Block]) -> None:
        for _ in pool.map(work, blocks):
            pass

    try:
        yield side_by_side
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


@contextmanager
def true_float32() -> Iterator[None]:
    """Float32 products in float32, whatever has been allowed in its place."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
