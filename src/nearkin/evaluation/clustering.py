"""Clustering scores: how well k-means on the embeddings recovers the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.evaluation import neighbours
from nearkin.evaluation.neighbours import Distance
from nearkin.evaluation.scores import ClusteringScore
from nearkin.evaluation.scores.f1 import F1
from nearkin.evaluation.scores.nmi import NMI
from nearkin.evaluation.vectors import ArrayLike, as_count, as_float64, as_labels, check_distance
from nearkin.numerics import l2_normalise

# Lloyd's last iterations move a handful of points and no score.
_LEAST_GAIN = 1e-6


def clustering_scores(
    embeddings: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
    *,
    distance: Distance = "cosine",
    scores: Sequence[ClusteringScore] = (NMI("NMI"), F1("F1")),
) -> dict[str, float]:
    """``NMI`` and ``F1``, or other ``scores``, of a k-means clustering with as many clusters as there are classes.

    Args:
        embeddings: ``[N, D]``, tensor or array; the work is done on its device.
        labels: ``[N]``, any integers.
        seed: the same seed gives the same clusters.
        distance: ``"cosine"`` clusters the L2-normalised embeddings, ``"euclidean"`` the embeddings as they are.
        scores: what is computed from the clustering.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> clustering_scores(embeddings, [7, 7, 9, 9])
        {'NMI': 1.0, 'F1': 1.0}
    """
    check_distance(distance)
    vectors = as_float64(embeddings, "embeddings")
    classes = as_labels(labels, "labels", rows=len(vectors))
    points = l2_normalise(vectors) if distance == "cosine" else vectors
    assigned = kmeans(points, len(torch.unique(classes)), seed=seed)
    return {score.name: score.of_clusters(assigned, classes) for score in scores}


def kmeans(points: ArrayLike, clusters: int, *, seed: int = 0, restarts: int = 3) -> Tensor:
    """The cluster ``0 … clusters − 1`` of every row of ``points [N, D]``, by Lloyd's algorithm.

    Of several restarts the one with the least sum of squared distances is kept. A cluster that loses all its points
    starts again at the point farthest from its centre.

    >>> kmeans(torch.tensor([[0.0], [10.0], [0.1], [10.1]]), 2).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """
    vectors = as_float64(points, "points")
    if as_count(clusters, "clusters") > len(vectors):
        raise ValueError(f"clusters must be at most the number of points, {len(vectors)}, got {clusters}")
    as_count(restarts, "restarts")
    # Only shapes matter to k-means: centring and scaling keep the squares and the sums below in range.
    largest = vectors.abs().max()
    vectors = vectors / torch.where(largest > 0, largest, 1.0)
    vectors = vectors - vectors.mean(dim=0)
    generator = torch.Generator().manual_seed(seed)
    best_inertia, best = float("inf"), torch.empty(0)
    for _ in range(restarts):
        inertia, assigned = _lloyd(vectors, vectors[_spread_out(vectors, clusters, generator)])
        if inertia < best_inertia:
            best_inertia, best = inertia, assigned
    return best.cpu()


def _spread_out(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Rows of ``points`` for the first centres, by greedy k-means++.

    A centre is drawn with probability proportional to its squared distance from those before it; of a few draws the
    best is kept.
    """
    draws = 2 + int(math.log(clusters))
    chosen = torch.empty(clusters, dtype=torch.int64)
    squares = points.square().sum(dim=1)
    gap = torch.full_like(squares, float("inf"))
    weights = torch.ones(len(points), dtype=torch.float64)
    for step in range(clusters):
        # Drawn on the CPU, so that the sequence of numbers is the same on every device.
        reached = weights.cumsum(dim=0)
        targets = torch.rand(draws, dtype=torch.float64, generator=generator) * reached[-1]
        drawn = torch.searchsorted(reached, targets, right=True).clamp_max_(len(points) - 1)
        rows = drawn.to(points.device)
        gaps = (squares + squares[rows, None] - 2.0 * (points[rows] @ points.T)).clamp_min_(0.0)
        best = int(torch.minimum(gaps, gap).sum(dim=1).argmin())
        chosen[step] = drawn[best]
        gap = torch.minimum(gap, gaps[best]).index_fill_(0, rows[best], 0.0)
        weights = gap.cpu()
    return chosen.to(points.device)


def _lloyd(points: Tensor, centres: Tensor, max_iterations: int = 100) -> tuple[float, Tensor]:
    """Lloyd's iterations from ``centres``: the final sum of squared distances and the assignment ``[N]``."""
    clusters = len(centres)
    # Sums of integers do not depend on their order, so the clusters are reproducible on a GPU too.
    unit = float(1 << (61 - len(points).bit_length()))
    fixed_point = (points * unit).round_().to(torch.int64)
    assigned = torch.full((len(points),), -1, device=points.device)
    inertia = float("inf")
    for _ in range(max_iterations):
        before = assigned
        assigned, gap = _closest(points, centres)
        sizes = torch.bincount(assigned, minlength=clusters)
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            far = gap.topk(len(empty))
            strays = far.indices[far.values > 0]
            assigned[strays] = empty[: len(strays)]
            gap[strays] = 0.0
            sizes = torch.bincount(assigned, minlength=clusters)
        previous, inertia = inertia, float(gap.sum())
        if torch.equal(assigned, before) or previous - inertia < _LEAST_GAIN * inertia:
            break
        sums = torch.zeros(centres.shape, dtype=torch.int64, device=points.device).index_add_(0, assigned, fixed_point)
        means = sums.double() / (sizes.clamp_min(1)[:, None] * unit)
        centres = torch.where((sizes > 0)[:, None], means, centres)
    return inertia, assigned


def _closest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of every point and the squared distance to it."""
    squares = centres.square().sum(dim=1)
    assigned = torch.empty(len(points), dtype=torch.int64, device=points.device)
    gap = torch.empty(len(points), dtype=points.dtype, device=points.device)
    # A block holds the products and their sum with the squares.
    block = max(1, neighbours.BLOCK_BYTES // (16 * len(centres)))
    for start in range(0, len(points), block):
        rows = points[start : start + block]
        nearest = torch.addmm(squares, rows, centres.T, alpha=-2.0).min(dim=1)
        assigned[start : start + block] = nearest.indices
        gap[start : start + block] = (nearest.values + rows.square().sum(dim=1)).clamp_min_(0.0)
    return assigned, gap
