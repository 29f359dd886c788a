"""How clusters and classes overlap."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.neighbours import ArrayLike, as_labels


def contingency(clusters: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes of the clusters, of the classes, and of their intersections that are not empty.

    >>> contingency([0, 0, 0, 1], [5, 5, 3, 3])
    (tensor([3, 1]), tensor([2, 2]), tensor([1, 2, 1]))
    """
    found = as_labels(clusters, "clusters")
    true = as_labels(labels, "labels", rows=len(found))
    _, cluster_ids, cluster_sizes = torch.unique(found, return_inverse=True, return_counts=True)
    _, class_ids, class_sizes = torch.unique(true, return_inverse=True, return_counts=True)
    _, joint_sizes = torch.unique(cluster_ids * len(class_sizes) + class_ids, return_counts=True)
    return cluster_sizes, class_sizes, joint_sizes
