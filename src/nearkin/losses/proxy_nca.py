"""Proxy-NCA: each sample nearer to the proxy of its class than to all the others together."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses.informative_samples import InformativeSampleWeights
from nearkin.losses.proxy_loss import ProxyLoss, positives_and_negatives
from nearkin.numerics import check_at_least, check_positive

__all__ = ["ProxyNCA"]


class ProxyNCA(ProxyLoss):
    r"""Proxy-NCA loss (Movshovitz-Attias et al., ICCV 2017).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{-t\,d^2(x_i,p_{y_i})}}{\sum_{c\ne y_i}e^{-t\,d^2(x_i,p_c)}}

    with :math:`d` the Euclidean distance of the normalised vectors, :math:`d^2 = 2 - 2s`. The true class is not in the
    denominator, so the loss can be negative and its pull never vanishes; :class:`ProxyNCAPlusPlus` includes it. Needs
    at least two classes.

    With ``weighting`` (appendix E.2 of the ISA paper, which gives no formula) the similarity of each pair is multiplied
    by its weight, like equation (13) for Proxy-Anchor:
    :math:`-\log(e^{2t\omega^+ s_{y}}/\sum_{c\ne y}e^{2t\omega^- s_c})`.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        scale: t.
        weighting: weigh pairs by how informative they are.

    Example:
        >>> import torch
        >>> loss = ProxyNCA(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(
        self, num_classes: int, dim: int, *, scale: float = 3.0, weighting: InformativeSampleWeights | None = None
    ) -> None:
        super().__init__(num_classes, dim, weighting=weighting)
        check_at_least(2, num_classes=num_classes)
        check_positive(scale=scale)
        self.scale = scale

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        # −t d² = 2ts − 2t, and the constant cancels.
        scale, weights = 2.0 * self.scale, self.pair_weights(similarities, labels)
        positive, negatives = positives_and_negatives(similarities, labels, scale=scale, over="classes")
        if weights is not None:
            positive, weighted = weights.positive * positive, weights.negative * similarities
            _, negatives = positives_and_negatives(weighted, labels, scale=scale, over="classes")
        return (negatives - scale * positive).mean()
