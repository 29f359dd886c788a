"""Proxy-Anchor's two terms as a function of class similarities, shared by every loss that is built on them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses._fused import kernels_for
from nearkin.numerics import log1p_sum_exp, log_sum_exp_

PositiveNorm = Literal["present", "all"]


class SampleWeights(NamedTuple):
    """What each (sample, class) pair counts; constants to the gradient.

    ``positive [N]`` weighs a sample for its own class, ``negative [N, C]`` for every class; the entry of the own
    class in ``negative`` is ignored.
    """

    positive: Tensor
    negative: Tensor


def anchor_loss(
    similarities: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    margin: float,
    positive_norm: PositiveNorm = "present",
    weights: SampleWeights | None = None,
) -> Tensor:
    """Proxy-Anchor's loss of class similarities ``[N, C]`` and labels ``[N]``.

    With ``weights`` it is equation (13) of the ISA paper: ``alpha · weight`` for ``alpha``, and the two sums divided by
    the sums of the classes' mean weights. A class without positives (or without negatives) counts there with weight 1
    where it counts at all, so that weights of 1 give Proxy-Anchor for every batch.

    >>> anchor_loss(torch.tensor([[0.1, -0.1]]), torch.tensor([0]), alpha=32.0, margin=0.1)
    tensor(1.0397)
    """
    own = F.one_hot(labels, similarities.shape[1]).bool()
    pull, push = alpha * (margin - similarities), alpha * (similarities + margin)
    if weights is not None:
        pull, push = weights.positive[:, None] * pull, weights.negative * push
    pull_norm, push_norm = _norms(similarities, labels, positive_norm, weights)
    return log1p_sum_exp(pull, own, 0).sum() / pull_norm + log1p_sum_exp(push, ~own, 0).sum() / push_norm


def anchor_value_and_gradient(
    similarities: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    margin: float,
    positive_norm: PositiveNorm = "present",
    weights: SampleWeights | None = None,
) -> tuple[Tensor, Tensor]:
    """The value of :func:`anchor_loss` and its derivative ``[N, C]``, outside autograd.

    Positives are N entries, one per sample: they are gathered and summed by class. Only the negatives need ``[N, C]``.
    """
    pull_norm, push_norm = _norms(similarities, labels, positive_norm, weights)
    kernels = kernels_for(similarities)
    if kernels is not None:
        loss, gradient = kernels.anchor(
            similarities,
            labels,
            alpha=alpha,
            margin=margin,
            pull_norm=pull_norm,
            push_norm=push_norm,
            weights=weights,
        )
        return loss, gradient
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


def _norms(
    similarities: Tensor, labels: Tensor, positive_norm: PositiveNorm, weights: SampleWeights | None
) -> tuple[float | Tensor, float | Tensor]:
    """What the sum over positives and the sum over negatives are divided by."""
    samples, classes = similarities.shape
    zeros = similarities.new_zeros(classes)
    if weights is None:
        present = zeros.index_fill_(0, labels, 1.0).sum() if positive_norm == "present" else float(classes)
        return present, float(classes)
    count = zeros.index_add(0, labels, torch.ones_like(weights.positive))
    positive = zeros.index_add(0, labels, weights.positive) / count
    own = weights.negative.gather(1, labels[:, None]).squeeze(1)
    negative = weights.negative.sum(0).index_add_(0, labels, own, alpha=-1) / (samples - count)
    absent = 0.0 if positive_norm == "present" else 1.0
    return torch.where(count > 0, positive, absent).sum(), torch.where(count < samples, negative, 1.0).sum()
