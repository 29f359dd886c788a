"""Proxy-Anchor's two terms as a function of class similarities, shared by every loss that is built on them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.inputs import check_positive
from nearkin.losses._blocks import Parts
from nearkin.losses._class_block import Negatives
from nearkin.losses._fused import kernels_for
from nearkin.losses._informative import SampleWeights
from nearkin.losses._proxy import ProxyLoss
from nearkin.numerics import log1p_sum_exp, log_sum_exp_

PositiveNorm = Literal["present", "all"]


class AnchorLoss(ProxyLoss):
    """Proxy-Anchor's loss of class similarities, whatever proxies they are to: those are :class:`ProxyLoss`'s options.

    With weights it is equation (13) of the ISA paper: ``alpha · weight`` for ``alpha``, and the two sums divided by the
    sums of the classes' mean weights. A class without positives (or without negatives) counts there with weight 1
    where it counts at all, so that weights of 1 give Proxy-Anchor for every batch.

    >>> loss = AnchorLoss(num_classes=2, dim=8, alpha=32.0, margin=0.1)
    >>> loss.from_similarities(torch.tensor([[0.1, -0.1]]), torch.tensor([0]))
    tensor(1.0397)
    """

    positive_norm: PositiveNorm = "present"

    def __init__(self, num_classes: int, dim: int, *, alpha: float, margin: float, **of_proxies: Any) -> None:
        super().__init__(num_classes, dim, **of_proxies)
        check_positive(alpha=alpha)
        self.alpha = alpha
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        own = F.one_hot(labels, similarities.shape[1]).bool()
        pull, push = self.alpha * (self.margin - similarities), self.alpha * (similarities + self.margin)
        if weights is not None:
            pull, push = weights.positive[:, None] * pull, weights.negative * push
        pull_norm, push_norm = self._norms(similarities, labels, weights)
        return log1p_sum_exp(pull, own, 0).sum() / pull_norm + log1p_sum_exp(push, ~own, 0).sum() / push_norm

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        alpha, margin = self.alpha, self.margin
        pull_norm, push_norm = self._norms(similarities, labels, weights)
        kernels = kernels_for(similarities)
        if kernels is not None:
            norms = {"pull_norm": pull_norm, "push_norm": push_norm}
            loss, gradient = kernels.anchor(similarities, labels, alpha=alpha, margin=margin, weights=weights, **norms)
            return loss, gradient
        # Positives are N entries, one per sample, and are summed by class: only the negatives need [N, C].
        column = labels[:, None]
        pull_scale: float | Tensor = alpha if weights is None else alpha * weights.positive

        exponent = (margin - similarities.gather(1, column).squeeze(1)).mul_(pull_scale)
        top = similarities.new_zeros(similarities.shape[1]).scatter_reduce_(0, labels, exponent, "amax")
        share = exponent.sub_(top[labels]).exp_()
        total = (-top).exp_().index_add_(0, labels, share)
        pull_gradient = share.div_(total[labels]).mul_(-pull_scale / pull_norm)
        pull = total.log_().add_(top).div_(pull_norm)

        negative = (similarities + margin).mul_(alpha)
        if weights is not None:
            negative.mul_(weights.negative)
        negative.scatter_(1, column, float("-inf"))
        push = log_sum_exp_(negative, 0, extra_zero=True, factor=alpha / push_norm).div_(push_norm)
        if weights is not None:
            negative.mul_(weights.negative)
        return pull.add_(push).sum(), negative.scatter_(1, column, pull_gradient[:, None])

    @property
    def negatives(self) -> Negatives:
        return Negatives("samples", self.alpha, self.margin)

    def from_parts(self, parts: Parts) -> Tensor:
        own, others, labels, classes, positive, push_norm = parts
        zeros = own.new_zeros(classes)
        exponent = self.alpha * (self.margin - own) if positive is None else self.alpha * positive * (self.margin - own)
        top = zeros.scatter_reduce(0, labels, exponent.detach(), "amax")
        pull = ((-top).exp().index_add(0, labels, (exponent - top[labels]).exp()).log() + top).sum()
        if positive is None:
            positive = torch.ones_like(own)
        count = zeros.index_add(0, labels, torch.ones_like(own))
        mean = zeros.index_add(0, labels, positive) / count
        pull_norm = torch.where(count > 0, mean, 0.0 if self.positive_norm == "present" else 1.0).sum()
        return pull / pull_norm + others / push_norm

    def _norms(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None
    ) -> tuple[float | Tensor, float | Tensor]:
        """What the sum over positives and the sum over negatives are divided by."""
        samples, classes = similarities.shape
        zeros = similarities.new_zeros(classes)
        only_present = self.positive_norm == "present"
        if weights is None:
            return zeros.index_fill_(0, labels, 1.0).sum() if only_present else float(classes), float(classes)
        count = zeros.index_add(0, labels, torch.ones_like(weights.positive))
        positive = zeros.index_add(0, labels, weights.positive) / count
        own = weights.negative.gather(1, labels[:, None]).squeeze(1)
        negative = weights.negative.sum(0).index_add_(0, labels, own, alpha=-1) / (samples - count)
        absent = 0.0 if only_present else 1.0
        return torch.where(count > 0, positive, absent).sum(), torch.where(count < samples, negative, 1.0).sum()
