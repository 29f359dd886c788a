"""F1 of the pairs that a clustering puts together."""

from __future__ import annotations

from typing import ClassVar

from nearkin.evaluation.scores._score import ClusteringScore
from nearkin.evaluation.vectors import ArrayLike, label_array

__all__ = ["F1", "pairwise_f1"]


def pairwise_f1(clusters: ArrayLike, labels: ArrayLike) -> float:
    """F1 of "in the same cluster" as a prediction of "in the same class", over all pairs of points.

    F1 is 1 where every point is alone in its cluster and in its class.

    >>> pairwise_f1([0, 0, 0, 1], [5, 5, 3, 3])
    0.4
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    assigned = label_array(clusters, "clusters")
    counts = pair_confusion_matrix(label_array(labels, "labels", rows=len(assigned)), assigned)
    (_, cluster_only), (class_only, both) = counts.tolist()
    return 2.0 * both / (2 * both + cluster_only + class_only) if cluster_only + class_only else 1.0


class F1(ClusteringScore):
    """``F1``: :func:`pairwise_f1`."""

    meanings: ClassVar = {
        "F1": "How well the pairs of images in one cluster, found without labels, are the pairs of one class."
    }

    def of_clusters(self, clusters: ArrayLike, labels: ArrayLike) -> float:
        return pairwise_f1(clusters, labels)
