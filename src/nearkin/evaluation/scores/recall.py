"""Recall at k."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from nearkin.evaluation.scores._score import RetrievalScore

__all__ = ["Recall"]


class Recall(RetrievalScore):
    """``R@k``: 1 if any of the first k is true."""

    meanings: ClassVar = {
        "R@k": "Recall at k: the share of queries with at least one image of their class among the k most similar. "
        "R@1 asks whether the first one is correct."
    }

    first_hit_only = True

    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        return hits[:, : self.k].any(dim=1).double()
