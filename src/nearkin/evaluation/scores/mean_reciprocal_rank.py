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
        "MRR@k": "Mean reciprocal rank: 100 where the most similar image is of the query's kind, 50 where it is the "
        "second one, 33 for the third, and so on; 0 where none of the first k is."
    }

    first_hit_only = True

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        hits = hits[:, : self.k]
        return (hits / torch.arange(1, hits.shape[1] + 1, dtype=torch.float64)).amax(dim=1)
