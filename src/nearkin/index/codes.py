"""Vectors in 8 bits, and how far products may be from the true ones.

A vector x is stored as whole numbers c of −127 … 127 and a scale s, and what that loses, ‖x − s·c‖, beside it. A
product of two such vectors is a whole number that is computed without rounding, so by Cauchy and Schwarz the true
one is within ‖q − q̂‖·‖x‖ + ‖q̂‖·‖x − x̂‖ of the scanned one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEVELS = 127
ROUNDING = 2.0**-20
"""Of these a few float32 operations make an error of at most this share."""


@dataclass(frozen=True)
class Codes:
    """Vectors ``[N, dim]`` in 8 bits, and the figures of each that bound the error."""

    codes: NDArray[np.int8]
    figures: NDArray[np.float32]
    """``[N, 3]``: scale, length, and the length of what rounding took off, the last two rounded up."""


def coded(vectors: NDArray[np.float32] | NDArray[np.float64]) -> Codes:
    """Vectors in 8 bits.

    >>> some = coded(np.array([[1.0, -0.5], [0.0, 0.0]]))
    >>> some.codes.tolist(), some.figures[1].tolist()
    ([[127, -64], [0, 0]], [1.0, 0.0, 0.0])
    """
    x = np.asarray(vectors, dtype=np.float64)
    largest = np.abs(x).max(axis=1, initial=0.0)
    scale = (np.where(largest > 0, largest, _LEVELS) / _LEVELS).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1.0))  # numbers too small for float32 become zeros
    codes = np.clip(np.rint(x / scale[:, None].astype(np.float64)), -_LEVELS, _LEVELS)
    lost = np.linalg.norm(x - codes * scale[:, None].astype(np.float64), axis=1)
    lengths = np.stack([np.linalg.norm(x, axis=1), lost], axis=1) * (1 + ROUNDING)
    return Codes(codes.astype(np.int8), np.column_stack([scale, lengths.astype(np.float32)]).astype(np.float32))


def float32_error(dim: int) -> float:
    """How far a product of two vectors in float32 may be from the true one, as a share of their lengths' product.

    Rounded to float32, multiplied, added in any order (Higham, Accuracy and Stability, 3.1).
    """
    return 2 * (dim + 3) * 2.0**-24 + ROUNDING
