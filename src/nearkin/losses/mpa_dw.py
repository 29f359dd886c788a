"""MPA-DW: the data-wise form of MPA."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses.class_similarities import ClassSimilarity
from nearkin.losses.proxy_loss import ProxyLoss, positives_and_negatives
from nearkin.numerics import check_positive, log1p_exp

__all__ = ["DataWiseMultiProxyAnchor"]


class DataWiseMultiProxyAnchor(ProxyLoss):
    r"""Data-wise multi-proxies anchor loss, MPA-DW (Saeki et al., 2023).

    .. math::
        \frac{1}{N}\sum_i\Big[\log\big(1+e^{-\alpha(S(x_i,y_i)-\delta)}\big)
        +\log\Big(1+\sum_{c\ne y_i}e^{\alpha(S(x_i,c)+\delta)}\Big)\Big] + \tau\,\text{Reg}

    (equation 13) with the class similarity :math:`S` and the regulariser of :class:`SoftTriple`. Same as
    :class:`MultiProxyAnchor`, but the sums are over the classes for each sample instead of over the samples for each
    class, so a sample's gradient does not depend on the rest of the batch.

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
        >>> import torch
        >>> loss = DataWiseMultiProxyAnchor(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 10,
        alpha: float = 32.0,
        margin: float = 0.1,
        gamma: float = 0.1,
        tau: float = 0.2,
        class_similarity: ClassSimilarity = "softmax",
        start_scale: float = 1.0,
    ) -> None:
        super().__init__(
            num_classes,
            dim,
            proxies_per_class=proxies_per_class,
            class_similarity=class_similarity,
            gamma=gamma,
            tau=tau,
            start_scale=start_scale,
        )
        check_positive(alpha=alpha)
        self.alpha = alpha
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        positive, negatives = positives_and_negatives(similarities, labels, scale=self.alpha, over="classes")
        pull, push = self.alpha * (self.margin - positive), negatives + self.alpha * self.margin
        return (log1p_exp(pull) + log1p_exp(push)).mean()
