"""Proxy-NCA: each sample nearer to the proxy of its class than to all the others together."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from nearkin.inputs import check_positive
from nearkin.losses._blocks import Parts
from nearkin.losses._class_block import Negatives
from nearkin.losses._informative import InformativeSampleWeights, SampleWeights
from nearkin.losses._proxy import ProxyLoss
from nearkin.numerics import log_sum_exp_

__all__ = ["ProxyNCA"]


class ProxyNCA(ProxyLoss):
    r"""Proxy-NCA loss (Movshovitz-Attias et al., ICCV 2017).

    .. math::
        -\frac{1}{N}\sum_i\log\frac{e^{-t\,d^2(x_i,p_{y_i})}}{\sum_{c\ne y_i}e^{-t\,d^2(x_i,p_c)}}

    with :math:`d` the Euclidean distance of the normalised vectors, :math:`d^2 = 2 - 2s`. The true class is not in the
    denominator, so the loss can be negative and its pull never fades; :class:`ProxyNCAPlusPlus` is the same with it
    in. Needs at least two classes.

    With ``weighting`` (appendix E.2 of the ISA paper, which gives no formula) the scale of each pair is multiplied by
    its weight where the loss is written in similarities, as equation (13) does it for Proxy-Anchor:
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
        if num_classes < 2:
            raise ValueError(
                f"num_classes must be at least 2, as Proxy-NCA compares with other classes, got {num_classes}"
            )
        check_positive(scale=scale)
        self.scale = scale

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        # −t d² = 2ts − 2t, and the constant cancels.
        own = F.one_hot(labels, self.num_classes).bool()
        exponents = others = 2.0 * self.scale * similarities
        if weights is not None:
            exponents, others = weights.positive[:, None] * exponents, weights.negative * others
        return (others.masked_fill(own, float("-inf")).logsumexp(1) - exponents[own]).mean()

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        scale, column = 2.0 * self.scale, labels[:, None]
        own_scale: float | Tensor = scale if weights is None else scale * weights.positive
        own = own_scale * similarities.gather(1, column).squeeze(1)
        exponents = similarities * scale
        if weights is not None:
            exponents.mul_(weights.negative)
        exponents.scatter_(1, column, float("-inf"))
        loss = (log_sum_exp_(exponents, 1, factor=scale / len(labels)) - own).mean()
        if weights is None:
            return loss, exponents.scatter_(1, column, -scale / len(labels))
        exponents.mul_(weights.negative)
        return loss, exponents.scatter_(1, column, weights.positive[:, None] * (-scale / len(labels)))

    @property
    def negatives(self) -> Negatives:
        return Negatives("classes", 2.0 * self.scale)

    def from_parts(self, parts: Parts) -> Tensor:
        own = parts.own if parts.positive is None else parts.positive * parts.own
        return (parts.others - 2.0 * self.scale * own).mean()
