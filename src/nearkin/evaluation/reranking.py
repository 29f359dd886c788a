"""k-reciprocal re-ranking: images are near if their neighbours are the same (Zhong, Zheng, Cao and Li 2017).

For images p of the queries and the gallery together, with d(p, g) the squared distance of unit vectors over the largest
of p, and N(p, k) the image p and its k nearest others:

* R(p, k) = the g of N(p, k) with p in N(g, k): the k-reciprocal neighbours;
* R*(p) = R(p, k₁) with every R(q, k₁/2), q in R(p, k₁), of which at least two thirds are in R(p, k₁);
* V(p) = exp(−d(p, g)) for g in R*(p), 0 elsewhere, divided by its sum; then the mean of V over N(p, k₂ − 1);
* Jaccard distance 1 − Σ min(V(p), V(g)) / Σ max(V(p), V(g)), and the order is by (1 − λ)·Jaccard + λ·d.

Every V has few numbers that are not 0, and only these are kept: N² numbers are nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import RecipeError
from nearkin.evaluation.neighbours import BLOCK_BYTES, Distance, nearest
from nearkin.evaluation.retrieval import depths, mean_scores, measure
from nearkin.evaluation.scores import RetrievalScore, score_named
from nearkin.evaluation.vectors import ArrayLike, as_float64, as_labels

# Comparisons or products that are made at a time.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Rerank:
    """The order by common neighbours: k₁, k₂ and λ, by default the paper's; a ``weight`` of 1 is the plain order."""

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


def measure_reranked(
    scores: Sequence[str],
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    rerank: Rerank,
    distance: Distance = "cosine",
) -> dict[str, float]:
    """As :func:`~nearkin.evaluation.retrieval.measure`, with rankings that ``rerank`` has ordered again.

    Only rankings are changed: scores of clusters and of where embeddings lie are those without it.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> measure_reranked(["R@1", "NMI"], x, [7, 7, 9, 9], rerank=Rerank())
    {'R@1': 1.0, 'queries_without_match': 0.0, 'NMI': 1.0}
    """
    if distance != "cosine":
        raise RecipeError("rankings are re-ranked by angle, and this encoder compares by distance")
    wanted = [score_named(name) for name in dict.fromkeys(scores)]
    ranked = [score for score in wanted if isinstance(score, RetrievalScore)]
    others = [score.name for score in wanted if not isinstance(score, RetrievalScore)]
    results: dict[str, float] = {}
    if ranked:
        queries, references = as_labels(labels, "labels"), gallery_labels
        among_themselves = references is None
        references = queries if among_themselves else as_labels(references, "gallery_labels")
        num_true = _times(queries, references) - int(among_themselves)
        counted = num_true > 0
        depth = depths(ranked, num_true.numpy(), len(references) - int(among_themselves))[1]
        values = torch.zeros(len(ranked), len(queries), dtype=torch.float64)
        for rows, distances in reranked_distances(embeddings, gallery, rerank=rerank):
            if among_themselves:
                distances.scatter_(1, rows[:, None].to(distances.device), torch.inf)
            # Equal ones by index, and what differs by rounding alone is equal.
            order = distances.round(decimals=12).argsort(dim=1, stable=True)[:, : int(depth.max())].cpu()
            hits = references[order] == queries[rows, None]
            for number, measured in enumerate(ranked):
                values[number, rows] = measured.per_query(hits, num_true[rows])
        results |= mean_scores(ranked, values[:, counted], left_out=int((~counted).sum()))
    return results | (measure(others, embeddings, labels, distance=distance) if others else {})


def _times(labels: Tensor, among: Tensor) -> Tensor:
    """How many times each of ``labels`` is in ``among``."""
    names, which = torch.unique(torch.cat([labels, among]), return_inverse=True)
    return torch.bincount(which[len(labels) :], minlength=len(names))[which[: len(labels)]]


@dataclass(frozen=True)
class _Sparse:
    """Rows of a matrix, with only what is not 0: those of row i are ``starts[i]`` to ``starts[i + 1]``."""

    starts: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, values: Tensor, count: int) -> _Sparse:
        """From entries of which the rows ascend."""
        counts = torch.bincount(rows, minlength=count)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns, values)

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of each of ``rows [B]`` all entries: which place in ``rows`` they belong to, and where they are."""
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
    depends on all images, though on no label. k₁ and k₂ are cut to the number of images.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> [distances.argmin(dim=1).tolist() for rows, distances in reranked_distances(x[:1], x[1:], rerank=Rerank(1, 1))]
    [[0]]
    """
    asked = _unit(as_float64(queries, "queries"))
    x = asked if gallery is None else torch.cat([asked, _unit(as_float64(gallery, "gallery").to(asked.device))])
    k1, k2, weight = min(rerank.k1, len(x) - 1), min(rerank.k2, len(x)), rerank.weight
    first = 0 if gallery is None else len(asked)
    itself = torch.arange(len(x), device=x.device)
    near = itself[:, None]
    if len(x) > 1:
        near = torch.cat([near, nearest(x, k=max(k1, min(k2, len(x) - 1), 1))[0]], dim=1)
    farthest = torch.cat([_squared(x[part], x).amax(dim=1) for part in _blocks(x, len(x), _rows_of(x))])
    farthest = torch.where(farthest > 0, farthest, 1.0)
    encoded = _averaged(_encoded(x, near, farthest, k1), near[:, :k2])
    by_column = encoded.transposed(len(x))
    for rows in _blocks(x, len(asked), _rows_of(x)):
        distances = _squared(x[rows], x) / farthest[rows, None]
        shared = _shared(encoded, by_column, rows, len(x))
        jaccard = 1.0 - shared / (2.0 - shared)
        yield rows.cpu(), ((1.0 - weight) * jaccard + weight * distances)[:, first:]


def _unit(x: Tensor) -> Tensor:
    lengths = x.norm(dim=1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1.0)


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of unit vectors ``[A, D]`` and ``[B, D]``."""
    return (2.0 - 2.0 * a @ b.T).clamp_min(0.0)


def _rows_of(x: Tensor) -> int:
    """Of how many images at a time the distances to all are computed."""
    return BLOCK_BYTES // (24 * len(x))


def _blocks(like: Tensor, count: int, step: int) -> list[Tensor]:
    """The numbers below ``count``, ``step`` at a time and at least one, where ``like`` is."""
    step = max(1, step)
    return [torch.arange(at, min(at + step, count), device=like.device) for at in range(0, count, step)]


def _reciprocal(near: Tensor, rows: Tensor) -> Tensor:
    """For N(p, k) as ``near [N, k + 1]``: which of the neighbours of ``rows`` have the row among their own."""
    return (near[near[rows]] == rows[:, None, None]).any(dim=2)


def _encoded(x: Tensor, near: Tensor, farthest: Tensor, k1: int) -> _Sparse:
    """V before it is averaged."""
    wide, half = near[:, : k1 + 1], near[:, : round(k1 / 2) + 1]
    step = max(1, _AT_ONCE // (wide.shape[1] ** 2 * half.shape[1]))
    blocks = _blocks(x, len(x), step)
    half_mutual = torch.cat([_reciprocal(half, rows) for rows in blocks])
    found = []
    for rows in blocks:
        candidates, mutual = wide[rows], _reciprocal(wide, rows)
        others, theirs = half[candidates], half_mutual[candidates]
        among = ((others[..., None] == candidates[:, None, None]) & mutual[:, None, None]).any(dim=3) & theirs
        taken = mutual & (3 * among.sum(dim=2) >= 2 * theirs.sum(dim=2))
        own, added = mutual.nonzero(), (theirs & taken[..., None]).nonzero()
        place = torch.cat([own[:, 0], added[:, 0]])
        other = torch.cat([candidates[mutual], others[theirs & taken[..., None]]])
        found.append(torch.unique(rows[place] * len(x) + other))
    pairs = torch.cat(found)
    row, column = pairs // len(x), pairs % len(x)
    parts = _blocks(x, len(pairs), _AT_ONCE // x.shape[1] + 1)
    products = torch.cat([(x[row[part]] * x[column[part]]).sum(dim=1) for part in parts])
    weights = torch.exp(-(2.0 - 2.0 * products).clamp_min(0.0) / farthest[row])
    sums = torch.bincount(row, weights, minlength=len(x))
    return _Sparse.of(row, column, weights / sums[row], len(x))


def _averaged(encoded: _Sparse, near: Tensor) -> _Sparse:
    """Each row the mean of those of ``near [N, k]``."""
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
