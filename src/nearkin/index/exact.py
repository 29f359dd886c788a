"""The exact engine: a scan of all vectors in 8 bits, with a bound on its error that lets no true neighbour go.

A vector x is stored as whole numbers c of −127 … 127 and a scale s, and what that loses, ‖x − s·c‖, beside it. A
product of two such vectors is a whole number that is computed without rounding, so by Cauchy and Schwarz the true
one is within ‖q − q̂‖·‖x‖ + ‖q̂‖·‖x − x̂‖ of the scanned one. Whatever could be among the k nearest by that is proposed.
"""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.evaluation.products import Block, workers
from nearkin.index.segments import Segments
from nearkin.numerics import true_float32

QUERIES_AT_A_TIME = 64
_LEVELS = 127
# Of these a few float32 operations make an error of at most this share.
_ROUNDING = 2.0**-20
# Fewer rows than this share of a segment are gathered; more are masked out after all were multiplied.
_GATHERED = 0.25
# Rows that a thread scans at a time: as few as many queries need for their products to stay in its cache, and more
# for few queries, for which every block costs some twenty small operations.
_BLOCK, _LARGE_BLOCK = 8192, 32768


@dataclass(frozen=True)
class _Codes:
    """Vectors ``[N, dim]`` in 8 bits, and the figures of each that bound the error."""

    codes: NDArray[np.int8]
    figures: NDArray[np.float32]
    """``[N, 3]``: scale, length, and the length of what rounding took off, the last two rounded up."""


def coded(vectors: NDArray[np.float32] | NDArray[np.float64]) -> _Codes:
    """Vectors in 8 bits.

    >>> some = coded(np.array([[1.0, -0.5], [0.0, 0.0]]))
    >>> some.codes.tolist(), some.figures[1].tolist()
    ([[127, -64], [0, 0]], [1.0, 0.0, 0.0])
    """
    x = np.asarray(vectors, dtype=np.float64)
    largest = np.abs(x).max(axis=1, initial=0.0)
    scale = (np.where(largest > 0, largest, _LEVELS) / _LEVELS).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1.0))  # numbers too small for float32 become zeros
    codes = np.clip(np.rint(x / scale[:, None].astype(np.float64)), -_LEVELS, _LEVELS)
    lost = np.linalg.norm(x - codes * scale[:, None].astype(np.float64), axis=1)
    lengths = np.stack([np.linalg.norm(x, axis=1), lost], axis=1) * (1 + _ROUNDING)
    return _Codes(codes.astype(np.int8), np.column_stack([scale, lengths.astype(np.float32)]).astype(np.float32))


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


class ExactEngine:
    """Proposes every row that could be among the nearest, and few others: what is then scored is the exact result."""

    def __init__(self, folder: Path, vectors: Segments, distance: Literal["cosine", "euclidean"]) -> None:
        self._folder, self._vectors, self._distance = folder, vectors, distance
        size = vectors.rows_per_segment
        self._codes = Segments(folder / "codes", vectors.width, np.int8, rows_per_segment=size)
        self._figures = Segments(folder / "figures", 3, np.float32, rows_per_segment=size)
        self._shown: list[tuple[Tensor, Tensor, Tensor]] = []
        self._rows = 0

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        some = coded(vectors)
        self._codes.append(first, some.codes)
        self._figures.append(first, some.figures)

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Nothing to do: rows that are not allowed are not proposed."""

    def rebuild(self, rows: int) -> None:
        have = min(self._available(), rows)
        self._codes.truncate(have)
        self._figures.truncate(have)
        self._vectors.show(rows)
        for first in range(have, rows, _BLOCK):
            self.add(first, self._vectors.take(np.arange(first, min(first + _BLOCK, rows))))

    def show(self, rows: int) -> None:
        have = min(self._available(), rows)
        if have == rows:
            self._codes.show(rows)
            self._figures.show(rows)
            held = [_Codes(*both) for both in zip(self._codes.maps(), self._figures.maps(), strict=True)]
        else:  # files that were thrown away: only a writer builds them anew, a reader makes its own
            held = [coded(part) for part in self._vectors.maps()]
        self._shown = [
            (torch.from_numpy(one.codes), torch.from_numpy(np.array(one.figures)), torch.from_numpy(part))
            for one, part in zip(held, self._vectors.maps(), strict=True)
        ]
        self._rows = rows

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        found: list[NDArray[np.int64]] = []
        for start in range(0, len(queries), QUERIES_AT_A_TIME):
            found += self._candidates(queries[start : start + QUERIES_AT_A_TIME], k, allowed)
        return found

    def status(self) -> Mapping[str, Any]:
        return {"rows": self._rows, "scan": "int8" if int8_is_exact() else "float32"}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        asked, found = _Queries.of(queries), _Found(len(queries), k)
        shown = self._shown  # which another thread may replace meanwhile
        size = min(_LARGE_BLOCK, max(_BLOCK, _BLOCK * QUERIES_AT_A_TIME // len(queries)))

        def scan(block: Block) -> None:
            segment, start = block
            codes, figures, vectors = (each[start : start + size] for each in shown[segment])
            first = segment * self._vectors.rows_per_segment + start
            rows, codes, figures, vectors, mask = _allowed_of(first, codes, figures, vectors, allowed)
            if not len(rows):
                return
            with torch.inference_mode():
                scanned, error = asked.scan(codes, figures, vectors)
                if self._distance == "euclidean":
                    half = 0.5 * figures[:, 1] ** 2
                    scanned, error = scanned - half, error + 4 * _ROUNDING * half
                found.take(rows, scanned, error, mask)

        with true_float32(), workers(torch.device("cpu")) as each:
            sizes = [len(codes) for codes, _, _ in shown]
            each(scan, [(segment, start) for segment, n in enumerate(sizes) for start in range(0, n, size)])
        return found.rows()

    def _available(self) -> int:
        return min(self._codes.available(), self._figures.available())


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
        lost = lost + 2 * _ROUNDING * length
        return cls(torch.from_numpy(some.codes), scale, length, lost, torch.from_numpy(queries).float())

    def scan(self, codes: Tensor, figures: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Products ``[Q, N]``, and how far each may be from the true one."""
        scale, length, lost = figures.unbind(1)
        if _in_8_bits(codes):
            products = torch._int_mm(self.codes, codes.T).float().mul_(self.scale).mul_(scale)
            return products, torch.addmm(self.lost * length, self.length + self.lost, lost[None])
        # Rounded to float32, multiplied, added in any order (Higham, Accuracy and Stability, 3.1).
        steps = (vectors.shape[1] + 3) * 2.0**-24
        return self.exact @ vectors.T, (2 * steps + _ROUNDING) * self.length * length
