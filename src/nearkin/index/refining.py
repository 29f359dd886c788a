"""Hits in another order than by distance to the query: by common neighbours.

Scores stay those of the query itself, which is what confidences were learned for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import RecipeError, require_torch
from nearkin.index.segments import Segments

CANDIDATES = 200
"""The nearest so many are re-ranked, whatever k is; what comes after them stays in its order."""

Ranked = list[tuple[NDArray[np.int64], NDArray[np.float64]]]
Nearest = Callable[[NDArray[np.float64], int], Ranked]
"""The nearest rows of queries ``[Q, dim]`` and their scores, so many of each."""


def check_rerank(rerank: int | None, distance: str) -> None:
    """Refuse what cannot be done."""
    if rerank is None:
        return
    if isinstance(rerank, bool) or not isinstance(rerank, int) or rerank < 1:
        raise RecipeError(f"rerank must be a whole number of neighbours of at least 1, got {rerank!r}")
    if distance != "cosine":
        raise RecipeError("rerank is for encoders that compare by angle, and this one compares by distance")
    require_torch("rerank")


def refined(
    nearest: Nearest,
    vectors: Segments,
    queries: NDArray[np.float64],
    excluded: Sequence[set[int]],
    k: int,
    *,
    rerank: int | None,
) -> Ranked:
    """The first ``k`` of each query ``[Q, dim]`` of length 1, with ``excluded`` items left out; plain without a number.

    ``rerank`` orders the nearest :data:`CANDIDATES` by k-reciprocal neighbours among them, k₁ the number given.
    """
    if rerank is None:
        return nearest(queries, k)
    first = _without(nearest(queries, max(CANDIDATES, k) + max(map(len, excluded), default=0)), excluded)
    return [
        _reranked(query, rows, scores, vectors, rerank) for query, (rows, scores) in zip(queries, first, strict=True)
    ]


def _without(ranked: Ranked, excluded: Sequence[set[int]]) -> Ranked:
    kept = [np.isin(rows, list(out), invert=True) for (rows, _), out in zip(ranked, excluded, strict=True)]
    return [(rows[keep], scores[keep]) for (rows, scores), keep in zip(ranked, kept, strict=True)]


def _reranked(
    query: NDArray[np.float64], rows: NDArray[np.int64], scores: NDArray[np.float64], vectors: Segments, k1: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    near = rows[:CANDIDATES]
    if len(near) < 2:
        return rows, scores
    from nearkin.evaluation.reranking import reranked_distances

    ((_, distances),) = reranked_distances(query[None], vectors.take(near), k1=k1)
    order = np.concatenate([distances[0].argsort(stable=True).numpy(), np.arange(len(near), len(rows))])
    return rows[order], scores[order]
