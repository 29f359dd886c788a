"""From embeddings and proxies to one cosine similarity per sample and class: the first step of every proxy loss.

This is the only place where proxy losses are tuned for speed. A formula on top of it is plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from nearkin.numerics import NORM_FLOOR, full_precision, l2_normalise, rounding_floor, safe_sqrt

ClassSimilarity = Literal["softmax", "max", "mean"]

BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Proxies are taken in blocks of about this size: what fits the caches of a processor, and enough to fill a GPU."""
KEPT_BYTES = 2**28
"""Similarities to the single proxies ``[K, N, C]`` are kept for the backward pass up to this size, and else computed
again."""


class Combination(NamedTuple):
    """How the K similarities of a sample to a class's proxies make one, and whether the proxies' spread is wanted."""

    kind: ClassSimilarity = "softmax"
    gamma: float = 0.1
    with_spread: bool = False


def class_similarities(
    embeddings: Tensor, vectors: Tensor, how: Combination, *, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """Similarities ``[N, C]`` of embeddings ``[N, D]`` to proxies ``[C, K, D]``, and :func:`proxy_spread` (or 0).

    The classes are computed ``block`` at a time, so that the only large arrays are the result and the gradients. The
    proxies are never copied: their lengths are divided out of the products. Can be differentiated twice.
    """
    if block is None:
        row = vectors.shape[1] * max(embeddings.shape) * vectors.element_size()
        block = max(1, BLOCK_BYTES.get(vectors.device.type, BLOCK_BYTES["cuda"]) // row)
    return _ClassSimilarities.apply(embeddings, vectors, how, block)  # type: ignore[no-untyped-call, no-any-return]


def plain_class_similarities(embeddings: Tensor, vectors: Tensor, how: Combination) -> tuple[Tensor, Tensor]:
    """:func:`class_similarities` as the papers write it; autograd differentiates it as often as one likes."""
    cosines = torch.einsum("nd,ckd->knc", l2_normalise(embeddings), l2_normalise(vectors))
    similarities = combine(cosines, how.kind, gamma=how.gamma)
    return similarities, proxy_spread(vectors) if how.with_spread else similarities.new_zeros(())


def combine(similarities: Tensor, kind: ClassSimilarity, *, gamma: float) -> Tensor:
    """One similarity per class, ``[N, C]``, of the similarities ``[K, N, C]`` to its K proxies.

    ``"softmax"`` weighs each proxy by the softmax of its similarity over γ, ``"max"`` takes the nearest proxy,
    ``"mean"`` takes the mean of all.

    >>> s = torch.tensor([0.0, 1.0])
    >>> [round(combine(s, kind, gamma=0.5).item(), 4) for kind in ("softmax", "max", "mean")]
    [0.8808, 1.0, 0.5]
    """
    if len(similarities) == 1:
        return similarities[0]
    if kind == "max":
        return similarities.max(0).values
    if kind == "mean":
        return similarities.mean(0)
    return ((similarities / gamma).softmax(0) * similarities).sum(0)


def proxy_spread(vectors: Tensor) -> Tensor:
    """``Σ_c Σ_{t<s} ‖p̂_cs − p̂_ct‖ / (C K (K−1))`` of proxies ``[C, K, D]``: the regulariser of SoftTriple.

    >>> proxy_spread(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
    tensor(0.7071)
    """
    return _spread_of_products(vectors @ vectors.mT, vectors.shape[2])


def _spread_of_products(products: Tensor, dim: int) -> Tensor:
    """:func:`proxy_spread` from the inner products ``[C, K, K]`` of each class's proxies.

    Two proxies that differ by rounding only pull on each other with gradient 0, not infinity.
    """
    classes, per_class, _ = products.shape
    lengths = products.diagonal(dim1=1, dim2=2).clamp_min(NORM_FLOOR**2).sqrt()
    squared = 2.0 - 2.0 * products / (lengths[:, :, None] * lengths[:, None, :])
    apart = squared > 2.0 * rounding_floor(dim, products.dtype)
    return safe_sqrt(torch.where(apart, squared, 0.0)).sum() / max(1, 2 * classes * per_class * (per_class - 1))


class _ClassSimilarities(Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, how: Combination, block: int) -> tuple[Tensor, Tensor]:
        classes, per_class, dim = vectors.shape
        blocks = _blocks(classes, block)
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
        unit = embeddings / norms
        lengths = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        similarities = unit.new_empty(len(unit), classes) if len(blocks) > 1 else None
        keep = per_class > 1 and len(unit) * lengths.numel() * unit.element_size() <= KEPT_BYTES
        kept = []
        spread, spread_slopes = unit.new_zeros(()), unit.new_empty(classes, per_class, per_class)
        for b in blocks:
            cosines = _cosines(unit, vectors[b], lengths[b])
            of_block = combine(cosines, how.kind, gamma=how.gamma)
            if similarities is not None:
                similarities[:, b] = of_block
            kept += [cosines] if keep else []
            if how.with_spread:
                share = len(vectors[b]) / classes
                products = torch.bmm(vectors[b], vectors[b].mT)
                value, slopes = _value_and_slopes(lambda x: _spread_of_products(x, dim), products)
                spread += share * value
                spread_slopes[b] = share * (slopes + slopes.mT)
        ctx.save_for_backward(embeddings, vectors, unit, norms, lengths, spread_slopes, *kept)
        ctx.how, ctx.blocks = how, blocks
        return of_block if similarities is None else similarities, spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, spread_gradient: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, vectors, unit, norms, lengths, spread_slopes, *kept = ctx.saved_tensors
        for_embeddings, for_vectors = ctx.needs_input_grad[:2]
        with full_precision(vectors.device.type):
            if torch.is_grad_enabled():  # create_graph=True: second derivatives are wanted
                return _differentiable_backward(embeddings, vectors, ctx.how, gradient, spread_gradient)
            unit_gradient = torch.zeros_like(unit)
            vectors_gradient = torch.empty_like(vectors, memory_format=torch.contiguous_format)
            for number, b in enumerate(ctx.blocks):
                slopes = gradient[None, :, b]
                if vectors.shape[1] > 1:
                    cosines = kept[number] if kept else _cosines(unit, vectors[b], lengths[b])
                    _, slopes = _value_and_slopes(
                        lambda x: combine(x, ctx.how.kind, gamma=ctx.how.gamma), cosines, gradient[:, b]
                    )
                for k, slope in enumerate(slopes / lengths[b].T[:, None]):
                    unit_gradient.addmm_(slope, vectors[b, k])
                    if for_vectors:
                        torch.mm(slope.T, unit, out=vectors_gradient[b, k])
                if for_vectors:
                    # Lengths do not matter, so what points along a proxy is taken off its gradient.
                    along = torch.linalg.vecdot(vectors_gradient[b], vectors[b]).div_(lengths[b]).div_(lengths[b])
                    vectors_gradient[b].addcmul_(vectors[b], along[:, :, None], value=-1.0)
                    if ctx.how.with_spread:
                        vectors_gradient[b].baddbmm_(spread_gradient * spread_slopes[b], vectors[b])
            along = torch.linalg.vecdot(unit_gradient, unit)[:, None]
            unit_gradient.addcmul_(unit, along, value=-1.0).div_(norms)
        return unit_gradient if for_embeddings else None, vectors_gradient if for_vectors else None, None, None


def _differentiable_backward(
    embeddings: Tensor, vectors: Tensor, how: Combination, gradient: Tensor, spread_gradient: Tensor
) -> tuple[Tensor | None, ...]:
    similarities, spread = plain_class_similarities(embeddings, vectors, how)
    inputs = [x for x in (embeddings, vectors) if x.requires_grad]
    found = list(torch.autograd.grad(similarities, inputs, gradient, create_graph=True, retain_graph=True))
    if spread.requires_grad:
        found[-1] = found[-1] + torch.autograd.grad(spread, vectors, spread_gradient, create_graph=True)[0]
    return found[0] if embeddings.requires_grad else None, found[-1] if vectors.requires_grad else None, None, None


def _value_and_slopes(
    function: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``function(x)`` and its derivative, by autograd on ``x`` alone."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = function(leaf)
    return value.detach(), torch.autograd.grad(value, leaf, upstream)[0]


def _blocks(classes: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, classes)) for start in range(0, classes, block)]


def _cosines(unit: Tensor, vectors: Tensor, lengths: Tensor) -> Tensor:
    """``[K, N, C]`` from unit vectors ``[N, D]`` and raw proxies ``[C, K, D]`` of known ``lengths [C, K]``."""
    products = unit.new_empty(vectors.shape[1], len(unit), len(vectors))
    for k, product in enumerate(products):
        torch.mm(unit, vectors[:, k].T, out=product)
    return products.div_(lengths.T[:, None])
