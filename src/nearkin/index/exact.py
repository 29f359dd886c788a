"""The exact engine: a scan of all vectors in 8 bits, with a bound on its error that lets no true neighbour go.

A vector x is stored as whole numbers c of −127 … 127 and a scale s, and what that loses, ‖x − s·c‖, beside it. A
product of two such vectors is a whole number that is computed without rounding, so by Cauchy and Schwarz the true
one is within ‖q − q̂‖·‖x‖ + ‖q̂‖·‖x − x̂‖ of the scanned one. Whatever could be among the k nearest by that is proposed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.evaluation.products import true_float32
from nearkin.index.segments import Segments

QUERIES_AT_A_TIME = 64
_LEVELS = 127
# Of these a few float32 operations make an error of at most this share.
_ROUNDING = 2.0**-20
# Fewer rows than this share of a segment are gathered; more are masked out after all were multiplied.
_GATHERED = 0.25
_AT_ONCE = 8192


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


class ExactEngine:
    """Proposes every row that could be among the nearest, and few others: what is then scored is the exact result."""

    def __init__(self, folder: Path, vectors: Segments, distance: Literal["cosine", "euclidean"]) -> None:
        self._vectors, self._distance = vectors, distance
        size = vectors.rows_per_segment
        self._codes = Segments(folder / "codes", vectors.width, np.int8, rows_per_segment=size)
        self._figures = Segments(folder / "figures", 3, np.float32, rows_per_segment=size)
        self._shown: list[tuple[Tensor, Tensor]] = []
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
        for first in range(have, rows, _AT_ONCE):
            self.add(first, self._vectors.take(np.arange(first, min(first + _AT_ONCE, rows))))

    def show(self, rows: int) -> None:
        have = min(self._available(), rows)
        if have == rows:
            self._codes.show(rows)
            self._figures.show(rows)
            held = [_Codes(*both) for both in zip(self._codes.maps(), self._figures.maps(), strict=True)]
        else:  # files that were thrown away: only a writer builds them anew, a reader makes its own
            held = [coded(part) for part in self._vectors.maps()]
        self._shown = [(torch.from_numpy(one.codes), torch.from_numpy(np.array(one.figures))) for one in held]
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

    def _candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        asked = _Queries.of(queries)
        # Lower bounds of the best so far: below the k-th of them nothing is worth keeping.
        best = torch.empty(len(queries), 0)
        floor = torch.full((len(queries), 1), -torch.inf)
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        with torch.inference_mode(), true_float32():
            for rows, codes, figures, vectors, mask in self._blocks(allowed):
                scanned, error = asked.scan(codes, figures, vectors)
                if self._distance == "euclidean":
                    half = 0.5 * figures[:, 1] ** 2
                    scanned, error = scanned - half, error + 4 * _ROUNDING * half
                lower = scanned - error
                if mask is not None:
                    lower.masked_fill_(~mask, -torch.inf)
                best = torch.cat([best, lower.topk(min(k, lower.shape[1])).values], dim=1)
                if best.shape[1] >= k:
                    best = best.topk(k).values
                    floor = best[:, -1:]
                upper = scanned.add_(error)
                able = upper >= floor if mask is None else (upper >= floor) & mask
                which, places = able.nonzero(as_tuple=True)
                kept.append((which, rows[places], upper[which, places]))
            if not kept:
                return [np.empty(0, dtype=np.int64) for _ in queries]
            which, rows, upper = (torch.cat(each) for each in zip(*kept, strict=True))
            still = upper >= floor[which, 0]
            which, rows = which[still], rows[still]
            order = torch.argsort(which, stable=True)
            counts = torch.bincount(which, minlength=len(queries)).tolist()
            return [part.numpy() for part in rows[order].split(counts)]  # type: ignore[no-untyped-call]

    def _blocks(
        self, allowed: NDArray[np.int64] | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
        """Segment by segment the numbers of rows, their codes, figures and vectors, and which of them are allowed."""
        size = self._vectors.rows_per_segment
        for segment, ((codes, figures), part) in enumerate(zip(self._shown, self._vectors.maps(), strict=True)):
            first, vectors = segment * size, torch.from_numpy(part)
            rows = torch.arange(first, first + len(codes))
            if allowed is None:
                yield rows, codes, figures, vectors, None
                continue
            low, high = np.searchsorted(allowed, [first, first + len(codes)])
            places = torch.from_numpy(allowed[low:high] - first)
            if len(places) >= _GATHERED * len(codes):
                mask = torch.zeros(len(codes), dtype=torch.bool)
                mask[places] = True
                yield rows, codes, figures, vectors, mask
            elif len(places):
                yield rows[places], codes[places], figures[places], vectors[places], None

    def _available(self) -> int:
        return min(self._codes.available(), self._figures.available())


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
        if int8_is_exact() and codes.shape[1] > 1:  # torch multiplies single columns wrongly
            products = torch._int_mm(self.codes, codes.T).float().mul_(self.scale).mul_(scale)
            return products, torch.addmm(self.lost * length, self.length + self.lost, lost[None])
        # Rounded to float32, multiplied, added in any order (Higham, Accuracy and Stability, 3.1).
        steps = (vectors.shape[1] + 3) * 2.0**-24
        return self.exact @ vectors.T, (2 * steps + _ROUNDING) * self.length * length
