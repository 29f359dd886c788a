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
        counted = hits if self.k else hits & (rank <= num_true[:, None])
        # One type throughout: mixed ones would take four times as long.
        precision = hits.cumsum(dim=1, dtype=torch.float64).div_(rank)
        return precision.mul_(counted).sum(dim=1) / (self.k or num_true)
