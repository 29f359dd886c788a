"""Angular loss: the angle at the negative of a triplet, bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs, mean_where, products
from nearkin.numerics import Normalisation

__all__ = ["Angular"]


class Angular(PairLoss):
    r"""Angular loss (Wang et al., ICCV 2017) over every pair of anchor and positive and all their negatives.

    .. math::
        \log\Big(1+\sum_n e^{4\tan^2\alpha\,(x_a+x_p)^\top x_n-2(1+\tan^2\alpha)\,x_a^\top x_p}\Big),
        \quad \text{averaged over the positive pairs}

    with :math:`x` the normalised vectors. It bounds the angle at the negative, which is independent of the triangle's
    scale; :class:`~nearkin.losses.Triplet` bounds a difference of distances. Needs batches in which classes have at
    least two samples, or references, which are then the positives and the negatives.

    Args:
        alpha: α in degrees, above 0 and at most 60: the angle opposite the shortest side is never larger.
        normalisation: ``"l2"`` or ``"ball"``.

    Example:
        >>> loss = Angular(alpha=45)
        >>> loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor(0.0181)
    """

    representatives = "positives"

    def __init__(self, *, alpha: float = 45.0, normalisation: Normalisation = "l2") -> None:
        super().__init__(normalisation=normalisation)
        if not 0 < alpha <= 60:
            raise ValueError(f"alpha must be above 0 and at most 60 degrees, got {alpha!r}")
        self.alpha = alpha

    def from_pairs(self, pairs: Pairs) -> Tensor:
        tan2 = math.tan(math.radians(self.alpha)) ** 2
        # exp((x_a + x_p)·x_n) is a product, so the sum over n is one matrix product for all (a, p). It cannot overflow:
        # with α <= 60° the exponents below are within ±12, ±12 and ±8.
        near = (4.0 * tan2 * pairs.similarity).exp()
        between = pairs.similarity if pairs.within_batch else products(pairs.references, pairs.references)
        total = products(torch.where(pairs.negative, near, 0.0), (4.0 * tan2 * between).exp())
        pull = (-2.0 * (1.0 + tan2) * pairs.similarity).exp()
        return mean_where(torch.log1p(pull * total), pairs.positive)
