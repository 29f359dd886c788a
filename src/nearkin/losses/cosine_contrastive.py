"""Contrastive loss on cosine similarities, summed over the pairs of a sample: C1 of the CCP paper."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs, mean_where
from nearkin.numerics import Normalisation, check_choice

__all__ = ["CosineContrastive"]


class CosineContrastive(PairLoss):
    r"""Contrastive loss on similarities, as the cross-batch memory paper (Wang et al., CVPR 2020) uses it.

    .. math::
        \frac{1}{N}\sum_i\Big(\sum_{j:\,y_j=y_i}(1-s_{ij}) + \sum_{j:\,y_j\ne y_i,\;s_{ij}>m}s_{ij}\Big)

    with :math:`s` the cosine similarity. This is the C1 loss of the CCP paper (its appendix, "Hyperparameters"). Unlike
    :class:`~nearkin.losses.Contrastive` it sums over the pairs of a sample, so it grows with the number of references.
    A negative pair's term jumps from 0 to m at the margin, and its gradient is constant.

    Args:
        margin: m, the similarity above which a negative pair is pushed apart.
        reduction: ``"queries"`` sums as written; ``"nonzero"`` adds the mean over positive pairs and the mean over the
            negative pairs beyond the margin. With many references, as in CCP, a sum lets negatives outweigh positives,
            and an untrained embedding collapses.
        normalisation: ``"l2"``, or ``"ball"``: s is then the inner product of the ball-normalised vectors.

    Example:
        >>> loss = CosineContrastive(margin=0.5)
        >>> loss(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor(0.5333)
    """

    representatives = "balanced anchors"

    def __init__(
        self,
        *,
        margin: float = 0.5,
        reduction: Literal["queries", "nonzero"] = "queries",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_choice("queries", "nonzero", reduction=reduction)
        self.margin = margin
        self.reduction = reduction

    def from_pairs(self, pairs: Pairs) -> Tensor:
        similarity = pairs.similarity
        push = pairs.negative & (similarity > self.margin)
        if self.reduction == "nonzero":
            return mean_where(1.0 - similarity, pairs.positive) + mean_where(similarity, push)
        total = torch.where(pairs.positive, 1.0 - similarity, 0.0).sum() + torch.where(push, similarity, 0.0).sum()
        return total / similarity.shape[0]
