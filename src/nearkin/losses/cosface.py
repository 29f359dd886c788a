"""CosFace: cross-entropy of cosine similarities with a margin taken off the true class."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses._anchor import SampleWeights
from nearkin.losses._cross_entropy import cross_entropy_loss, cross_entropy_value_and_gradient
from nearkin.losses._proxy import ProxyLoss

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
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).shape
        torch.Size([])
    """

    takes_lengths = True

    def __init__(self, num_classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__(num_classes, dim)
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        return cross_entropy_loss(similarities, labels, scale=self.scale, margin=self.margin)

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy_value_and_gradient(
            similarities, labels, scale=self.scale, margin=self.margin, lengths=lengths
        )
