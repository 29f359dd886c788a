"""Normalised softmax: cross-entropy of cosine similarities over a temperature."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses._anchor import SampleWeights
from nearkin.losses._cross_entropy import cross_entropy_loss, cross_entropy_value_and_gradient
from nearkin.losses._proxy import ProxyLoss

__all__ = ["NormalizedSoftmax"]


class NormalizedSoftmax(ProxyLoss):
    r"""Normalised softmax loss (Zhai and Wu, BMVC 2019).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{s(x_i,p_{y_i})/T}}{\sum_c e^{s(x_i,p_c)/T}}

    with :math:`s` the cosine similarity. :class:`CosFace` and :class:`ArcFace` are the same with a margin on the true
    class; :class:`ProxyNCAPlusPlus` is the same loss in squared distances, with temperature 2T.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        temperature: T.

    Example:
        >>> import torch
        >>> loss = NormalizedSoftmax(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).shape
        torch.Size([])
    """

    takes_lengths = True

    def __init__(self, num_classes: int, dim: int, *, temperature: float = 0.05) -> None:
        super().__init__(num_classes, dim)
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        return cross_entropy_loss(similarities, labels, scale=1.0 / self.temperature)

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy_value_and_gradient(similarities, labels, scale=1.0 / self.temperature, lengths=lengths)
