"""Multi-similarity loss: pairs weighed by their own and by their relative similarity."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.pair_loss import PairLoss, Pairs
from nearkin.numerics import Normalisation, check_positive, log_sum_exp_where

__all__ = ["MultiSimilarity"]


class MultiSimilarity(PairLoss):
    r"""Multi-similarity loss (Wang et al., CVPR 2019).

    .. math::
        \frac{1}{N}\sum_i\Big[\frac{1}{\alpha}\log\Big(1+\sum_{p\in P_i}e^{-\alpha(s_{ip}-\lambda)}\Big)
        +\frac{1}{\beta}\log\Big(1+\sum_{n\in N_i}e^{\beta(s_{in}-\lambda)}\Big)\Big]

    with :math:`s` the cosine similarity. Mining keeps the positives less similar than the most similar negative plus ε
    and the negatives more similar than the least similar positive minus ε; a sample without positives or negatives then
    adds nothing. Needs batches in which classes have at least two samples, or references.

    Args:
        alpha: α, scale of the positive pairs.
        beta: β, scale of the negative pairs.
        base: λ, the similarity around which both are measured. CCP's (α, β, λ): (2, 40, 0.5) for CUB and SOP,
            (14.35, 75.83, 0.66) for Cars, (8.49, 57.38, 0.41) for In-shop.
        mining: whether to mine; without it every pair counts.
        epsilon: ε of the mining.
        normalisation: ``"l2"``, or ``"ball"``: s is then the inner product of the ball-normalised vectors.

    Example:
        >>> loss = MultiSimilarity()
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
        tensor(0.5711)
    """

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        mining: bool = True,
        epsilon: float = 0.1,
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_positive(alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.mining = mining
        self.epsilon = epsilon

    def from_pairs(self, pairs: Pairs) -> Tensor:
        positive, negative = self._mine(pairs) if self.mining else (pairs.positive, pairs.negative)
        above = pairs.similarity - self.base
        pull = log_sum_exp_where(-self.alpha * above, positive, dim=1, extra_zero=True) / self.alpha
        push = log_sum_exp_where(self.beta * above, negative, dim=1, extra_zero=True) / self.beta
        return (pull + push).mean()

    @torch.no_grad()
    def _mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        similarity = pairs.similarity
        nearest_negative = similarity.masked_fill(~pairs.negative, float("-inf")).amax(dim=1, keepdim=True)
        farthest_positive = similarity.masked_fill(~pairs.positive, float("inf")).amin(dim=1, keepdim=True)
        positive = pairs.positive & (similarity - self.epsilon < nearest_negative)
        negative = pairs.negative & (similarity + self.epsilon > farthest_positive)
        return positive, negative
