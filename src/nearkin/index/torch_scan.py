"""The exact engine's scan by torch: products of 8 bits where the processor has them without rounding, else float32."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.evaluation.products import Block, workers
from nearkin.index.codes import ROUNDING, Codes, coded, float32_error
from nearkin.index.engine import Distance
from nearkin.numerics import true_float32

# Fewer rows than this share of a segment are gathered; more are masked out after all were multiplied.
_GATHERED = 0.25
QUERIES = 64
"""As many as are scanned for at a time."""
# Rows that a thread scans at a time: as few as so many queries need for their products to stay in its cache, and more
# for few queries, for which every block costs some twenty small operations.
_BLOCK, _LARGE_BLOCK = 8192, 32768


def precision() -> str:
    """In what the scan is made, for people."""
    return "int8" if int8_is_exact() else "float32"


def candidates(
    segments: Sequence[tuple[Codes, NDArray[np.float32]]],
    queries: NDArray[np.float64],
    k: int,
    allowed: NDArray[np.int64] | None,
    distance: Distance,
) -> list[NDArray[np.int64]]:
    """For each query ``[Q, dim]`` the rows that could be among its ``k`` nearest, ascending, and few others."""
    shown = [tuple(map(torch.from_numpy, (one.codes, one.figures, vectors))) for one, vectors in segments]
    asked, found = _Queries.of(queries), _Found(len(queries), k)
    size = min(_LARGE_BLOCK, max(_BLOCK, _BLOCK * QUERIES // len(queries)))
    sizes = [len(codes) for codes, _, _ in shown]
    firsts = np.cumsum([0, *sizes]).tolist()

    def scan(block: Block) -> None:
        segment, start = block
        codes, figures, vectors = (each[start : start + size] for each in shown[segment])
        rows, codes, figures, vectors, mask = _allowed_of(firsts[segment] + start, codes, figures, vectors, allowed)
        if not len(rows):
            return
        with torch.inference_mode():
            scanned, error = asked.scan(codes, figures, vectors)
            if distance == "euclidean":
                half = 0.5 * figures[:, 1] ** 2
                scanned, error = scanned - half, error + 4 * ROUNDING * half
            found.take(rows, scanned, error, mask)

    with true_float32(), workers(torch.device("cpu")) as each:
        each(scan, [(segment, start) for segment, n in enumerate(sizes) for start in range(0, n, size)])
    return found.rows()


@functools.cache
def int8_is_exact() -> bool:
    """Whether this processor multiplies 8-bit numbers without losing any: older ones cut off sums of pairs."""
    ends = torch.full((64, 256), 127, dtype=torch.int8)
    ends[::2] = -127
    try:
        found = torch._int_mm(ends, ends.T)
    except (AttributeError, RuntimeError):
        return False
    return bool((found.long() == ends.long() @ ends.long().T).all())


def _in_8_bits(codes: Tensor) -> bool:
    """Whether codes are scanned, or vectors: torch multiplies single columns wrongly."""
    return int8_is_exact() and codes.shape[1] > 1


def _allowed_of(
    first: int, codes: Tensor, figures: Tensor, vectors: Tensor, allowed: NDArray[np.int64] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Of rows ``first`` and following, numbers, codes, figures and vectors, and which are allowed if not all are."""
    rows = torch.arange(first, first + len(codes))
    if allowed is None:
        return rows, codes, figures, vectors, None
    low, high = np.searchsorted(allowed, [first, first + len(codes)])
    places = torch.from_numpy(allowed[low:high] - first)
    if len(places) < _GATHERED * len(codes):
        # Row by row, where an index in brackets would go number by number; vectors only where they are scanned.
        scanned = vectors if _in_8_bits(codes) else vectors.index_select(0, places)
        rows, codes, figures = (each.index_select(0, places) for each in (rows, codes, figures))
        return rows, codes, figures, scanned, None
    mask = torch.zeros(len(codes), dtype=torch.bool)
    mask[places] = True
    return rows, codes, figures, vectors, mask


class _Found:
    """What may be among the ``k`` nearest of each query, of all blocks so far; blocks may come from several threads."""

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        # Lower bounds of the best so far: what is certain to lie below the k-th of them is not among the k nearest.
        self._best = torch.empty(queries, 0)
        self._floor = torch.full((queries, 1), -torch.inf)
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self._lock = threading.Lock()

    def take(self, rows: Tensor, scanned: Tensor, error: Tensor, mask: Tensor | None) -> None:
        lower = scanned - error
        if mask is not None:
            lower.masked_fill_(~mask, -torch.inf)
        top = lower.topk(min(self._k, lower.shape[1])).values
        with self._lock:
            self._best = torch.cat([self._best, top], dim=1)
            if self._best.shape[1] >= self._k:
                self._best = self._best.topk(self._k).values
                self._floor = self._best[:, -1:]
            floor = self._floor
        upper = scanned.add_(error)
        able = upper >= floor if mask is None else (upper >= floor) & mask
        which, places = able.nonzero(as_tuple=True)
        with self._lock:
            self._kept.append((which, rows[places], upper[which, places]))

    def rows(self) -> list[NDArray[np.int64]]:
        """Of each query, in ascending order."""
        if not self._kept:
            return [np.empty(0, dtype=np.int64) for _ in self._floor]
        which, rows, upper = (torch.cat(each).numpy() for each in zip(*self._kept, strict=True))
        still = upper >= self._floor.numpy()[which, 0]
        which, rows = which[still], rows[still]
        order = np.lexsort((rows, which))
        ends = np.searchsorted(which[order], np.arange(1, len(self._floor)))
        return np.split(rows[order], ends)


@dataclass(frozen=True)
class _Queries:
    """Queries ``[Q, dim]`` as they are scanned with, and what that loses."""

    codes: Tensor
    scale: Tensor
    length: Tensor
    lost: Tensor
    exact: Tensor

    @classmethod
    def of(cls, queries: NDArray[np.float64]) -> _Queries:
        some = coded(queries)
        scale, length, lost = (column[:, None] for column in torch.from_numpy(some.figures).unbind(1))
        # With what rounding may make of the few float32 operations behind the product.
        lost = lost + 2 * ROUNDING * length
        return cls(torch.from_numpy(some.codes), scale, length, lost, torch.from_numpy(queries).float())

    def scan(self, codes: Tensor, figures: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Products ``[Q, N]``, and how far each may be from the true one."""
        scale, length, lost = figures.unbind(1)
        if _in_8_bits(codes):
            products = torch._int_mm(self.codes, codes.T).float().mul_(self.scale).mul_(scale)
            return products, torch.addmm(self.lost * length, self.length + self.lost, lost[None])
        return self.exact @ vectors.T, float32_error(vectors.shape[1]) * self.length * length
