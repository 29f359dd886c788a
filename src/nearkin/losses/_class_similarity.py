"""From the similarities to a class's proxies to one similarity per class, and the spread of a class's proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nearkin.losses._fused import kernels_for

ClassSimilarity = Literal["softmax", "max", "mean"]
SlopeByProxy = Callable[[Tensor], tuple[Tensor, Tensor]]


def class_similarity(similarities: Tensor, kind: ClassSimilarity, *, gamma: float) -> Tensor:
    """One similarity per class, ``[N, C]``, of the similarities ``[N, C, K]`` to its proxies; differentiable.

    ``"softmax"`` weighs each proxy by the softmax of its similarity over γ, ``"max"`` takes the nearest proxy,
    ``"mean"`` all of them alike.

    >>> s = torch.tensor([[[0.0, 1.0]]])
    >>> [round(class_similarity(s, kind, gamma=0.5).item(), 4) for kind in ("softmax", "max", "mean")]
    [0.8808, 1.0, 0.5]
    """
    if similarities.shape[2] == 1:
        return similarities.squeeze(2)
    if kind == "max":
        return similarities.amax(2)
    if kind == "mean":
        return similarities.mean(2)
    return ((similarities / gamma).softmax(2) * similarities).sum(2)


def class_similarity_slope(similarities: Tensor, kind: ClassSimilarity, *, gamma: float) -> tuple[Tensor, SlopeByProxy]:
    """:func:`class_similarity`, and the function that takes ``∂L/∂S [N, C]`` on to the proxies, outside autograd.

    That function returns the slope and the similarities, both ``[N, C, K]``, and overwrites what it is given. In
    between, ``similarities`` are overwritten too: at the benchmarks' sizes ``[N, C, K]`` is by far the largest array of
    a step, so there are never more than two of them, and what one pass can recompute is not kept.
    """
    if similarities.shape[2] == 1:
        return similarities.squeeze(2), lambda slope: (slope.unsqueeze(2), similarities)
    if kind == "max":
        values, nearest = similarities.max(2, keepdim=True)

        def to_nearest(slope: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros_like(similarities).scatter_(2, nearest, slope.unsqueeze(2)), similarities

        return values.squeeze(2), to_nearest
    if kind == "mean":

        def to_all(slope: Tensor) -> tuple[Tensor, Tensor]:
            return slope.div_(similarities.shape[2]).unsqueeze(2).expand_as(similarities).contiguous(), similarities

        return similarities.mean(2), to_all
    # In units of γ. Similarities lie in [-1, 1], so their exponentials need no shift unless γ is tiny.
    scaled = similarities.div_(gamma)
    shift = scaled.amax(2, keepdim=True) if gamma < 0.02 else None
    share = scaled.exp() if shift is None else (scaled - shift).exp_()
    total = share.sum(2, keepdim=True)
    combined = share.mul_(scaled).sum(2, keepdim=True).div_(total).mul_(gamma)

    def by_softmax(slope: Tensor) -> tuple[Tensor, Tensor]:
        # ∂S/∂s_k = a_k (1 + (s_k − S)/γ) with a_k the softmax.
        if shift is None:
            torch.exp(scaled, out=share)
        else:
            torch.sub(scaled, shift, out=share).exp_()
        offset = 1.0 - combined / gamma
        share.mul_(slope.unsqueeze(2).div_(total)).mul_(scaled.add_(offset))
        return share, scaled.sub_(offset).mul_(gamma)

    return combined.squeeze(2), by_softmax


def proxy_spread(vectors: Tensor, norms: Tensor, *, tau: float) -> tuple[Tensor, Tensor]:
    """``tau`` times SoftTriple's regulariser of proxies ``[C, K, D]``, and the matrices ``[C, K, K]`` of its gradient.

    ``Reg = Σ_c Σ_{t<s} ‖p̂_cs − p̂_ct‖ / (C K (K−1))``, 0 when K = 1. ``matrices @ vectors`` is its derivative with
    respect to the vectors, whose ``norms [C, K]`` are given: neither normalised proxies nor their gradient are
    materialised. Two equal proxies pull on each other with gradient 0, not infinity.

    >>> value, _ = proxy_spread(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[1.0, 2.0]]), tau=1.0)
    >>> value
    tensor(0.7071)
    """
    classes, per_class, _ = vectors.shape
    weight = tau / max(1, classes * per_class * (per_class - 1))
    kernels = kernels_for(vectors)
    if kernels is not None:
        fused: tuple[Tensor, Tensor] = kernels.proxy_spread(vectors, norms, weight=weight)
        return fused
    lengths = norms[:, :, None] * norms[:, None, :]
    cosine = torch.bmm(vectors, vectors.mT).div_(lengths)
    distance = torch.rsub(cosine, 2.0, alpha=2.0).clamp_min_(0.0).sqrt_()
    distance.diagonal(dim1=1, dim2=2).zero_()
    value = distance.sum() * (weight / 2)
    pull = distance.masked_fill_(distance == 0, float("inf")).reciprocal_().mul_(-weight)
    along = cosine.mul_(pull).sum(2).div_(norms).div_(norms)
    matrices = pull.div_(lengths)
    matrices.diagonal(dim1=1, dim2=2).sub_(along)
    return value, matrices
