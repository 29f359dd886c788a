"""MPA: Proxy-Anchor with several proxies per class."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses.class_similarities import ClassSimilarity
from nearkin.losses.informative_samples import InformativeSampleWeights
from nearkin.losses.proxy_anchor import proxy_anchor
from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive

__all__ = ["MultiProxyAnchor"]


class MultiProxyAnchor(ProxyLoss):
    r"""Multi-proxies anchor loss, MPA (Saeki et al., 2023).

    .. math::
        \frac{1}{|C^+|}\sum_{c\in C^+}\log\Big(1+\sum_{x\in X^+_c}e^{-\alpha(S(x,c)-\delta)}\Big)
        +\frac{1}{C}\sum_{c}\log\Big(1+\sum_{x\in X^-_c}e^{\alpha(S(x,c)+\delta)}\Big) + \tau\,\text{Reg}

    (equation 7) with the class similarity :math:`S` and the regulariser of :class:`SoftTriple`. Same as
    :class:`ProxyAnchor`, but a class may have several centres; with K = 1 and τ = 0 the two are equal. The paper's
    divisor of the second sum, the classes with a negative in the batch, is C unless the batch has only one class.
    :class:`DataWiseMultiProxyAnchor` and :class:`AllPairsMultiProxyAnchor` sum over classes.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        proxies_per_class: K; 2 where classes have few images (section 4.2).
        alpha: scale α; the paper does not give it, this is Proxy-Anchor's.
        margin: δ.
        gamma: γ, how sharply the nearest of a class's proxies is preferred.
        tau: τ, weight of the regulariser.
        class_similarity: how S combines the similarities to a class's proxies: weighted by their softmax
            (``"softmax"``), the largest (``"max"``) or their mean (``"mean"``).
        start_scale: factor on the proxies' initial length, which falls with √K; √K gives Proxy-Anchor's length.
        weighting: weigh pairs by how informative they are.

    Example:
        >>> import torch
        >>> loss = MultiProxyAnchor(num_classes=10, dim=8)
        >>> value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> value.shape, loss.bank.vectors.shape
        (torch.Size([]), torch.Size([10, 10, 8]))
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
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            dim,
            proxies_per_class=proxies_per_class,
            class_similarity=class_similarity,
            gamma=gamma,
            tau=tau,
            start_scale=start_scale,
            weighting=weighting,
        )
        check_positive(alpha=alpha)
        self.alpha = alpha
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        weights = self.pair_weights(similarities, labels)
        return proxy_anchor(similarities, labels, alpha=self.alpha, margin=self.margin, weights=weights)
