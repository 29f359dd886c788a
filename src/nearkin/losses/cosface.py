"""CosFace: cross-entropy of cosine similarities with a margin taken off the true class."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import check_positive

__all__ = ["CosFace"]


class CosFace(ProxyLoss):
    r"""CosFace, the large margin cosine loss (Wang et al., CVPR 2018).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{a(s(x_i,p_{y_i})-m)}}{e^{a(s(x_i,p_{y_i})-m)}+\sum_{c\ne y_i}e^{a\,s(x_i,p_c)}}

    with :math:`s` the cosine similarity. Same as :class:`ArcFace`, but the margin is on the cosine, not on the angle.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        scale: a.
        margin: m.

    Example:
        >>> import torch
        >>> loss = CosFace(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(self, num_classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__(num_classes, dim)
        check_positive(scale=scale)
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        margins = similarities.new_full((len(labels), 1), -self.margin)
        return F.cross_entropy(self.scale * similarities.scatter_add(1, labels[:, None], margins), labels)
