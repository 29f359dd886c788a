"""Fused CUDA kernels for the losses with proxies, written in Triton. Imported only where a GPU and Triton are.

A step of such a loss is three matrix products and, in plain PyTorch, some forty small operations between them. At the
benchmarks' sizes the host takes longer to launch those than the GPU to compute them; here each stage is one launch.
Every function computes in float32 what the plain one that calls it computes, and is tested against that one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from nearkin.losses._triton import (
    anchor_kernel,
    class_similarity_kernel,
    cross_entropy_kernel,
    gradient_by_proxy_kernel,
    proxy_spread_kernel,
    remove_radial_kernel,
    units_and_lengths_kernel,
)

ROW_BLOCK = 4096
"""Columns that a program which walks along a row looks at in one go."""


def units_and_lengths(embeddings: Tensor, vectors: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ``embeddings [N, D]`` over their lengths, those lengths ``[N]``, and the lengths of ``vectors [R, D]``.

    No length is below ``floor``.
    """
    embeddings = embeddings.contiguous()
    (rows, dim), others = embeddings.shape, vectors.shape[0]
    unit, lengths = torch.empty_like(embeddings), embeddings.new_empty(rows + others)
    units_and_lengths_kernel[(rows + others,)](
        embeddings, vectors, unit, lengths, rows, dim, floor, BLOCK=triton.next_power_of_2(dim)
    )
    return unit, lengths[:rows], lengths[rows:]


def remove_radial_(
    for_embeddings: Tensor,
    for_vectors: Tensor,
    unit: Tensor,
    vectors: Tensor,
    norms: Tensor,
    lengths: Tensor,
    factor: Tensor,
) -> None:
    """From gradients for normalised vectors to gradients for the vectors themselves, in place, times ``factor``.

    Those ``for_embeddings [N, D]``, whose directions are ``unit``, are divided by ``norms [N]``; those
    ``for_vectors [R, D]`` are already divided by ``lengths [R]``.
    """
    rows, dim = unit.shape
    remove_radial_kernel[(rows + vectors.shape[0],)](
        for_embeddings, for_vectors, unit, vectors, norms, lengths, factor, rows, dim, BLOCK=triton.next_power_of_2(dim)
    )


def proxy_spread(vectors: Tensor, lengths: Tensor, *, weight: float, floor: float) -> tuple[Tensor, Tensor]:
    """``weight`` times the distances within classes of proxies ``[C, K, D]``, and the matrices of its gradient.

    A squared distance of at most ``floor`` is none.
    """
    classes, per_class, dim = vectors.shape
    value, matrices = vectors.new_empty(classes), vectors.new_empty(classes, per_class, per_class)
    proxy_spread_kernel[(classes,)](
        vectors,
        lengths,
        value,
        matrices,
        dim,
        weight,
        floor,
        K=per_class,
        PADDED=max(16, triton.next_power_of_2(per_class)),  # the least that a matrix product takes
        BLOCK=128,
        num_warps=2,
    )
    return value.sum(), matrices


def cross_entropy(
    similarities: Tensor, labels: Tensor, *, scale: float, margin: float, on_angle: bool, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of ``scale · similarities [N, C]`` with a margin on the own class, and its derivative.

    With ``lengths [C]`` the similarities are still to be divided by them, and so is the derivative.
    """
    rows, classes = similarities.shape
    value, gradient = similarities.new_empty(rows), torch.empty_like(similarities)
    cross_entropy_kernel[(rows,)](
        similarities,
        labels,
        similarities if lengths is None else lengths,
        value,
        gradient,
        classes,
        scale,
        scale / rows,
        margin,
        math.cos(margin),
        math.sin(margin),
        ARC=on_angle,
        DIVIDE=lengths is not None,
        BLOCK=min(ROW_BLOCK, triton.next_power_of_2(classes)),
        num_warps=8,
    )
    return value.mean(), gradient


def anchor(
    similarities: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    margin: float,
    pull_norm: Tensor | float,
    push_norm: Tensor | float,
    weights: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Proxy-Anchor's loss of similarities ``[N, C]`` and its derivative.

    ``pull_norm`` divides the sum over positives and ``push_norm`` that over negatives. With weights, ``[N]`` for
    positives and ``[N, C]`` for negatives, both are tensors. A label below 0 is of no class here.
    """
    similarities = similarities.contiguous()
    rows, classes = similarities.shape
    block = 32
    programs = triton.cdiv(classes, block)
    value, gradient = similarities.new_empty(programs), torch.empty_like(similarities)
    given = isinstance(pull_norm, Tensor)
    positive, negative = (value, value) if weights is None else (part.contiguous() for part in weights)
    anchor_kernel[(programs,)](
        similarities,
        labels,
        positive,
        negative,
        pull_norm if given else value,
        value if weights is None else push_norm,
        value,
        gradient,
        rows,
        classes,
        alpha,
        margin,
        1.0 if given else pull_norm,
        1.0 if weights is not None else push_norm,
        READ_PULL_NORM=given,
        WEIGHTED=weights is not None,
        ROWS=64,
        BLOCK=block,
        num_warps=4,
    )
    return value.sum(), gradient


KINDS = {"softmax": 0, "max": 1, "mean": 2}


def class_similarity(products: Tensor, lengths: Tensor, *, kind: str, gamma: float) -> Tensor:
    """Class similarities ``[N, C]`` of inner products ``[N, C, K]`` with proxies of ``lengths [C, K]``."""
    rows, classes, per_class = products.shape
    combined = products.new_empty(rows, classes)
    class_similarity_kernel[_class_grid(rows, classes)](
        products, lengths, combined, classes, 1.0 / gamma, **_class_options(per_class), KIND=KINDS[kind]
    )
    return combined


def gradient_by_proxy(
    products: Tensor, lengths: Tensor, combined: Tensor, gradient: Tensor, *, kind: str, gamma: float
) -> Tensor:
    """Overwrite the products ``[N, C, K]`` with the loss's derivative for them, given that for the classes."""
    rows, classes, per_class = products.shape
    gradient_by_proxy_kernel[_class_grid(rows, classes)](
        products, lengths, combined, gradient, classes, 1.0 / gamma, **_class_options(per_class), KIND=KINDS[kind]
    )
    return products


_CLASSES_AT_ONCE = 64


def _class_grid(rows: int, classes: int) -> tuple[int, int]:
    # The first dimension of a grid may be large, the second may not: with many classes that must be their blocks.
    return triton.cdiv(classes, _CLASSES_AT_ONCE), rows


def _class_options(per_class: int) -> dict[str, Any]:
    return {"K": per_class, "PADDED": triton.next_power_of_2(per_class), "BLOCK": _CLASSES_AT_ONCE, "num_warps": 4}
