"""How far classes lie apart."""

from __future__ import annotations

from typing import ClassVar

import torch

from nearkin.evaluation import neighbours
from nearkin.evaluation.scores._score import EmbeddingScore
from nearkin.evaluation.vectors import ArrayLike, as_float64, as_labels

__all__ = ["InterClassDistance"]


class InterClassDistance(EmbeddingScore):
    """``inter_class_distance``: the mean Euclidean distance between samples of different classes; NaN with one class.

    >>> InterClassDistance("inter_class_distance").of_embeddings(torch.tensor([[0.0], [2.0], [10.0]]), [0, 0, 1])
    9.0
    """

    meanings: ClassVar = {
        "inter_class_distance": "The mean distance between images of different classes. A distance, not a percentage."
    }
    title = "distance between classes"
    in_percent = False
    digits = 3
    shown = False

    @torch.no_grad()
    def of_embeddings(self, embeddings: ArrayLike, labels: ArrayLike) -> float:
        points = as_float64(embeddings, "embeddings")
        owner = as_labels(labels, "labels", rows=len(points)).to(points.device)
        total, pairs = 0.0, 0
        step = max(1, neighbours.BLOCK_BYTES // (16 * len(points)))
        for start in range(0, len(points), step):
            apart = owner[start : start + step, None] != owner
            total += float(torch.cdist(points[start : start + step], points).mul_(apart).sum())
            pairs += int(apart.sum())
        return total / pairs if pairs else float("nan")
