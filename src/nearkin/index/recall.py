"""How much of what is nearest an approximate engine finds, for queries that are not stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearkin.index.engine import Distance, Engine
from nearkin.index.queries import nearest_of, unit_rows
from nearkin.index.segments import Segments

K = 10
"""Neighbours that a recall is of."""


def held_out(
    exact: Engine, vectors: Segments, distance: Distance, rows: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Queries that are not stored, but lie as those do that are: a stored one would be easier to find than it is.

    Of a vector a, its fifth nearest b and its tenth c this is (2a + 2b − c) / 3: if all were drawn around one
    centre, so would it be, and as far from it, as the weights sum to 1 and so do their squares.

    Args:
        exact: finds the nearest.
        vectors: what is stored.
        distance: how they are compared.
        rows: those that are there, ascending.
        count: how many queries at most.
    """
    some = np.random.default_rng(1).choice(rows, min(len(rows), count), replace=False)
    own = vectors.take(some).astype(np.float64)
    allowed = None if len(rows) == vectors.rows else rows
    near = [found for found, _ in nearest_of(exact, vectors, distance, own, K + 1, allowed)]
    fifth, tenth = (
        vectors.take(np.array([each[min(place, len(each) - 1)] for each in near], dtype=np.int64))
        for place in (K // 2, K)
    )
    queries: NDArray[np.float64] = (2 * own + 2 * fifth - tenth) / 3
    return unit_rows(queries) if distance == "cosine" else queries


def recall(true: Sequence[NDArray[np.float64]], mine: Sequence[NDArray[np.float64]]) -> float:
    """The share of the nearest that is found, by scores of each query: of rows that are equally near any will do.

    >>> recall([np.array([0.9, 0.8])], [np.array([0.9, 0.7])])
    0.5
    """
    shares = [(found >= best[-1]).sum() / len(best) for best, found in zip(true, mine, strict=True)]
    return float(np.mean(shares))
