"""What comes before what: the exact order of two references of a query, the same on every machine.

A pair's cosine, or its squared distance, is computed in float64 from single operations in a fixed order, which IEEE
arithmetic rounds alike everywhere, and is then rounded to about 44 bits: what differs only by the rounding of earlier
operations counts as equal. Of equal ones the lower index comes first. Matrix products, whose last bits depend on
processor, threads and block, are used only where they are certain to agree with this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nearkin.evaluation.vectors import Vectors

Distance = Literal["cosine", "euclidean"]

# Float64 carries 52 bits; the last eight are left to rounding in normalisation and sums.
_TRUSTED_BITS = 44
_UNIT = float(1 << _TRUSTED_BITS)
_DROPPED = 52 - _TRUSTED_BITS
# Numbers of a set whose unit rows are kept: 64 MB.
_KEPT = 1 << 23
# Pairs whose vectors are laid side by side at a time.
_PAIRS = 1 << 19


@dataclass(frozen=True)
class Cosine:
    """Minus the cosine, so that less is nearer. A zero vector has cosine 0 with everything."""

    queries: Vectors
    references: Vectors
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """Unit rows of small sets, which are asked for again and again."""

    @classmethod
    def of(cls, queries: Vectors, references: Vectors) -> Cosine:
        return cls(queries, references)

    def scale(self, x: Tensor) -> Tensor:
        """Rows ``[N, D]`` in float64 as they enter products."""
        return unit_rows(x)

    def products(self, queries: Tensor, references: Tensor) -> Tensor:
        """What orders the references, ``[Q, N]``, to within :meth:`error`; both are scaled."""
        return (queries @ references.T).neg_()

    def error(self, queries: Tensor, references: Tensor) -> Tensor:
        """How far :meth:`products` may be from the definition, ``[Q]``, whatever the order of addition."""
        return queries.new_full((len(queries),), (queries.shape[1] + 8) * 2.0**-53)

    def resolution(self, values: Tensor) -> Tensor:
        """What the definition rounds away from values, ``[Q, N]`` or one for all."""
        return values.new_tensor(1.0 / _UNIT)

    def codes(self, query_rows: Tensor, reference_rows: Tensor) -> Tensor:
        """The definition: int64 ``[P]``, less is nearer, for pairs of row numbers ``[P]`` each."""
        parts = []
        for queries, references in _in_parts(query_rows, reference_rows, self.queries.dim):
            cosines = tree_sum(self._units(self.queries, queries).mul_(self._units(self.references, references)))
            parts.append(cosines.mul_(-_UNIT).round_().to(torch.int64))
        return torch.cat(parts) if parts else query_rows.new_empty(0)

    def _units(self, vectors: Vectors, rows: Tensor) -> Tensor:
        if len(vectors) * vectors.dim > _KEPT:
            return unit_rows(vectors.rows(rows))
        kept = self._kept.get(id(vectors))
        if kept is None:
            kept = self._kept[id(vectors)] = unit_rows(vectors.rows(slice(None)))
        return kept[rows]

    def similarity(self, values: Tensor) -> Tensor:
        """Products as users see them; adding zero turns -0.0 into 0.0."""
        return values.mul(-_UNIT).round_().div_(_UNIT).add_(0.0)


@dataclass(frozen=True)
class Euclidean:
    """The squared distance, which is rounded relative to itself: far outliers cost the near ones nothing."""

    queries: Vectors
    references: Vectors
    factor: float
    """A power of two keeps every value exact and the squares within range."""

    @classmethod
    def of(cls, queries: Vectors, references: Vectors) -> Euclidean:
        largest = max(queries.largest(), references.largest())
        return cls(queries, references, math.ldexp(1.0, -max(math.frexp(largest)[1], -1000)))

    def scale(self, x: Tensor) -> Tensor:
        return x * self.factor

    def products(self, queries: Tensor, references: Tensor) -> Tensor:
        squared = (queries @ references.T).mul_(-2.0)
        return squared.add_(queries.square().sum(1)[:, None]).add_(references.square().sum(1)).clamp_min_(0.0)

    def error(self, queries: Tensor, references: Tensor) -> Tensor:
        squares = queries.square().sum(1) + references.square().sum(1).max()
        return squares.mul_(2.0 * (queries.shape[1] + 8) * 2.0**-53)

    def resolution(self, values: Tensor) -> Tensor:
        return values / _UNIT

    def codes(self, query_rows: Tensor, reference_rows: Tensor) -> Tensor:
        parts = []
        for queries, references in _in_parts(query_rows, reference_rows, self.queries.dim):
            apart = self.scale(self.queries.rows(queries)) - self.scale(self.references.rows(references))
            squared = tree_sum(apart.square_())
            # The bits of a positive number order as an integer.
            parts.append(squared.view(torch.int64).add_(1 << (_DROPPED - 1)).bitwise_right_shift_(_DROPPED))
        return torch.cat(parts) if parts else query_rows.new_empty(0)

    def similarity(self, values: Tensor) -> Tensor:
        return values.sqrt().div_(-self.factor).add_(0.0)


Metric = Cosine | Euclidean


def metric_of(distance: Distance, queries: Vectors, references: Vectors) -> Metric:
    return (Cosine if distance == "cosine" else Euclidean).of(queries, references)


def unit_rows(x: Tensor) -> Tensor:
    """Float64 rows of length 1, the same on every machine; zero rows stay zero.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    # By the largest entry first: no overflow in the norm, and exact multiples of a vector become exact copies.
    largest = x.abs().amax(dim=1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    return x.div_(tree_sum(x.square()).sqrt_().clamp_min_(1.0)[:, None])


def tree_sum(x: Tensor) -> Tensor:
    """Sums of the rows of ``x [N, D]``, halves added to halves: single additions, whose order nothing changes.

    >>> tree_sum(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([6.])
    """
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        folded = x[:, :half] + x[:, half : 2 * half]
        x = torch.cat([folded, x[:, 2 * half :]], dim=1) if x.shape[1] % 2 else folded
    return x[:, 0] + 0.0


def _in_parts(queries: Tensor, references: Tensor, dim: int) -> zip[tuple[Tensor, Tensor]]:
    step = max(1, _PAIRS // dim)
    return zip(queries.split(step), references.split(step), strict=True)  # type: ignore[no-untyped-call]
