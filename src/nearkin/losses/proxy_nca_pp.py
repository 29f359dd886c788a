"""Proxy-NCA++: Proxy-NCA as a proper softmax over all proxies, with a temperature."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses._anchor import SampleWeights
from nearkin.losses._cross_entropy import cross_entropy_loss, cross_entropy_value_and_gradient
from nearkin.losses._proxy import ProxyLoss

__all__ = ["ProxyNCAPlusPlus"]


class ProxyNCAPlusPlus(ProxyLoss):
    r"""Proxy-NCA++ (Teh et al., ECCV 2020).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{-d^2(x_i,p_{y_i})/T}}{\sum_c e^{-d^2(x_i,p_c)/T}}

    with :math:`d` the Euclidean distance of the normalised vectors, :math:`d^2 = 2 - 2s`. Same as :class:`ProxyNCA`,
    but the true class is part of the denominator, so the loss is a cross-entropy and never negative. It equals
    :class:`NormalizedSoftmax` with temperature T/2.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        temperature: T.

    Example:
        >>> import torch
        >>> loss = ProxyNCAPlusPlus(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).shape
        torch.Size([])
    """

    takes_lengths = True

    def __init__(self, num_classes: int, dim: int, *, temperature: float = 0.1) -> None:
        super().__init__(num_classes, dim)
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        # −d²/T = 2s/T − 2/T, and the constant cancels.
        return cross_entropy_loss(similarities, labels, scale=2.0 / self.temperature)

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy_value_and_gradient(similarities, labels, scale=2.0 / self.temperature, lengths=lengths)
