"""Normalised softmax: cross-entropy of cosine similarities over a temperature."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive

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
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(self, num_classes: int, dim: int, *, temperature: float = 0.05) -> None:
        check_positive(temperature=temperature)
        super().__init__(num_classes, dim)
        self.temperature = temperature

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(similarities / self.temperature, labels)
