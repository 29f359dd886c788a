"""From the similarities to a class's proxies to one similarity per class, and the spread of a class's proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nearkin.losses._fused import kernels_for
from nearkin.losses._geometry import rounding_floor
from nearkin.numerics import l2_normalise, safe_sqrt

ClassSimilarity = Literal["softmax", "max", "mean"]
GradientByProxy = Callable[[Tensor], tuple[Tensor, Tensor]]


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


def class_similarity_and_gradient(
    similarities: Tensor, kind: ClassSimilarity, *, gamma: float
) -> tuple[Tensor, GradientByProxy]:
    """:func:`class_similarity`, and the function that takes ``∂L/∂S [N, C]`` on to the proxies, outside autograd.

    That function returns the gradient and the similarities, both ``[N, C, K]``, and overwrites what it is given. In
    between, ``similarities`` are overwritten too: at the benchmarks' sizes ``[N, C, K]`` is by far the largest array of
    a step, so there are never more than two of them, and what one pass can recompute is not kept.
    """
    if similarities.shape[2] == 1:
        return similarities.squeeze(2), lambda gradient: (gradient.unsqueeze(2), similarities)
    if kind == "max":
        values, nearest = similarities.max(2, keepdim=True)

        def to_nearest(gradient: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros_like(similarities).scatter_(2, nearest, gradient.unsqueeze(2)), similarities

        return values.squeeze(2), to_nearest
    if kind == "mean":

        def to_all(gradient: Tensor) -> tuple[Tensor, Tensor]:
            return gradient.div_(similarities.shape[2]).unsqueeze(2).expand_as(similarities).contiguous(), similarities

        return similarities.mean(2), to_all
    # In units of γ. Similarities lie in [-1, 1], so their exponentials need no shift unless γ is tiny.
    scaled = similarities.div_(gamma)
    shift = scaled.amax(2, keepdim=True) if gamma < 0.02 else None
    share = scaled.exp() if shift is None else (scaled - shift).exp_()
    total = share.sum(2, keepdim=True)
    combined = share.mul_(scaled).sum(2, keepdim=True).div_(total).mul_(gamma)

    def by_softmax(gradient: Tensor) -> tuple[Tensor, Tensor]:
        # ∂S/∂s_k = a_k (1 + (s_k − S)/γ) with a_k the softmax.
        if shift is None:
            torch.exp(scaled, out=share)
        else:
            torch.sub(scaled, shift, out=share).exp_()
        offset = 1.0 - combined / gamma
        share.mul_(gradient.unsqueeze(2).div_(total)).mul_(scaled.add_(offset))
        return share, scaled.sub_(offset).mul_(gamma)

    return combined.squeeze(2), by_softmax


def proxy_spread(vectors: Tensor, *, tau: float) -> Tensor:
    """``τ Reg`` of proxies ``[C, K, D]``, with ``Reg = Σ_c Σ_{t<s} ‖p̂_cs − p̂_ct‖ / (C K (K−1))``; 0 when K = 1.

    Two proxies that differ by rounding only pull on each other with gradient 0, not infinity.

    >>> proxy_spread(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), tau=1.0)
    tensor(0.7071)
    """
    unit = l2_normalise(vectors)
    squared = 2.0 - 2.0 * (unit @ unit.mT)
    return safe_sqrt(torch.where(squared > _spread_floor(vectors), squared, 0.0)).sum() * (
        _spread_weight(vectors, tau) / 2
    )


def _spread_weight(vectors: Tensor, tau: float) -> float:
    classes, per_class, _ = vectors.shape
    return tau / max(1, classes * per_class * (per_class - 1))


def _spread_floor(vectors: Tensor) -> float:
    """The squared distance that rounding may make of two equal unit vectors."""
    return 2.0 * rounding_floor(vectors.shape[2], vectors.dtype)


def proxy_spread_and_gradient(vectors: Tensor, norms: Tensor, *, tau: float) -> tuple[Tensor, Tensor]:
    """:func:`proxy_spread` of vectors whose ``norms [C, K]`` are known, and matrices ``[C, K, K]``.

    ``matrices @ vectors`` is its derivative with respect to the vectors: neither normalised proxies nor their gradient
    are materialised.

    >>> proxy_spread_and_gradient(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[1.0, 2.0]]), tau=1.0)[0]
    tensor(0.7071)
    """
    weight, floor = _spread_weight(vectors, tau), _spread_floor(vectors)
    kernels = kernels_for(vectors)
    if kernels is not None:
        fused: tuple[Tensor, Tensor] = kernels.proxy_spread(vectors, norms, weight=weight, floor=floor)
        return fused
    lengths = norms[:, :, None] * norms[:, None, :]
    cosine = torch.bmm(vectors, vectors.mT).div_(lengths)
    squared = torch.rsub(cosine, 2.0, alpha=2.0)
    distance = squared.mul_(squared > floor).sqrt_()
    distance.diagonal(dim1=1, dim2=2).zero_()
    value = distance.sum() * (weight / 2)
    pull = distance.masked_fill_(distance == 0, float("inf")).reciprocal_().mul_(-weight)
    along = cosine.mul_(pull).sum(2).div_(norms).div_(norms)
    matrices = pull.div_(lengths)
    matrices.diagonal(dim1=1, dim2=2).sub_(along)
    return value, matrices
