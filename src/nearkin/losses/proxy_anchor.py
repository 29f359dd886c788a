"""Proxy-Anchor: every proxy pulls its batch samples and pushes the others, hardest first."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nearkin.losses.informative_samples import InformativeSampleWeights, PairWeights
from nearkin.losses.proxy_loss import ProxyLoss, positives_and_negatives
from nearkin.numerics import check_choice, check_positive, log1p_exp, log1p_sum_exp_by_label

__all__ = ["ProxyAnchor"]

PositiveNorm = Literal["present", "all"]


class ProxyAnchor(ProxyLoss):
    r"""Proxy-Anchor loss (Kim et al., CVPR 2020).

    .. math::
        \frac{1}{|C^+|}\sum_{c\in C^+}\log\Big(1+\sum_{x\in X^+_c}e^{\alpha(\delta-s(x,p_c))}\Big)
        +\frac{1}{C}\sum_{c}\log\Big(1+\sum_{x\in X^-_c}e^{\alpha(s(x,p_c)+\delta)}\Big)

    with :math:`s` the cosine similarity, :math:`C^+` the classes in the batch, :math:`X^+_c` the batch samples of
    class c and :math:`X^-_c` the others. Works with any batch sampler; a class needs no second sample.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        margin: δ.
        alpha: scale α.
        positive_norm: divide the first sum by the classes present in the batch (``"present"``) or by all classes
            (``"all"``, equation 4 of the VCPA paper).
        weighting: weigh pairs by how informative they are; :class:`ProxyISA` is this loss with such a weighting.

    Example:
        >>> loss = ProxyAnchor(num_classes=10, dim=8)
        >>> value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> value.shape, loss.bank.vectors.shape
        (torch.Size([]), torch.Size([10, 1, 8]))
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.1,
        alpha: float = 32.0,
        positive_norm: PositiveNorm = "present",
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__(num_classes, dim, weighting=weighting)
        check_positive(alpha=alpha)
        check_choice("present", "all", positive_norm=positive_norm)
        self.margin = margin
        self.alpha = alpha
        self.positive_norm = positive_norm

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        return proxy_anchor(
            similarities,
            labels,
            alpha=self.alpha,
            margin=self.margin,
            positive_norm=self.positive_norm,
            weights=self.pair_weights(similarities, labels),
        )


def proxy_anchor(
    similarities: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    margin: float,
    positive_norm: PositiveNorm = "present",
    weights: PairWeights | None = None,
) -> Tensor:
    """Proxy-Anchor of class similarities ``[N, C]``.

    With weights it is equation (13) of the ISA paper: ``alpha · weight`` stands for ``alpha``, and the two sums are
    divided by the sums of the classes' mean weights.

    >>> proxy_anchor(torch.tensor([[0.1, -0.1]]), torch.tensor([0]), alpha=32.0, margin=0.1)
    tensor(1.0397)
    """
    classes = similarities.shape[1]
    if weights is None:
        positive, negatives = positives_and_negatives(similarities, labels, scale=alpha, over="samples")
        pull = log1p_sum_exp_by_label(alpha * (margin - positive), labels, classes)
        push = log1p_exp(negatives + alpha * margin)
        present = similarities.new_zeros(classes).index_fill_(0, labels, 1.0).sum()
        return pull.sum() / (present if positive_norm == "present" else classes) + push.sum() / classes
    positive = similarities.gather(1, labels[:, None]).squeeze(1)
    weighted = weights.negative * (similarities + margin)
    _, negatives = positives_and_negatives(weighted, labels, scale=alpha, over="samples")
    pull = log1p_sum_exp_by_label(weights.positive * alpha * (margin - positive), labels, classes)
    push = log1p_exp(negatives)
    mean_positive, mean_negative = _mean_weights(weights, labels, absent=0.0 if positive_norm == "present" else 1.0)
    return pull.sum() / mean_positive.sum() + push.sum() / mean_negative.sum()


def _mean_weights(weights: PairWeights, labels: Tensor, *, absent: float) -> tuple[Tensor, Tensor]:
    """Of every class ``[C]`` the mean weight of its positives (``absent`` without any) and of its negatives (1)."""
    samples, classes = weights.negative.shape
    zeros = weights.positive.new_zeros(classes)
    count = zeros.index_add(0, labels, torch.ones_like(weights.positive))
    positive = zeros.index_add(0, labels, weights.positive) / count
    of_positives = weights.negative.gather(1, labels[:, None]).squeeze(1)
    negative = weights.negative.sum(0).index_add(0, labels, of_positives, alpha=-1) / (samples - count)
    return torch.where(count > 0, positive, absent), torch.where(count < samples, negative, 1.0)
