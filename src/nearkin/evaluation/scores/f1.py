"""F1 of the pairs that a clustering puts together."""

from __future__ import annotations

from typing import ClassVar

from nearkin.evaluation.scores._score import ClusteringScore, contingency
from nearkin.evaluation.vectors import ArrayLike

__all__ = ["F1", "pairwise_f1"]


def pairwise_f1(clusters: ArrayLike, labels: ArrayLike) -> float:
    """F1 of "in the same cluster" as a prediction of "in the same class", over all pairs of points.

    With no such pair on either side, every point alone, the two agree and F1 is 1.

    >>> pairwise_f1([0, 0, 0, 1], [5, 5, 3, 3])
    0.4
    """
    pairs = (int((counts * (counts - 1) // 2).sum()) for counts in contingency(clusters, labels))
    same_cluster, same_class, both = pairs
    return 2.0 * both / (same_cluster + same_class) if same_cluster + same_class else 1.0


class F1(ClusteringScore):
    """``F1``: :func:`pairwise_f1`."""

    meanings: ClassVar = {
        "F1": "How well the pairs of images in one cluster, found without labels, are the pairs of one class."
    }

    def of_clusters(self, clusters: ArrayLike, labels: ArrayLike) -> float:
        return pairwise_f1(clusters, labels)
