"""Covering radius: how well a class is covered by a few of its own samples."""

from __future__ import annotations

from typing import ClassVar

import torch

from nearkin.evaluation.scores._score import EmbeddingScore
from nearkin.evaluation.vectors import ArrayLike, as_float64, as_labels
from nearkin.proxies.greedy_k_center import farthest_first

__all__ = ["CoveringRadius"]


class CoveringRadius(EmbeddingScore):
    """``covering_radius``: the average covering radius of the classes.

    For k centres it is the largest distance of a sample of the class to the nearest of them. Centres are chosen
    greedily among the samples: the first nearest the class's mean, each further one the farthest from the others. It is
    averaged over k = 1 … n and then over the classes (CCP, figures 2 and 3). Distances are Euclidean.

    >>> CoveringRadius("covering_radius").of_embeddings(torch.tensor([[0.0], [2.0], [10.0]]), [0, 0, 1])
    0.5
    """

    meanings: ClassVar = {
        "covering_radius": "How widely a class is spread: the distance of its farthest image from the nearest of k "
        "chosen ones, averaged over k. A distance, not a percentage; smaller is tighter."
    }
    title = "covering radius"
    in_percent = False
    digits = 3
    higher_is_better = False

    @torch.no_grad()
    def of_embeddings(self, embeddings: ArrayLike, labels: ArrayLike) -> float:
        points = as_float64(embeddings, "embeddings")
        given = as_labels(labels, "labels", rows=len(points)).to(points.device)
        _, owner = torch.unique(given, return_inverse=True)
        order = owner.argsort(stable=True)
        sizes = owner.bincount()
        starts = sizes.cumsum(0) - sizes
        radii = []
        for size in torch.unique(sizes).tolist():
            # Classes of the same size are covered together, so there is one pass per size and not per class.
            rows = starts[sizes == size][:, None] + torch.arange(size, device=points.device)
            total = torch.zeros(len(rows), dtype=points.dtype, device=points.device)
            for _, squared in farthest_first(points[order[rows]]):
                total += squared.amax(dim=1).sqrt()
            radii.append(total / size)
        return float(torch.cat(radii).mean())
