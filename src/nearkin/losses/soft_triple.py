"""SoftTriple: softmax with several proxies per class, so that a class may have several centres."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive

__all__ = ["SoftTriple"]


class SoftTriple(ProxyLoss):
    r"""SoftTriple loss (Qian et al., ICCV 2019).

    .. math::
        S(x,c) = \sum_k \frac{e^{s(x,p_{ck})/\gamma}}{\sum_l e^{s(x,p_{cl})/\gamma}}\,s(x,p_{ck}), \qquad
        -\frac{1}{N}\sum_i\log\frac{e^{\lambda(S(x_i,y_i)-\delta)}}
        {e^{\lambda(S(x_i,y_i)-\delta)}+\sum_{c\ne y_i}e^{\lambda S(x_i,c)}}
        + \tau\,\frac{\sum_c\sum_{t<s}\sqrt{2-2\,s(p_{cs},p_{ct})}}{CK(K-1)}

    with :math:`s` the cosine similarity and K proxies per class. The last term keeps the proxies of a class together,
    so that classes use as few centres as they need; it is 0 when K = 1. With K = 1 this is :class:`CosFace` with
    scale λ and margin δ.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        proxies_per_class: K. The benchmarks with few images per class take 2.
        scale: λ.
        gamma: γ, how sharply the nearest of a class's proxies is preferred.
        tau: τ, weight of the regulariser.
        margin: δ.

    Example:
        >>> import torch
        >>> loss = SoftTriple(num_classes=10, dim=8)
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
        scale: float = 20.0,
        gamma: float = 0.1,
        tau: float = 0.2,
        margin: float = 0.01,
    ) -> None:
        super().__init__(num_classes, dim, proxies_per_class=proxies_per_class, gamma=gamma, tau=tau)
        check_positive(scale=scale)
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        margins = similarities.new_full((len(labels), 1), -self.margin)
        return F.cross_entropy(self.scale * similarities.scatter_add(1, labels[:, None], margins), labels)
