"""Mean reciprocal rank within the first k."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from nearkin.evaluation.scores._score import RetrievalScore

__all__ = ["MeanReciprocalRank"]


class MeanReciprocalRank(RetrievalScore):
    """``MRR@k``: 1 / i with i the place of the first that is true; 0 if none of the first k is."""

    meanings: ClassVar = {
        "MRR@k": "Mean reciprocal rank: 100 if the most similar image has the query's class, 50 if the second is the "
        "first that has it, 33 for the third, and so on; 0 if none of the first k has."
    }

    first_hit_only = True

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        hits = hits[:, : self.k]
        return (hits / torch.arange(1, hits.shape[1] + 1, dtype=torch.float64)).amax(dim=1)
