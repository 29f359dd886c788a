"""ArcFace: cross-entropy of cosine similarities with a margin added to the angle to the true class."""

from __future__ import annotations

import math

from torch import Tensor

from nearkin.losses._anchor import SampleWeights
from nearkin.losses._cross_entropy import cross_entropy_loss, cross_entropy_value_and_gradient
from nearkin.losses._proxy import ProxyLoss

__all__ = ["ArcFace"]


class ArcFace(ProxyLoss):
    r"""ArcFace, the additive angular margin loss (Deng et al., CVPR 2019).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{a\cos(\theta_i+m)}}{e^{a\cos(\theta_i+m)}+\sum_{c\ne y_i}e^{a\,s(x_i,p_c)}}

    with :math:`s` the cosine similarity and :math:`\theta_i` the angle between sample i and the proxy of its class.
    Beyond :math:`\theta_i = \pi - m`, where the cosine would rise again, :math:`\cos\theta_i - m\sin m` takes its
    place, as in the authors' code: the paper says nothing of it, and without it a sample opposite to its proxy would be
    pushed further away. Where sample and proxy coincide or are opposite the angle has no derivative, and the margin
    is left out of the gradient.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        scale: a.
        margin: m, in radians.

    Example:
        >>> import torch
        >>> loss = ArcFace(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).shape
        torch.Size([])
    """

    takes_lengths = True

    def __init__(self, num_classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__(num_classes, dim)
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin is an angle in radians and must lie in [0, π), got {margin}")
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        return cross_entropy_loss(similarities, labels, scale=self.scale, margin=self.margin, on_angle=True)

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy_value_and_gradient(
            similarities, labels, scale=self.scale, margin=self.margin, on_angle=True, lengths=lengths
        )
