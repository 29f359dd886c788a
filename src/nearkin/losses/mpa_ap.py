"""MPA-AP: the data-wise form of MPA that compares positives and negatives with each other."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.mpa_dw import DataWiseMultiProxyAnchor
from nearkin.losses.proxy_loss import positives_and_negatives
from nearkin.numerics import log1p_exp

__all__ = ["AllPairsMultiProxyAnchor"]


class AllPairsMultiProxyAnchor(DataWiseMultiProxyAnchor):
    r"""Data-wise and all-paired multi-proxies anchor loss, MPA-AP (Saeki et al., 2023).

    .. math::
        \frac{1}{N}\sum_i\log\Big(1+\sum_c e^{\alpha S'(x_i,c)}\Big) + \tau\,\text{Reg}, \qquad
        S'(x_i,c) = \begin{cases}\delta-S(x_i,c) & c=y_i\\ S(x_i,c)+\delta & c\ne y_i\end{cases}

    (equation 17) with the class similarity :math:`S` and the regulariser of :class:`SoftTriple`. Same as
    :class:`DataWiseMultiProxyAnchor`, but with the true class and the others in one sum, so the pull on a sample
    depends on the distance of the other classes.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        proxies_per_class: K; 2 where classes have few images (section 4.2).
        alpha: scale α; the paper does not give it, this is Proxy-Anchor's.
        margin: δ.
        gamma: γ, how sharply the nearest of a class's proxies is preferred.
        tau: τ, weight of the regulariser.
        class_similarity: ``"softmax"``, ``"max"`` or ``"mean"``, as in :class:`MultiProxyAnchor`.
        start_scale: factor on the proxies' initial length, as in :class:`MultiProxyAnchor`.

    Example:
        >>> loss = AllPairsMultiProxyAnchor(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        positive, negatives = positives_and_negatives(similarities, labels, scale=self.alpha, over="classes")
        pull, push = self.alpha * (self.margin - positive), negatives + self.alpha * self.margin
        return log1p_exp(torch.logaddexp(pull, push)).mean()
