"""The exact engine's scan by numpy, where torch is not installed: the vectors as they are, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearkin.index.codes import ROUNDING, Codes, float32_error
from nearkin.index.engine import Distance

QUERIES = 64
"""As many as are scanned for at a time."""
_BLOCK = 8192


def precision() -> str:
    """In what the scan is made, for people."""
    return "float32"


def candidates(
    segments: Sequence[tuple[Codes, NDArray[np.float32]]],
    queries: NDArray[np.float64],
    k: int,
    allowed: NDArray[np.int64] | None,
    distance: Distance,
) -> list[NDArray[np.int64]]:
    """For each query ``[Q, dim]`` the rows that could be among its ``k`` nearest, ascending, and few others."""
    asked = queries.astype(np.float32)
    lengths = np.linalg.norm(queries, axis=1, keepdims=True) * float32_error(queries.shape[1])
    # Lower bounds of the best so far: what is certain to lie below the k-th of them is not among the k nearest.
    best = np.empty((len(queries), 0))
    kept: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    first = 0
    for codes, vectors in segments:
        for start in range(0, len(vectors), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(vectors)))
            if allowed is not None:
                low, high = np.searchsorted(allowed, [first + start, first + start + len(rows)])
                rows = allowed[low:high] - first
            if not len(rows):
                continue
            some = vectors[start : start + _BLOCK] if allowed is None else vectors[rows]
            length = codes.figures[rows, 1].astype(np.float64)
            scanned, error = (asked @ some.T).astype(np.float64), lengths * length
            if distance == "euclidean":
                half = 0.5 * length**2
                scanned, error = scanned - half, error + 4 * ROUNDING * half
            best = np.concatenate([best, scanned - error], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, best.shape[1] - k, axis=1)[:, -k:]
            kept.append((rows + first, scanned + error))
            if best.shape[1] == k:  # what no query wants is not kept
                wanted = (kept[-1][1] >= best.min(axis=1, keepdims=True)).any(axis=0)
                kept[-1] = (kept[-1][0][wanted], kept[-1][1][:, wanted])
        first += len(vectors)
    if not kept:
        return [np.empty(0, dtype=np.int64) for _ in queries]
    rows, upper = np.concatenate([each for each, _ in kept]), np.concatenate([each for _, each in kept], axis=1)
    if best.shape[1] < k:
        return [rows for _ in queries]
    return [rows[able] for able in upper >= best.min(axis=1, keepdims=True)]
