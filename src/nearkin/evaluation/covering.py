"""Covering radius: how well a class is covered by a few of its own samples, and how far classes lie apart."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.neighbours import BLOCK_BYTES, ArrayLike, as_vectors
from nearkin.evaluation.retrieval import as_labels


@torch.no_grad()
def covering_radius(embeddings: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The average covering radius of the classes, and the average distance between samples of different classes.

    The covering radius of a class for k centres is the largest distance of one of its samples to the nearest of k
    centres, chosen greedily among the samples: the first nearest the class's mean, each further one the farthest from
    those before. It is averaged over k = 1 … n and then over the classes (CCP, figures 2 and 3). Distances are
    Euclidean between the embeddings as given. With a single class the distance between classes is NaN.

    Example:
        >>> covering_radius(torch.tensor([[0.0], [2.0], [10.0]]), [0, 0, 1])
        {'covering_radius': 0.5, 'inter_class_distance': 9.0}
    """
    points = as_vectors(embeddings, "embeddings").double()
    given = as_labels(labels, "labels", rows=len(points)).to(points.device)
    _, owner = torch.unique(given, return_inverse=True)
    order = owner.argsort(stable=True)
    sizes = owner.bincount()
    starts = sizes.cumsum(0) - sizes
    radii = []
    for size in torch.unique(sizes).tolist():
        # Classes of the same size are covered together, so there is one pass per size and not per class.
        rows = starts[sizes == size][:, None] + torch.arange(size, device=points.device)
        radii.append(_mean_radius(points[order[rows]]))
    return {
        "covering_radius": float(torch.cat(radii).mean()),
        "inter_class_distance": _distance_between(points, owner),
    }


def _mean_radius(classes: Tensor) -> Tensor:
    """Mean over k of the covering radius of classes ``[G, n, D]``, for each of them ``[G]``."""
    groups, size, _ = classes.shape
    each = torch.arange(groups, device=classes.device)
    centre = (classes - classes.mean(1, keepdim=True)).norm(dim=2).argmin(1)
    nearest = torch.full((groups, size), torch.inf, dtype=classes.dtype, device=classes.device)
    total = torch.zeros(groups, dtype=classes.dtype, device=classes.device)
    for _ in range(size):
        nearest = torch.minimum(nearest, (classes - classes[each, centre][:, None]).norm(dim=2))
        radius, centre = nearest.max(1)
        total += radius
    return total / size


def _distance_between(points: Tensor, owner: Tensor) -> float:
    total, pairs = 0.0, 0
    step = max(1, BLOCK_BYTES // (16 * len(points)))
    for start in range(0, len(points), step):
        apart = owner[start : start + step, None] != owner
        total += float(torch.cdist(points[start : start + step], points).mul_(apart).sum())
        pairs += int(apart.sum())
    return total / pairs if pairs else float("nan")
