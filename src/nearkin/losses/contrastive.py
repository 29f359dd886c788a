"""Contrastive loss with two margins on Euclidean distances."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nearkin.losses._pair import PairLoss
from nearkin.numerics import Normalisation, pairwise_distance

__all__ = ["Contrastive"]


class Contrastive(PairLoss):
    r"""Contrastive loss (Hadsell et al., CVPR 2006) with a margin for each kind of pair.

    .. math::
        [d - m_+]_+ \text{ for positive pairs}, \qquad [m_- - d]_+ \text{ for negative pairs}

    with :math:`d` the Euclidean distance of the normalised vectors. Needs batches in which classes have at least two
    samples, or references. The C2 loss of the CCP paper is this one with its margins (section 6.1).

    Args:
        pos_margin: m₊, the distance below which a positive pair is near enough.
        neg_margin: m₋, the distance beyond which a negative pair is far enough.
        reduction: ``"nonzero"`` averages the non-zero terms of each kind and adds the two means; ``"pairs"`` divides
            the sum of all terms by the number of pairs.
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> loss = Contrastive(pos_margin=0.0, neg_margin=0.5)
        >>> loss(torch.eye(2), torch.tensor([1, 1]))
        tensor(1.4142)
    """

    def __init__(
        self,
        *,
        pos_margin: float = 0.0,
        neg_margin: float = 0.5,
        reduction: Literal["nonzero", "pairs"] = "nonzero",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        if reduction not in ("nonzero", "pairs"):
            raise ValueError(f"reduction must be 'nonzero' or 'pairs', got {reduction!r}")
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.reduction = reduction

    def from_pairs(self, queries: Tensor, references: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        distance = pairwise_distance(queries, references)
        pull = torch.where(positive, (distance - self.pos_margin).clamp_min(0.0), 0.0)
        push = torch.where(negative, (self.neg_margin - distance).clamp_min(0.0), 0.0)
        if self.reduction == "pairs":
            return (pull.sum() + push.sum()) / (positive | negative).sum().clamp_min(1)
        return _mean_of_nonzero(pull) + _mean_of_nonzero(push)


def _mean_of_nonzero(terms: Tensor) -> Tensor:
    return terms.sum() / (terms > 0).sum().clamp_min(1)
