"""The first step of every proxy loss: one cosine similarity per sample and class, from embeddings and proxies.

This is the only code of proxy losses that is tuned for speed. The formulas on top of it are plain PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from nearkin.numerics import NORM_FLOOR, fast_linear, full_precision, l2_normalise, rounding_floor, safe_sqrt

ClassSimilarity = Literal["softmax", "max", "mean"]

BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""The size of a block of proxies: it fits the caches of a processor, or fills a GPU."""
KEPT_BYTES = 2**28
"""Up to this size, similarities to the single proxies ``[N, C · K]`` are kept for the backward pass."""


class Combination(NamedTuple):
    """How to combine the K similarities of a sample to a class's proxies, and whether to compute their spread."""

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
    """:func:`class_similarities` as the papers write it, which autograd can differentiate repeatedly."""
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

    Two proxies that differ only by rounding have gradient 0, not infinity.

    >>> proxy_spread(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
    tensor(0.7071)
    """
    return _spread(torch.bmm(vectors, vectors.mT), dim=vectors.shape[2])


def _spread(products: Tensor, *, dim: int) -> Tensor:
    """:func:`proxy_spread` of the inner products ``[C, K, K]`` of the proxies."""
    classes, per_class, _ = products.shape
    lengths = products.diagonal(dim1=1, dim2=2).clamp_min(NORM_FLOOR**2).sqrt()
    squared = 2.0 - 2.0 * products / (lengths[:, :, None] * lengths[:, None, :])
    apart = squared > 2.0 * rounding_floor(dim, products.dtype)
    return safe_sqrt(torch.where(apart, squared, 0.0)).sum() / max(1, 2 * classes * per_class * (per_class - 1))


class _ClassSimilarities(Function):
    """A cosine is ``s = x·p / (‖x‖ ‖p‖)``, with gradient ``(p / ‖p‖ − s x / ‖x‖) / ‖x‖`` for x, and likewise for p."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, how: Combination, block: int) -> tuple[Tensor, Tensor]:
        classes, per_class, _ = vectors.shape
        rows = vectors.flatten(0, 1)
        norms, lengths = _lengths(embeddings).unsqueeze(1), _lengths(rows)
        unit = embeddings / norms
        keep = per_class > 1 and len(embeddings) * len(rows) * rows.element_size() <= KEPT_BYTES
        similarities, spread = embeddings.new_empty(len(embeddings), classes), embeddings.new_zeros(())
        kept = [similarities] if per_class == 1 else []  # with one proxy the cosines are the similarities
        blocks = (_split(rows, block * per_class), _split(lengths, block * per_class), _split(similarities, block, 1))
        for part, length, found in zip(*blocks, strict=True):
            products = fast_linear(unit, part)
            if per_class == 1:
                torch.div(products, length, out=found)
                continue
            cosines = products.div_(length)
            found.copy_(_combined(cosines, how, per_class))
            if keep:
                kept.append(cosines)
            if how.with_spread:
                spread += proxy_spread(part.view(-1, per_class, part.shape[1])) * (len(part) / len(rows))
        ctx.save_for_backward(embeddings, vectors, unit, norms, lengths, *kept)
        ctx.how, ctx.block = how, block
        return similarities, spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, spread_gradient: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, vectors, unit, norms, lengths, *kept = ctx.saved_tensors
        how, block, per_class, rows = ctx.how, ctx.block, vectors.shape[1], vectors.flatten(0, 1)
        with full_precision(vectors.device.type):
            if torch.is_grad_enabled():  # create_graph=True: second derivatives are wanted
                return _differentiable_backward(embeddings, vectors, how, gradient, spread_gradient)
            if per_class == 1:
                kept = _split(kept[0], block, 1)
            products, along_embeddings, rows_gradient = [], [], torch.empty_like(rows)
            blocks = (_split(x, block * per_class) for x in (rows, lengths, rows_gradient))
            slopes_of_blocks = _split(gradient, block, 1)
            for number, (part, length, part_gradient) in enumerate(zip(*blocks, strict=True)):
                slopes = slopes_of_blocks[number]
                cosines = kept[number] if kept else fast_linear(unit, part).div_(length)
                if per_class > 1:
                    slopes = _slopes(lambda x: _combined(x, how, per_class), cosines, slopes)
                along = slopes * cosines
                slopes = slopes / length
                products.append(fast_linear(slopes, part.T))
                along_embeddings.append(along.sum(1, keepdim=True))
                along_part = along.sum(0).div_(length).div_(length).unsqueeze(1)
                torch.addcmul(fast_linear(slopes.T, unit.T), part, along_part, value=-1.0, out=part_gradient)
                if how.with_spread:
                    proxies = part.view(-1, per_class, part.shape[1])
                    share = spread_gradient * (len(part) / len(rows))
                    slopes = _slopes(lambda x: _spread(x, dim=rows.shape[1]), torch.bmm(proxies, proxies.mT), share)
                    part_gradient.view_as(proxies).baddbmm_(slopes + slopes.mT, proxies)
            embeddings_gradient, along = (functools.reduce(torch.add, terms) for terms in (products, along_embeddings))
            embeddings_gradient.addcmul_(unit, along, value=-1.0).div_(norms)
        return embeddings_gradient, rows_gradient.view(vectors.shape), None, None


def _differentiable_backward(
    embeddings: Tensor, vectors: Tensor, how: Combination, gradient: Tensor, spread_gradient: Tensor
) -> tuple[Tensor | None, ...]:
    similarities, spread = plain_class_similarities(embeddings, vectors, how)
    inputs = [x for x in (embeddings, vectors) if x.requires_grad]
    found = list(torch.autograd.grad(similarities, inputs, gradient, create_graph=True, retain_graph=True))
    if spread.requires_grad:
        found[-1] = found[-1] + torch.autograd.grad(spread, vectors, spread_gradient, create_graph=True)[0]
    return found[0] if embeddings.requires_grad else None, found[-1] if vectors.requires_grad else None, None, None


def _slopes(function: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of ``function`` at ``x``, by autograd on ``x`` alone."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, upstream)[0]


def _combined(cosines: Tensor, how: Combination, per_class: int) -> Tensor:
    """Similarities ``[N, C]`` of cosines ``[N, C · K]``; sums over K are fast where K comes first."""
    if per_class == 1:
        return cosines
    return combine(cosines.view(len(cosines), -1, per_class).permute(2, 0, 1).contiguous(), how.kind, gamma=how.gamma)


def _split(x: Tensor, size: int, dim: int = 0) -> Sequence[Tensor]:
    return [x] if x.shape[dim] <= size else torch.split(x, size, dim)


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.clamp_min_(NORM_FLOOR)
