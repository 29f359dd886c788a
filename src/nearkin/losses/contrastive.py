"""Contrastive loss with two margins on Euclidean distances."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs, hardest_negatives, mean_where
from nearkin.numerics import Normalisation, check_choice

__all__ = ["Contrastive"]


class Contrastive(PairLoss):
    r"""Contrastive loss (Hadsell et al., CVPR 2006) with a margin for each kind of pair.

    .. math::
        [d - m_+]_+^q \text{ for positive pairs}, \qquad [m_- - d]_+^q \text{ for negative pairs}

    with :math:`d` the Euclidean distance of the normalised vectors and :math:`q` the ``power``. Needs batches in which
    classes have at least two samples, or references. This is the C2 loss of the CCP paper; C1 is
    :class:`~nearkin.losses.CosineContrastive`. The contrastive loss of the PROFS paper (equation 3.1) has ``power=2``,
    ``reduction="pairs"`` and no ``pos_margin``, since with hard pairs a linear hinge shrinks the whole embedding.

    Args:
        pos_margin: m₊, the distance up to which a positive pair costs nothing.
        neg_margin: m₋, the distance from which on a negative pair costs nothing.
        reduction: ``"nonzero"`` averages the non-zero terms of each kind and adds the two means; ``"pairs"`` divides
            the sum of all terms by the number of pairs.
        power: q, 1 or 2.
        negatives: ``"all"`` negative pairs of each sample, or its ``"hard"`` ones: the nearest, as many as it has
            positive pairs (PROFS, section 5.3).
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
        power: Literal[1, 2] = 1,
        negatives: Literal["all", "hard"] = "all",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_choice("nonzero", "pairs", reduction=reduction)
        check_choice("all", "hard", negatives=negatives)
        if power not in (1, 2):
            raise ValueError(f"power must be 1 or 2, got {power!r}")
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.reduction = reduction
        self.power = power
        self.negatives = negatives

    def from_pairs(self, pairs: Pairs) -> Tensor:
        if self.negatives == "hard":
            pairs = hardest_negatives(pairs)
        distance = pairs.distance()
        pull = pairs.positive & (distance > self.pos_margin)
        push = pairs.negative & (distance < self.neg_margin)
        too_far, too_near = distance - self.pos_margin, self.neg_margin - distance
        if self.power == 2:
            too_far, too_near = too_far.square(), too_near.square()
        if self.reduction == "nonzero":
            return mean_where(too_far, pull) + mean_where(too_near, push)
        total = (too_far * pull).sum() + (too_near * push).sum()
        return total / (pairs.positive | pairs.negative).sum().clamp_min(1)
