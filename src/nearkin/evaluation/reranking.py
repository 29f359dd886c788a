"""k-reciprocal re-ranking: images are near if they have the same neighbours (Zhong, Zheng, Cao and Li 2017).

For images p of the queries and the gallery together, with d(p, g) the squared distance of unit vectors over the largest
of p, and N(p, k) the image p and its k nearest others:

* R(p, k) = the g of N(p, k) with p in N(g, k): the k-reciprocal neighbours;
* R*(p) = R(p, k₁) with every R(q, k₁/2), q in R(p, k₁), of which at least two thirds are in R(p, k₁);
* V(p) = exp(−d(p, g)) for g in R*(p), 0 elsewhere, divided by its sum; then the mean of V over N(p, k₂ − 1);
* Jaccard distance 1 − Σ min(V(p), V(g)) / Σ max(V(p), V(g)), and the order is by (1 − λ)·Jaccard + λ·d.

V is sparse, and only its non-zero numbers are kept: no N × N matrix is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import RecipeError
from nearkin.evaluation.neighbours import BLOCK_BYTES, nearest
from nearkin.evaluation.vectors import ArrayLike, as_float64
from nearkin.numerics import l2_normalise

# Comparisons or products in one block.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Rerank:
    """The settings k₁, k₂ and λ, by default the paper's; a ``weight`` of 1 is the plain order."""

    k1: int = 20
    k2: int = 6
    weight: float = 0.3

    def __post_init__(self) -> None:
        if self.k1 < 1 or self.k2 < 1 or not 0 <= self.weight <= 1:
            raise RecipeError(
                f"re-ranking takes k1 and k2 of at least 1 and a weight between 0 and 1, got {self.k1}, {self.k2} and "
                f"{self.weight}"
            )

    def __str__(self) -> str:
        return (
            f"re-ranked by k-reciprocal neighbours among the test images, k1 {self.k1}, k2 {self.k2}, weight "
            f"{self.weight:g} (transductive)"
        )


@dataclass(frozen=True)
class _Sparse:
    """A matrix by its non-zero entries: those of row i are ``starts[i]`` to ``starts[i + 1]``."""

    starts: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, values: Tensor, count: int) -> _Sparse:
        """From entries in ascending order of their rows."""
        counts = torch.bincount(rows, minlength=count)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns, values)

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """All entries of ``rows [B]``: the index in ``rows`` that each belongs to, and its position."""
        counts = self.starts[rows + 1] - self.starts[rows]
        rank = torch.repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        return rank, torch.arange(len(rank), device=rows.device) - before[rank] + self.starts[rows][rank]

    def transposed(self, count: int) -> _Sparse:
        rows = torch.repeat_interleave(self.starts.diff())
        order = self.columns.argsort(stable=True)
        return _Sparse.of(self.columns[order], rows[order], self.values[order], count)


def reranked_distances(
    queries: ArrayLike, gallery: ArrayLike | None = None, *, rerank: Rerank
) -> Iterator[tuple[Tensor, Tensor]]:
    """Distances of queries ``[Q, D]`` to the gallery ``[N, D]``, or without one to each other, after re-ranking.

    Yields ``rows [B]`` and ``distances [B, N]`` (float64), a block of queries at a time. It is transductive: a distance
    depends on all images, but on no label. k₁ and k₂ are limited to the number of images.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> [distances.argmin(dim=1).tolist() for rows, distances in reranked_distances(x[:1], x[1:], rerank=Rerank(1, 1))]
    [[0]]
    """
    x = as_float64(queries, "queries")
    count = len(x)
    if gallery is not None:
        x = torch.cat([x, as_float64(gallery, "gallery").to(x.device)])
    x = l2_normalise(x)
    k1, k2, weight = min(rerank.k1, len(x) - 1), min(rerank.k2, len(x)), rerank.weight
    near = torch.arange(len(x), device=x.device)[:, None]
    if len(x) > 1:
        near = torch.cat([near, nearest(x, k=max(k1, min(k2, len(x) - 1), 1))[0]], dim=1)
    step = BLOCK_BYTES // (24 * len(x))
    farthest = torch.cat([_squared(x[part], x).amax(dim=1) for part in _blocks(x, len(x), step)])
    farthest = torch.where(farthest > 0, farthest, 1.0)
    encoded = _averaged(_encoded(x, near, farthest, k1), near[:, :k2])
    by_column = encoded.transposed(len(x))
    for rows in _blocks(x, count, step):
        distances = _squared(x[rows], x) / farthest[rows, None]
        shared = _shared(encoded, by_column, rows, len(x))
        jaccard = 1.0 - shared / (2.0 - shared)
        yield rows.cpu(), ((1.0 - weight) * jaccard + weight * distances)[:, 0 if gallery is None else count :]


def reranked(
    queries: ArrayLike, gallery: ArrayLike | None = None, *, rerank: Rerank
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rankings by :func:`reranked_distances`: ``rows [B]`` and all indices of the gallery, nearest first ``[B, N]``.

    Without a gallery every query comes last in its own ranking. Equal distances are ordered by index.
    """
    for rows, distances in reranked_distances(queries, gallery, rerank=rerank):
        if gallery is None:
            distances.scatter_(1, rows[:, None].to(distances.device), torch.inf)
        # Rounded, so that distances that differ by rounding errors alone are equal.
        yield rows, distances.round(decimals=12).argsort(dim=1, stable=True)


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of unit vectors ``[A, D]`` and ``[B, D]``."""
    return (2.0 - 2.0 * a @ b.T).clamp_min(0.0)


def _blocks(like: Tensor, count: int, step: int) -> tuple[Tensor, ...]:
    """The numbers below ``count``, ``step`` (at least one) at a time, on the device of ``like``."""
    return torch.split(torch.arange(count, device=like.device), max(1, step))


def _reciprocal(near: Tensor, rows: Tensor) -> Tensor:
    """For N(p, k) as ``near [N, k + 1]``: which neighbours of ``rows`` have the row among their own neighbours."""
    return (near[near[rows]] == rows[:, None, None]).any(dim=2)


def _encoded(x: Tensor, near: Tensor, farthest: Tensor, k1: int) -> _Sparse:
    """V before averaging."""
    wide, half = near[:, : k1 + 1], near[:, : round(k1 / 2) + 1]
    step = max(1, _AT_ONCE // (wide.shape[1] ** 2 * half.shape[1]))
    blocks = _blocks(x, len(x), step)
    half_mutual = torch.cat([_reciprocal(half, rows) for rows in blocks])
    sets = []
    for rows in blocks:
        candidates, mutual = wide[rows], _reciprocal(wide, rows)
        others, theirs = half[candidates], half_mutual[candidates]
        shared = ((others[..., None] == candidates[:, None, None]) & mutual[:, None, None]).any(dim=3) & theirs
        joins = mutual & (3 * shared.sum(dim=2) >= 2 * theirs.sum(dim=2))
        added = theirs & joins[..., None]
        row = torch.cat([rows[mutual.nonzero()[:, 0]], rows[added.nonzero()[:, 0]]])
        sets.append(torch.unique(row * len(x) + torch.cat([candidates[mutual], others[added]])))
    pairs = torch.cat(sets)
    row, column = pairs // len(x), pairs % len(x)
    parts = _blocks(x, len(pairs), _AT_ONCE // x.shape[1] + 1)
    products = torch.cat([(x[row[part]] * x[column[part]]).sum(dim=1) for part in parts])
    weights = torch.exp(-(2.0 - 2.0 * products).clamp_min(0.0) / farthest[row])
    sums = torch.bincount(row, weights, minlength=len(x))
    return _Sparse.of(row, column, weights / sums[row], len(x))


def _averaged(encoded: _Sparse, near: Tensor) -> _Sparse:
    """The matrix whose rows are the means of the rows ``near [N, k]``."""
    rows, columns, values = [], [], []
    widest = max(1, int(encoded.starts.diff().max()) * near.shape[1])
    for block in _blocks(near, len(near), _AT_ONCE // widest):
        rank, where = encoded.entries(near[block].flatten())
        pairs, which = torch.unique(rank // near.shape[1] * len(near) + encoded.columns[where], return_inverse=True)
        rows.append(block[pairs // len(near)])
        columns.append(pairs % len(near))
        values.append(torch.bincount(which, encoded.values[where], minlength=len(pairs)) / near.shape[1])
    return _Sparse.of(torch.cat(rows), torch.cat(columns), torch.cat(values), len(near))


def _shared(encoded: _Sparse, by_column: _Sparse, rows: Tensor, count: int) -> Tensor:
    """Σ min(V(p), V(g)) ``[B, N]`` for the images p of ``rows`` and all g: only common columns add anything."""
    rank, where = encoded.entries(rows)
    columns, values = encoded.columns[where], encoded.values[where]
    total = torch.zeros(len(rows) * count, dtype=values.dtype, device=values.device)
    widest = max(1, int(by_column.starts.diff().max()))
    for block in _blocks(columns, len(columns), _AT_ONCE // widest):
        entry, other = by_column.entries(columns[block])
        least = torch.minimum(values[block][entry], by_column.values[other])
        total.index_add_(0, rank[block][entry] * count + by_column.columns[other], least)
    return total.view(len(rows), count)
