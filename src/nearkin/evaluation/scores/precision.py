"""Precision at k and at R."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from nearkin.evaluation.scores._score import RetrievalScore

__all__ = ["Precision"]


class Precision(RetrievalScore):
    """``P@k``: the fraction of the first k that are true; ``P@R`` with each query's R for k."""

    meanings: ClassVar = {
        "P@R": "With R other images of the query's class: the share of the R most similar images that have that class. "
        "100 if all of them come first.",
        "P@k": "Precision at k: the share of the k most similar images that have the query's class.",
    }

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        if self.k:
            return hits[:, : self.k].sum(dim=1).double() / self.k
        hits = hits[:, : int(num_true.max())]
        rank = torch.arange(1, hits.shape[1] + 1)
        return (hits & (rank <= num_true[:, None])).sum(dim=1) / num_true.double()
