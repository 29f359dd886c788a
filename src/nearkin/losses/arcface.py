"""ArcFace: cross-entropy of cosine similarities with a margin added to the angle to the true class."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive, safe_sqrt

__all__ = ["ArcFace"]


class ArcFace(ProxyLoss):
    r"""ArcFace, the additive angular margin loss (Deng et al., CVPR 2019).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{a\cos(\theta_i+m)}}{e^{a\cos(\theta_i+m)}+\sum_{c\ne y_i}e^{a\,s(x_i,p_c)}}

    with :math:`s` the cosine similarity and :math:`\theta_i` the angle between sample i and the proxy of its class.
    Beyond :math:`\theta_i = \pi - m`, where the cosine would rise again, it is replaced by
    :math:`\cos\theta_i - m\sin m`, as in the authors' code. Where sample and proxy coincide or are opposite, the angle
    has no derivative and the gradient is without the margin.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        scale: a.
        margin: m, in radians.

    Example:
        >>> loss = ArcFace(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(self, num_classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__(num_classes, dim)
        check_positive(scale=scale)
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin is an angle in radians and must lie in [0, π), got {margin}")
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        column = labels[:, None]
        cosine = similarities.gather(1, column)
        turned = math.cos(self.margin) * cosine - math.sin(self.margin) * safe_sqrt(1.0 - cosine.square())
        beyond = cosine - self.margin * math.sin(self.margin)
        positive = torch.where(cosine >= -math.cos(self.margin), turned, beyond)
        return F.cross_entropy(self.scale * similarities.scatter(1, column, positive), labels)
