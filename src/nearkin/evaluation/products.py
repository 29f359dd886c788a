"""Similarities of many pairs at once, as exact as they are said to be and as fast as the processor has it."""

from __future__ import annotations

import functools
import math
import time
import warnings
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

    @classmethod
    def fastest(cls, queries: Tensor, references: Tensor) -> Product:
        """Of unit vectors in any precision."""
        here = queries.float()
        there = here if references is queries else references.float()
        half = not queries.is_cuda and half_pays()
        return (cls.half if half else cls.single)(here, there, single_error(queries.shape[1]))

    def of(self, rows: slice, columns: slice | Tensor) -> Tensor:
        return self.queries[rows] @ self.references[columns].T

    def error(self, values: Tensor) -> Tensor:
        """How far values may be from the true similarities."""
        return values.abs().double() * self.relative + self.absolute

    def rounded_down(self, thresholds: Tensor) -> Tensor:
        """Thresholds that this product's type can have, none above what it was."""
        return (thresholds - thresholds.abs() * (2.0 * self.relative + 2.0**-23)).to(self.queries.dtype).float()


def single_error(dim: int) -> float:
    """How far a product of unit vectors in float32 may be from the true one.

    Rounded to float32, multiplied, added in any order (Higham, Accuracy and Stability, 3.1); and a little for what
    vanishes below float32's range.
    """
    steps = (dim + 3) * 2.0**-24
    return steps / (1.0 - steps) + 1e-8


def pair_products(x: Tensor, rows: Tensor, y: Tensor, columns: Tensor) -> Tensor:
    """Inner products of pairs of rows ``rows [P]`` of ``x`` and ``columns [P]`` of ``y``, in their own precision.

    >>> pair_products(torch.eye(3), torch.tensor([2, 0]), torch.ones(2, 3), torch.tensor([1, 1]))
    tensor([1., 1.])
    """
    if x.is_cuda:
        pairs = zip(rows.split(1 << 16), columns.split(1 << 16), strict=True)  # type: ignore[no-untyped-call]
        return torch.cat([(x[some] * y[others]).sum(1) for some, others in pairs])
    # As a sparse matrix, for which no row is copied: four times as fast.
    _quiet_about_sparse()
    first, last = (int(each) for each in rows.aminmax())
    order = torch.from_numpy(np.argsort(rows.numpy(), kind="stable"))
    counts = torch.bincount(rows - first, minlength=last + 1 - first)
    pattern = torch.sparse_csr_tensor(
        torch.nn.functional.pad(counts.cumsum(0), (1, 0)),
        columns[order],
        torch.zeros(len(rows), dtype=x.dtype),
        size=(last + 1 - first, len(y)),
        check_invariants=False,
    )
    found = torch.sparse.sampled_addmm(pattern, x[first : last + 1], y.T, beta=0.0).values()
    return torch.empty_like(found).index_copy_(0, order, found)


@functools.cache
def _quiet_about_sparse() -> None:
    """PyTorch says once that sparse matrices are new to it; no user has asked for one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), size=(1, 1))


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
    pieces = zip(x.split(2048), rounded.split(2048), strict=True)  # type: ignore[no-untyped-call]
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
    before, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def side_by_side(work: Callable[[Block], None], blocks: Sequence[Block]) -> None:
        def in_the_callers_mode(block: Block) -> None:
            with torch.inference_mode(inference):  # a thread begins without, and may not change what was made in it
                work(block)

        for _ in pool.map(in_the_callers_mode, blocks):
            pass

    try:
        yield side_by_side
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
