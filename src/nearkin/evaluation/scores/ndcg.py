"""Normalised discounted cumulative gain at k."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from nearkin.evaluation.scores._score import RetrievalScore

__all__ = ["NDCG"]


class NDCG(RetrievalScore):
    """``nDCG@k``: Σ over i ≤ k of (2^rel_i − 1) / log2(i + 1), over its best value, that of min(k, R) hits first."""

    meanings: ClassVar = {
        "nDCG@k": "How good the order of the first k images is, relative to the best possible one; "
        "high ranks count for more."
    }

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        hits, best_hits = hits[:, : self.k], num_true.clamp_max(self.k)
        discount = 1.0 / torch.log2(torch.arange(2, max(hits.shape[1], int(best_hits.max())) + 2, dtype=torch.float64))
        # Both sums are taken place by place, so that a perfect ranking has exactly 1.
        gained = (hits * discount[: hits.shape[1]]).cumsum(dim=1)[:, -1]
        return gained / discount.cumsum(dim=0)[best_hits - 1]
