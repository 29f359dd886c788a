"""Triplet loss over all triplets, without listing them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs, hardest_negatives
from nearkin.numerics import Normalisation, check_choice, check_positive

__all__ = ["Triplet"]


class Triplet(PairLoss):
    r"""Triplet loss (Schroff et al., CVPR 2015) over every anchor, positive and negative.

    .. math::
        [d_{ap} - d_{an} + m]_+, \quad \text{averaged over the triplets for which it is not zero}

    with :math:`d` the Euclidean distance of the normalised vectors. Needs batches in which classes have at least two
    samples, or references; with references the positive and the negative of a triplet are both references.

    The hinge is linear, so the sum needs only the number of active triplets of each pair. Two sorts per anchor count
    them in N·M·log M time with a few ``[N, M]`` arrays, while there are N·M² triplets.

    Args:
        margin: m. CCP's values: 0.0961 (CUB), 0.1190 (Cars), 0.0451 (SOP, In-shop).
        squared: compare squared distances, as Schroff et al. and equation (3.2) of the PROFS paper do.
        mining: ``"all"`` triplets; ``"semihard"``: those whose negative is farther than the positive, but by less
            than the margin; ``"hard"``: those whose negative is at most as far as the positive.
        reduction: ``"nonzero"`` averages the triplets whose term is not zero; ``"triplets"`` all of them, equation
            (3.2) of the PROFS paper, where those that ``mining`` excludes count as zero.
        negatives: ``"all"`` negative pairs of each sample, or its ``"hard"`` ones: the nearest, as many as it has
            positive pairs (PROFS, section 5.3).
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> loss = Triplet(margin=0.2)
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(0.2000)
    """

    representatives = "balanced anchors"

    def __init__(
        self,
        *,
        margin: float = 0.2,
        squared: bool = False,
        mining: Literal["all", "semihard", "hard"] = "all",
        reduction: Literal["nonzero", "triplets"] = "nonzero",
        negatives: Literal["all", "hard"] = "all",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_positive(margin=margin)
        check_choice("all", "semihard", "hard", mining=mining)
        check_choice("nonzero", "triplets", reduction=reduction)
        check_choice("all", "hard", negatives=negatives)
        self.margin = margin
        self.squared = squared
        self.mining = mining
        self.reduction = reduction
        self.negatives = negatives

    def from_pairs(self, pairs: Pairs) -> Tensor:
        if self.negatives == "hard":
            pairs = hardest_negatives(pairs)
        distance = pairs.distance(squared=self.squared)
        with torch.no_grad():
            pulls, pushes = self._active_triplets(distance, pairs)
            active = triplets = pulls.sum()
            if self.reduction == "triplets":
                triplets = (pairs.positive.sum(dim=1) * pairs.negative.sum(dim=1)).sum()
            triplets = triplets.clamp_min(1).to(distance.dtype)
            weights = (pulls - pushes) / triplets
        return (weights * distance).sum() + self.margin * (active / triplets)

    def _active_triplets(self, distance: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """The number of active triplets with each pair as the positive, and as the negative one, ``[N, M]``."""
        negatives = distance.masked_fill(~pairs.negative, float("inf")).sort(dim=1).values
        positives = distance.masked_fill(~pairs.positive, float("-inf")).sort(dim=1).values
        columns = distance.shape[1]
        if self.mining in ("all", "semihard"):
            pulls = torch.searchsorted(negatives, distance + self.margin)
            pushes = columns - torch.searchsorted(positives + self.margin, distance, right=True)
        if self.mining in ("hard", "semihard"):
            hard_pulls = torch.searchsorted(negatives, distance, right=True)
            hard_pushes = columns - torch.searchsorted(positives, distance)
            if self.mining == "hard":
                pulls, pushes = hard_pulls, hard_pushes
            else:
                pulls, pushes = pulls - hard_pulls, pushes - hard_pushes
        return torch.where(pairs.positive, pulls, 0), torch.where(pairs.negative, pushes, 0)
