"""Contrastive loss with two margins on Euclidean distances."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nearkin.inputs import check_choice
from nearkin.losses._pair import PairLoss, Pairs, mean_where
from nearkin.numerics import Normalisation

__all__ = ["Contrastive"]


class Contrastive(PairLoss):
    r"""Contrastive loss (Hadsell et al., CVPR 2006) with a margin for each kind of pair.

    .. math::
        [d - m_+]_+ \text{ for positive pairs}, \qquad [m_- - d]_+ \text{ for negative pairs}

    with :math:`d` the Euclidean distance of the normalised vectors. Needs batches in which classes have at least two
    samples, or references. The C2 loss of the CCP paper is this one with its margins; C1 is
    :class:`~nearkin.losses.CosineContrastive`.

    Args:
        pos_margin: m₊, the distance below which a positive pair is near enough.
        neg_margin: m₋, the distance beyond which a negative pair is far enough.
        reduction: ``"nonzero"`` averages the non-zero terms of each kind and adds the two means; ``"pairs"`` divides
            the sum of all terms by the number of pairs.
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> import torch
        >>> loss = Contrastive(pos_margin=0.0, neg_margin=0.5)
        >>> loss(torch.eye(2), torch.tensor([1, 1]))
        tensor(1.4142)
    """

    representatives = "balanced anchors"

    def __init__(
        self,
        *,
        pos_margin: float = 0.0,
        neg_margin: float = 0.5,
        reduction: Literal["nonzero", "pairs"] = "nonzero",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_choice("nonzero", "pairs", reduction=reduction)
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.reduction = reduction

    def from_pairs(self, pairs: Pairs) -> Tensor:
        distance = pairs.distance()
        pull = pairs.positive & (distance > self.pos_margin)
        push = pairs.negative & (distance < self.neg_margin)
        if self.reduction == "nonzero":
            return mean_where(distance - self.pos_margin, pull) + mean_where(self.neg_margin - distance, push)
        total = ((distance - self.pos_margin) * pull).sum() + ((self.neg_margin - distance) * push).sum()
        return total / (pairs.positive | pairs.negative).sum().clamp_min(1)
