"""Normalised mutual information of clusters and classes."""

from __future__ import annotations

from typing import ClassVar

from nearkin.evaluation.scores._score import ClusteringScore
from nearkin.evaluation.vectors import ArrayLike, label_array

__all__ = ["NMI", "normalised_mutual_information"]


def normalised_mutual_information(clusters: ArrayLike, labels: ArrayLike) -> float:
    """Mutual information over the mean of the two entropies; 1 if both put everything into one group.

    >>> normalised_mutual_information([0, 0, 1, 1], [5, 5, 3, 3])
    1.0
    >>> round(normalised_mutual_information([0, 0, 0, 1], [5, 5, 3, 3]), 4)
    0.3437
    """
    from sklearn.metrics import normalized_mutual_info_score

    assigned = label_array(clusters, "clusters")
    return float(normalized_mutual_info_score(label_array(labels, "labels", rows=len(assigned)), assigned))


class NMI(ClusteringScore):
    """``NMI``: :func:`normalised_mutual_information`."""

    meanings: ClassVar = {
        "NMI": "Normalised mutual information: the images are clustered without labels, into as many clusters as "
        "classes. 100 if the clusters are the classes, near 0 if they are unrelated."
    }

    def of_clusters(self, clusters: ArrayLike, labels: ArrayLike) -> float:
        return normalised_mutual_information(clusters, labels)
