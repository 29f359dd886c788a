"""Proxy-NCA++: Proxy-NCA as a proper softmax over all proxies, with a temperature."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive

__all__ = ["ProxyNCAPlusPlus"]


class ProxyNCAPlusPlus(ProxyLoss):
    r"""Proxy-NCA++ (Teh et al., ECCV 2020).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{-d^2(x_i,p_{y_i})/T}}{\sum_c e^{-d^2(x_i,p_c)/T}}

    with :math:`d` the Euclidean distance of the normalised vectors, :math:`d^2 = 2 - 2s`. Same as :class:`ProxyNCA`,
    but with the true class in the denominator, so the loss is a cross-entropy and never negative. It equals
    :class:`NormalizedSoftmax` with temperature T/2.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        temperature: T.

    Example:
        >>> import torch
        >>> loss = ProxyNCAPlusPlus(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(self, num_classes: int, dim: int, *, temperature: float = 0.1) -> None:
        check_positive(temperature=temperature)
        super().__init__(num_classes, dim)
        self.temperature = temperature

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        # −d²/T = 2s/T − 2/T, and the constant cancels.
        return F.cross_entropy(2.0 / self.temperature * similarities, labels)
