"""Mean average precision at k and at R."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from nearkin.evaluation.scores._score import RetrievalScore

__all__ = ["MeanAveragePrecision"]


class MeanAveragePrecision(RetrievalScore):
    """``MAP@k``: (1/k) Σ over i ≤ k of P@i · rel_i; ``MAP@R`` with each query's R for k."""

    meanings: ClassVar = {
        "MAP@R": "Like P@R, but a correct image counts for more the higher it ranks. The strictest of these scores, "
        "and the one that varies least between seeds.",
        "MAP@k": "Mean average precision over the first k: a correct image counts for more the higher it ranks.",
    }

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        hits = hits[:, : self.k or int(num_true.max())]
        rank = torch.arange(1, hits.shape[1] + 1)
        precision_at_hits = (hits.cumsum(dim=1) / rank.double()).mul_(hits)
        if self.k:
            return precision_at_hits.sum(dim=1) / self.k
        return precision_at_hits.mul_(rank <= num_true[:, None]).sum(dim=1) / num_true
