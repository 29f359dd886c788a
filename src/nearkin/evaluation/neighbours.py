"""Exact nearest neighbours, block by block, with ties in a defined order.

Every pair's distance is taken in float64 and packed with the gallery index into one int64: the distance in the high
bits, the index in the low ones. Keys are therefore distinct, one ``topk`` gives the order with ties by index, and
distances that differ only by rounding (about 2⁻⁴⁴) count as equal. Rows of the gallery that are copies of each other
share one distance, whichever tile of the matrix product they fell into.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nearkin.suggest import did_you_mean

Distance = Literal["cosine", "euclidean"]
ArrayLike: TypeAlias = Any

# What a block of queries against the whole gallery may take; larger blocks are hardly faster.
BLOCK_BYTES = 256 * 2**20
# Distances, keys, one copy of the keys and the outcome of topk, 8 bytes each.
_BYTES_PER_PAIR = 32
# Float64 carries 52 bits; the last eight are left to rounding in normalisation and matrix product.
_TRUSTED_BITS = 44


def nearest(
    queries: ArrayLike,
    gallery: ArrayLike | None = None,
    *,
    k: int,
    distance: Distance = "cosine",
    exclude_self: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The ``k`` nearest gallery rows of every query, nearest first, equal ones by index.

    Args:
        queries: ``[Q, D]``, tensor or array; the work is done on its device.
        gallery: ``[N, D]``; without it the queries are searched among themselves.
        k: how many neighbours, at most the number of rows that can be found.
        distance: ``"cosine"`` or ``"euclidean"``. A zero vector has cosine 0 with everything.
        exclude_self: leave gallery row ``i`` out for query ``i``; by default when there is no gallery.

    Returns:
        Indices ``[Q, k]`` (int64) and similarities ``[Q, k]`` (float64): the cosine, or minus the Euclidean distance.

    Example:
        >>> indices, similarities = nearest(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]), k=2)
        >>> indices.tolist()
        [[3, 2], [2, 0], [0, 1], [0, 2]]
        >>> similarities[0]
        tensor([1.0000, 0.7071], dtype=torch.float64)
    """
    check_distance(distance)
    query_rows = as_vectors(queries, "queries")
    gallery_rows = query_rows if gallery is None else as_gallery(gallery, query_rows)
    without_self = gallery is None if exclude_self is None else exclude_self
    if without_self and len(gallery_rows) != len(query_rows):
        raise ValueError(
            f"exclude_self needs as many gallery rows as queries ({len(query_rows)}), got {len(gallery_rows)}"
        )
    k = as_count(k, "k")
    available = len(gallery_rows) - int(without_self)
    if k > available:
        raise ValueError(f"k must be at most {available}, the rows each query can find, got {k}")
    indices = torch.empty(len(query_rows), k, dtype=torch.int64, device=query_rows.device)
    similarities = torch.empty(len(query_rows), k, dtype=torch.float64, device=query_rows.device)
    depth = torch.full((len(query_rows),), k)
    for block in ranked_blocks(query_rows, gallery_rows, depth, distance=distance, exclude_self=without_self):
        rows = block.rows.to(query_rows.device)
        indices[rows] = block.indices
        similarities[rows] = block.similarities
    return indices, similarities


@dataclass(frozen=True)
class RankedBlock:
    """The neighbours of some queries: positions ``rows [B]`` (on the CPU), ``indices`` and ``similarities [B, L]``."""

    rows: Tensor
    indices: Tensor
    similarities: Tensor


def ranked_blocks(
    queries: Tensor, gallery: Tensor, depth: Tensor, *, distance: Distance, exclude_self: bool
) -> Iterator[RankedBlock]:
    """Rank ``gallery [N, D]`` for ``queries [Q, D]``, both from :func:`as_vectors`, to at least ``depth [Q]`` places.

    Queries of similar depth share a block, so one large class does not make every ranking long; queries of depth 0
    are left out. Memory is bounded by ``BLOCK_BYTES`` beside the vectors themselves.
    """
    codec: _Cosine | _Euclidean = _Cosine() if distance == "cosine" else _Euclidean.for_sets(queries, gallery)
    total = len(gallery)
    index_bits = total.bit_length()
    index = torch.arange(total, device=gallery.device)
    columns, copy_of = _distinct(codec.scale(gallery))
    columns = codec.finish(columns)

    order = depth.argsort(stable=True)
    order = order[depth[order] > 0]
    block = max(1, BLOCK_BYTES // (_BYTES_PER_PAIR * total))
    for start in range(0, len(order), block):
        rows = order[start : start + block]
        on_device = rows.to(queries.device)
        keys = codec.encode(codec.finish(codec.scale(queries[on_device])), columns, index_bits)
        if copy_of is not None:
            keys = keys.index_select(1, copy_of)
        keys.mul_(1 << index_bits).add_(index)
        if exclude_self:
            keys[torch.arange(len(rows), device=keys.device), on_device] = torch.iinfo(torch.int64).max
        best = keys.topk(int(depth[rows].max()), largest=False, sorted=True).values
        del keys
        # Adding zero turns -0.0 into 0.0.
        yield RankedBlock(rows, best & ((1 << index_bits) - 1), codec.decode(best >> index_bits, index_bits) + 0.0)


class _Cosine:
    """Minus the cosine as a fixed-point integer: the range is known, so the resolution is the same everywhere."""

    def scale(self, x: Tensor) -> Tensor:
        # By the largest entry first: no overflow in the norm, and exact multiples of a vector become exact copies.
        largest = x.abs().amax(dim=1, keepdim=True)
        return x.div(torch.where(largest > 0, largest, 1.0))

    def finish(self, x: Tensor) -> Tensor:
        return x.div(torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1.0))

    def encode(self, queries: Tensor, columns: Tensor, index_bits: int) -> Tensor:
        return (queries @ columns.T).mul_(-self._unit(index_bits)).round_().to(torch.int64)

    def decode(self, codes: Tensor, index_bits: int) -> Tensor:
        return codes.double().div_(-self._unit(index_bits))

    def _unit(self, index_bits: int) -> float:
        return float(1 << min(_TRUSTED_BITS, 61 - index_bits))


@dataclass(frozen=True)
class _Euclidean:
    """The squared distance by its float64 bits, which order as integers: far outliers cost the near ones nothing."""

    factor: float

    @classmethod
    def for_sets(cls, queries: Tensor, gallery: Tensor) -> _Euclidean:
        # A power of two keeps every value exact and the squares within range.
        largest = max(float(x.abs().max()) for x in (queries, gallery))
        return cls(math.ldexp(1.0, -max(math.frexp(largest)[1], -1000)))

    def scale(self, x: Tensor) -> Tensor:
        return x * self.factor

    def finish(self, x: Tensor) -> Tensor:
        return x

    def encode(self, queries: Tensor, columns: Tensor, index_bits: int) -> Tensor:
        squared = (queries @ columns.T).mul_(-2.0)
        squared.add_(queries.square().sum(1)[:, None]).add_(columns.square().sum(1)).clamp_min_(0.0)
        dropped = self._dropped(index_bits)
        return squared.view(torch.int64).add_(1 << (dropped - 1)).bitwise_right_shift_(dropped)

    def decode(self, codes: Tensor, index_bits: int) -> Tensor:
        return (codes << self._dropped(index_bits)).view(torch.float64).sqrt().div_(-self.factor)

    def _dropped(self, index_bits: int) -> int:
        return max(52 - _TRUSTED_BITS, index_bits)


def _distinct(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The different rows of ``x`` and, for each row, which of them it is; ``None`` when all differ."""
    rows, copy_of = torch.unique(x, dim=0, return_inverse=True)
    return (x, None) if len(rows) == len(x) else (rows, copy_of)


def as_vectors(x: ArrayLike, name: str) -> Tensor:
    """``x`` as a finite float64 tensor ``[N, D]`` on its own device (on the CPU where that has no float64)."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name} must be an array of real numbers, got {array.dtype}")
        x = torch.from_numpy(np.array(array, dtype=np.float64))
    if x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be a tensor of real numbers, got {x.dtype}")
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must have shape [N, D] with at least one row and one column, got {list(x.shape)}")
    x = x.detach()
    vectors: Tensor = (x.cpu() if x.device.type == "mps" else x).to(torch.float64)
    finite = torch.isfinite(vectors).all(dim=1)
    if not bool(finite.all()):
        bad = (~finite).nonzero()
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {len(bad)} of {len(vectors)} rows, "
            f"first in row {int(bad[0])}"
        )
    return vectors


def as_gallery(gallery: ArrayLike, queries: Tensor) -> Tensor:
    """``gallery`` as vectors of the same dimension and on the same device as ``queries``."""
    vectors = as_vectors(gallery, "gallery").to(queries.device)
    if vectors.shape[1] != queries.shape[1]:
        raise ValueError(f"gallery must have {queries.shape[1]} columns like the queries, got {vectors.shape[1]}")
    return vectors


def as_labels(labels: ArrayLike, name: str, *, rows: int | None = None) -> Tensor:
    """``labels`` as an int64 tensor ``[rows]`` on the CPU."""
    if isinstance(labels, Tensor):
        # Not every floating point type of torch has a NumPy one.
        labels = (labels.float() if labels.is_floating_point() else labels).detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim != 1 or (rows is not None and len(array) != rows):
        raise ValueError(f"{name} must have shape [{'N' if rows is None else rows}], got {list(array.shape)}")
    if len(array) == 0:
        raise ValueError(f"{name} must hold at least one value, got none")
    if array.dtype.kind not in "iu":
        what = "integers beyond 64 bits or mixed types" if array.dtype.kind == "O" else str(array.dtype)
        raise ValueError(
            f"{name} must be integers, got {what}; to number other labels use "
            f"numpy.unique({name}, return_inverse=True)[1]"
        )
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit in int64, got {int(array.max())}")
    return torch.from_numpy(array.astype(np.int64))


def as_count(value: object, name: str) -> int:
    """``value`` as an int of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_distance(distance: str) -> None:
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f"unknown distance {distance!r}: {did_you_mean(str(distance), ['cosine', 'euclidean'])}")
