"""Normalised mutual information of clusters and classes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from nearkin.evaluation.scores._score import ClusteringScore, contingency
from nearkin.evaluation.vectors import ArrayLike

__all__ = ["NMI", "normalised_mutual_information"]


def normalised_mutual_information(clusters: ArrayLike, labels: ArrayLike) -> float:
    """Mutual information over the mean of the two entropies; 1 if both put everything into one group.

    >>> normalised_mutual_information([0, 0, 1, 1], [5, 5, 3, 3])
    1.0
    >>> round(normalised_mutual_information([0, 0, 0, 1], [5, 5, 3, 3]), 4)
    0.3437
    """
    cluster_entropy, class_entropy, joint_entropy = map(_entropy, contingency(clusters, labels))
    if cluster_entropy == class_entropy == 0.0:
        return 1.0
    information = max(0.0, cluster_entropy + class_entropy - joint_entropy)
    return min(1.0, 2.0 * information / (cluster_entropy + class_entropy))


class NMI(ClusteringScore):
    """``NMI``: :func:`normalised_mutual_information`."""

    meanings: ClassVar = {
        "NMI": "Normalised mutual information: the images are clustered without labels, into as many clusters as "
        "classes. 100 if the clusters are the classes, near 0 if they are unrelated."
    }

    def of_clusters(self, clusters: ArrayLike, labels: ArrayLike) -> float:
        return normalised_mutual_information(clusters, labels)


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return abs(float((share * share.log()).sum()))
