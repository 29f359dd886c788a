"""Lifted structure loss: every positive pair against all negatives of both its ends."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs, mean_where
from nearkin.numerics import Normalisation, log_sum_exp_where

__all__ = ["LiftedStructure"]


class LiftedStructure(PairLoss):
    r"""Lifted structure loss (Oh Song et al., CVPR 2016).

    .. math::
        \frac{1}{2|P|}\sum_{(i,j)\in P}\Big[\log\Big(\sum_{k:\,y_k\ne y_i}e^{m_- - d_{ik}}
        +\sum_{l:\,y_l\ne y_j}e^{m_- - d_{jl}}\Big) + d_{ij} - m_+\Big]_+^2

    with :math:`P` the positive pairs and :math:`d` the Euclidean distance of the normalised vectors. Like
    :class:`~nearkin.losses.Triplet` with a soft choice of the nearest negative. Needs batches in which classes have at
    least two samples, or references; :math:`j` and :math:`k` are then references and :math:`l` is in the batch (PROFS,
    section 5.3). A pair without negatives costs nothing.

    Args:
        neg_margin: m₋, the paper's α.
        pos_margin: m₊, taken off the distance of a positive pair; 0 in the paper.
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> loss = LiftedStructure()
        >>> loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(0.)
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(1.0405)
    """

    def __init__(
        self, *, neg_margin: float = 1.0, pos_margin: float = 0.0, normalisation: Normalisation = "l2"
    ) -> None:
        super().__init__(normalisation=normalisation)
        self.neg_margin = neg_margin
        self.pos_margin = pos_margin

    def from_pairs(self, pairs: Pairs) -> Tensor:
        distance = pairs.distance()
        push = self.neg_margin - distance
        near_query = log_sum_exp_where(push, pairs.negative, dim=1)
        near_reference = log_sum_exp_where(push, pairs.negative, dim=0)
        violation = torch.logaddexp(near_query[:, None], near_reference) + distance - self.pos_margin
        return 0.5 * mean_where(violation.clamp_min(0.0).square(), pairs.positive)
