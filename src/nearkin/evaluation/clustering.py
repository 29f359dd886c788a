"""Clustering scores: how well k-means on the embeddings finds the classes again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.evaluation import neighbours
from nearkin.evaluation.neighbours import ArrayLike, Distance, as_count, as_vectors, check_distance
from nearkin.evaluation.retrieval import as_labels
from nearkin.numerics import l2_normalise

# Lloyd's last iterations move a handful of points and no score.
_LEAST_GAIN = 1e-6


def clustering_scores(
    embeddings: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
    *,
    clusters: int | None = None,
    restarts: int = 3,
    distance: Distance = "cosine",
) -> dict[str, float]:
    """``NMI`` and ``F1`` of a k-means clustering against the classes.

    Args:
        embeddings: ``[N, D]``, tensor or array; the work is done on its device.
        labels: ``[N]``, any integers.
        seed: the same seed gives the same clusters.
        clusters: number of clusters; by default as many as there are classes.
        restarts: how often k-means starts anew; the tightest clustering is scored.
        distance: ``"cosine"`` clusters the L2-normalised embeddings, ``"euclidean"`` the embeddings as they are.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> clustering_scores(embeddings, [7, 7, 9, 9])
        {'NMI': 1.0, 'F1': 1.0}
    """
    check_distance(distance)
    vectors = as_vectors(embeddings, "embeddings")
    classes = as_labels(labels, "labels", rows=len(vectors))
    count = len(torch.unique(classes)) if clusters is None else clusters
    assigned = kmeans(l2_normalise(vectors) if distance == "cosine" else vectors, count, seed=seed, restarts=restarts)
    return {"NMI": normalised_mutual_information(assigned, classes), "F1": pairwise_f1(assigned, classes)}


def kmeans(points: ArrayLike, clusters: int, *, seed: int = 0, restarts: int = 3, max_iterations: int = 100) -> Tensor:
    """The cluster ``0 … clusters − 1`` of every row of ``points [N, D]``, by Lloyd's algorithm from k-means++ starts.

    Of several restarts the one with the least sum of squared distances is kept. A cluster that loses all its points
    starts again at the point farthest from its centre. Memory is bounded: distances are taken block by block.

    >>> kmeans(torch.tensor([[0.0], [10.0], [0.1], [10.1]]), 2).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """
    vectors = as_vectors(points, "points")
    if as_count(clusters, "clusters") > len(vectors):
        raise ValueError(f"clusters must be at most the number of points, {len(vectors)}, got {clusters}")
    as_count(restarts, "restarts")
    as_count(max_iterations, "max_iterations")
    # Only shapes matter to k-means: centring and scaling keep the squares and the sums below in range.
    largest = vectors.abs().max()
    vectors = vectors / torch.where(largest > 0, largest, 1.0)
    vectors = vectors - vectors.mean(dim=0)
    generator = torch.Generator().manual_seed(seed)
    best_inertia, best = float("inf"), torch.empty(0)
    for _ in range(restarts):
        centres = vectors[_spread_out(vectors, clusters, generator)]
        inertia, assigned = _lloyd(vectors, centres, max_iterations)
        if inertia < best_inertia:
            best_inertia, best = inertia, assigned
    return best.cpu()


def normalised_mutual_information(clusters: ArrayLike, labels: ArrayLike) -> float:
    """Mutual information over the mean of the two entropies; 1 if both put everything into one group.

    >>> normalised_mutual_information([0, 0, 1, 1], [5, 5, 3, 3])
    1.0
    >>> round(normalised_mutual_information([0, 0, 0, 1], [5, 5, 3, 3]), 4)
    0.3437
    """
    table = _contingency(clusters, labels)
    cluster_entropy, class_entropy, joint_entropy = (_entropy(counts) for counts in table)
    if cluster_entropy == class_entropy == 0.0:
        return 1.0
    information = max(0.0, cluster_entropy + class_entropy - joint_entropy)
    return min(1.0, 2.0 * information / (cluster_entropy + class_entropy))


def pairwise_f1(clusters: ArrayLike, labels: ArrayLike) -> float:
    """F1 of "in the same cluster" as a prediction of "in the same class", over all pairs of points.

    With no such pair on either side, every point alone, the two agree and F1 is 1.

    >>> pairwise_f1([0, 0, 0, 1], [5, 5, 3, 3])
    0.4
    """
    same_cluster, same_class, both = (_pairs(counts) for counts in _contingency(clusters, labels))
    return 2.0 * both / (same_cluster + same_class) if same_cluster + same_class else 1.0


def _contingency(clusters: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes of the clusters, of the classes, and of their intersections that are not empty."""
    found = as_labels(clusters, "clusters")
    true = as_labels(labels, "labels", rows=len(found))
    _, cluster_ids, cluster_sizes = torch.unique(found, return_inverse=True, return_counts=True)
    _, class_ids, class_sizes = torch.unique(true, return_inverse=True, return_counts=True)
    _, joint_sizes = torch.unique(cluster_ids * len(class_sizes) + class_ids, return_counts=True)
    return cluster_sizes, class_sizes, joint_sizes


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return abs(float((share * share.log()).sum()))


def _pairs(counts: Tensor) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _spread_out(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Rows of ``points`` for the first centres, by greedy k-means++.

    Each is drawn in proportion to the squared distance to those before it; of a few draws the best is kept.
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


def _lloyd(points: Tensor, centres: Tensor, max_iterations: int) -> tuple[float, Tensor]:
    """The sum of squared distances and the assignment ``[N]`` that Lloyd's iterations from ``centres`` end with."""
    clusters = len(centres)
    # Sums of integers do not depend on their order, so that the clusters repeat on a GPU too.
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
