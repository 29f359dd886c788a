"""From embeddings and proxies to one cosine similarity per sample and class: the first step of every proxy loss.

This is the only place where proxy losses are tuned for speed. A formula on top of it is plain PyTorch.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from nearkin.numerics import NORM_FLOOR, full_precision, l2_normalise, rounding_floor, safe_sqrt

ClassSimilarity = Literal["softmax", "max", "mean"]

BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Proxies are taken in blocks of about this size: what fits the caches of a processor, and enough to fill a GPU."""
KEPT_BYTES = 2**28
"""Similarities to the single proxies ``[N, C, K]`` are kept for the backward pass up to this size, and else computed
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
    cosines = l2_normalise(embeddings) @ l2_normalise(vectors).flatten(0, 1).T
    similarities = combine(cosines.view(-1, *vectors.shape[:2]), how.kind, gamma=how.gamma)
    return similarities, proxy_spread(vectors) if how.with_spread else similarities.new_zeros(())


def combine(similarities: Tensor, kind: ClassSimilarity, *, gamma: float) -> Tensor:
    """One similarity per class, ``[N, C]``, of the similarities ``[N, C, K]`` to its proxies.

    ``"softmax"`` weighs each proxy by the softmax of its similarity over γ, ``"max"`` takes the nearest proxy,
    ``"mean"`` takes the mean of all.

    >>> s = torch.tensor([[[0.0, 1.0]]])
    >>> [round(combine(s, kind, gamma=0.5).item(), 4) for kind in ("softmax", "max", "mean")]
    [0.8808, 1.0, 0.5]
    """
    if similarities.shape[2] == 1:
        return similarities.squeeze(2)
    if kind == "max":
        return similarities.max(2).values
    if kind == "mean":
        return similarities.mean(2)
    return ((similarities / gamma).softmax(2) * similarities).sum(2)


def proxy_spread(vectors: Tensor) -> Tensor:
    """``Σ_c Σ_{t<s} ‖p̂_cs − p̂_ct‖ / (C K (K−1))`` of proxies ``[C, K, D]``: the regulariser of SoftTriple.

    Two proxies that differ by rounding only pull on each other with gradient 0, not infinity.

    >>> proxy_spread(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
    tensor(0.7071)
    """
    classes, per_class, dim = vectors.shape
    products = vectors @ vectors.mT
    lengths = products.diagonal(dim1=1, dim2=2).clamp_min(NORM_FLOOR**2).sqrt()
    squared = 2.0 - 2.0 * products / (lengths[:, :, None] * lengths[:, None, :])
    apart = squared > 2.0 * rounding_floor(dim, vectors.dtype)
    return safe_sqrt(torch.where(apart, squared, 0.0)).sum() / max(1, 2 * classes * per_class * (per_class - 1))


class _ClassSimilarities(Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, how: Combination, block: int) -> tuple[Tensor, Tensor]:
        classes, per_class, _ = vectors.shape
        unit, _ = _unit(embeddings)
        lengths = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        keep = per_class > 1 and len(unit) * lengths.numel() * unit.element_size() <= KEPT_BYTES
        similarities = spread = unit.new_zeros(())
        kept = []
        for b in _blocks(classes, block):
            cosines = _cosines(unit, vectors[b], lengths[b])
            of_block = combine(cosines, how.kind, gamma=how.gamma)
            kept += [cosines] if keep else []
            if how.with_spread:
                spread = spread + proxy_spread(vectors[b]) * (len(vectors[b]) / classes)
            if block >= classes:
                similarities = of_block
            else:
                similarities = similarities if similarities.ndim else unit.new_empty(len(unit), classes)
                similarities[:, b] = of_block
        ctx.save_for_backward(embeddings, vectors)
        ctx.rest = lengths, kept, how, block
        return similarities, spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, spread_gradient: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, vectors = ctx.saved_tensors
        lengths, kept, how, block = ctx.rest
        for_embeddings, for_vectors = ctx.needs_input_grad[:2]
        with full_precision(vectors.device.type):
            if torch.is_grad_enabled():  # create_graph=True: second derivatives are wanted
                inputs = [x for x in (embeddings, vectors) if x.requires_grad]
                similarities, spread = plain_class_similarities(embeddings, vectors, how)
                found = list(torch.autograd.grad(similarities, inputs, gradient, create_graph=True, retain_graph=True))
                if how.with_spread and for_vectors:
                    found[-1] = found[-1] + torch.autograd.grad(spread, vectors, spread_gradient, create_graph=True)[0]
                return found[0] if for_embeddings else None, found[-1] if for_vectors else None, None, None
            unit, norms = _unit(embeddings)
            unit_gradient = torch.zeros_like(unit)
            vectors_gradient = torch.empty_like(vectors, memory_format=torch.contiguous_format) if for_vectors else None
            for number, b in enumerate(_blocks(len(vectors), block)):
                flat = vectors[b].flatten(0, 1)
                if vectors.shape[1] == 1:
                    by_proxy = gradient[:, b] / lengths[b].T
                else:
                    cosines = kept[number] if kept else _cosines(unit, vectors[b], lengths[b])
                    by_proxy = _through_combine(cosines, how, gradient[:, b]).div_(lengths[b]).flatten(1)
                unit_gradient.addmm_(by_proxy, flat)
                if vectors_gradient is not None:
                    of_block = vectors_gradient[b].view_as(flat)
                    torch.mm(by_proxy.T, unit, out=of_block)
                    _remove_radial_(of_block, flat, lengths[b].view(-1, 1))
                    if how.with_spread:
                        share = spread_gradient * (len(vectors[b]) / len(vectors))
                        vectors_gradient[b] += _gradient_of_spread(vectors[b], share)
            if for_embeddings:
                _remove_radial_(unit_gradient, unit, None)
                unit_gradient.div_(norms)
        return unit_gradient if for_embeddings else None, vectors_gradient, None, None


def _blocks(classes: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, classes)) for start in range(0, classes, block)]


def _unit(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
    return embeddings / norms, norms


def _cosines(unit: Tensor, vectors: Tensor, lengths: Tensor) -> Tensor:
    """``[N, C, K]`` from unit vectors ``[N, D]`` and raw proxies ``[C, K, D]`` of known ``lengths [C, K]``."""
    return (unit @ vectors.flatten(0, 1).T).view(-1, *lengths.shape).div_(lengths)


def _through_combine(cosines: Tensor, how: Combination, gradient: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = cosines.detach().requires_grad_()
        combined = combine(leaf, how.kind, gamma=how.gamma)
    return torch.autograd.grad(combined, leaf, gradient)[0].contiguous()


def _gradient_of_spread(vectors: Tensor, upstream: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = vectors.detach().requires_grad_()
        spread = proxy_spread(leaf)
    return torch.autograd.grad(spread, leaf, upstream)[0]


def _remove_radial_(gradient: Tensor, vectors: Tensor, lengths: Tensor | None) -> None:
    """Take off ``gradient [R, D]`` what points along ``vectors [R, D]``, which are of length 1 if not said."""
    along = torch.linalg.vecdot(gradient, vectors)[:, None]
    if lengths is not None:
        along = along.div_(lengths).div_(lengths)
    gradient.addcmul_(vectors, along, value=-1.0)
