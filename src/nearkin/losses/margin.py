"""Margin loss: a learned boundary between near and far."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nearkin.losses.pair_loss import PairLoss, Pairs, hardest_negatives
from nearkin.numerics import Normalisation, check_choice

__all__ = ["Margin"]


class Margin(PairLoss):
    r"""Margin loss (Wu et al., ICCV 2017) with a trainable boundary.

    .. math::
        [d - \beta + \delta]_+ \text{ for positive pairs}, \qquad [\beta + \delta - d]_+ \text{ for negative pairs}

    with :math:`d` the Euclidean distance of the normalised vectors. :class:`~nearkin.losses.Contrastive` with the
    margins β − δ and β + δ, except that β is a Parameter and that the two kinds of pairs weigh the same: each positive
    pair of an anchor meets each of its negative pairs, the mean of what Wu et al. draw. Needs batches in which classes
    have at least two samples, or references.

    Args:
        margin: δ, half the width of the band around the boundary.
        beta: start of the boundary β; ``loss.beta`` is the Parameter and belongs in the optimiser.
        reduction: ``"nonzero"`` counts a positive pair once for each negative of its anchor, a negative pair once for
            each positive, and averages the non-zero terms; ``"pairs"`` divides the plain sum by the number of pairs,
            equation (3.3) of the PROFS paper.
        hard_pairs: keep of each sample's negative pairs only the nearest, as many as it has positive pairs: the
            hard mining of PROFS (section 5.3).
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> loss = Margin(beta=1.2, margin=0.2)
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(0.4142, grad_fn=<DivBackward0>)
    """

    representatives = "balanced anchors"

    def __init__(
        self,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        reduction: Literal["nonzero", "pairs"] = "nonzero",
        hard_pairs: bool = False,
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_choice("nonzero", "pairs", reduction=reduction)
        self.margin = margin
        self.beta = nn.Parameter(torch.tensor(float(beta)))
        self.reduction = reduction
        self.hard_pairs = hard_pairs

    def from_pairs(self, pairs: Pairs) -> Tensor:
        if self.hard_pairs:
            pairs = hardest_negatives(pairs)
        distance = pairs.distance()
        beta = self.beta.to(distance.dtype)
        pull = torch.where(pairs.positive, (distance - beta + self.margin).clamp_min(0.0), 0.0)
        push = torch.where(pairs.negative, (beta + self.margin - distance).clamp_min(0.0), 0.0)
        terms = pull + push
        if self.reduction == "pairs":
            return terms.sum() / (pairs.positive | pairs.negative).sum().clamp_min(1)
        positives = pairs.positive.sum(dim=1, keepdim=True)
        negatives = pairs.negative.sum(dim=1, keepdim=True)
        times = torch.where(pairs.positive, negatives, positives)
        return (times * terms).sum() / (times * (terms > 0)).sum().clamp_min(1)
