"""PCA-whitening: embeddings along the axes in which training images vary, each axis counting the same."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import DataError, RecipeError

Floats = NDArray[np.floating]

_AT_ONCE = 1 << 14
# Axes with less of the largest variance than this hold nothing but rounding.
_LEAST = 1e-10


@dataclass(frozen=True)
class Axes:
    """Where embeddings ``[N, D]`` of training images lie: mean ``[D]``, and principal axes as columns ``[D, D]``."""

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    variances: NDArray[np.float64]
    """Along each axis, the largest first."""
    images: int
    """How many images they were learned from."""

    def whitening(self, dim: int | None = None, *, shrinkage: float = 0.0) -> Whitening:
        """The transform to the first ``dim`` axes (default: all that vary), each divided by its standard deviation.

        A variance v counts as (1 − shrinkage)·v + shrinkage·(mean of all), so that axes in which training images hardly
        vary are not blown up to noise: 0 is plain whitening, 1 leaves the proportions of the embedding (Jégou and Chum
        2012, with the shrinkage of Ledoit and Wolf 2004).
        """
        if not 0 <= shrinkage <= 1:
            raise RecipeError(f"shrinkage must be between 0 and 1, got {shrinkage}")
        variances = (1 - shrinkage) * self.variances + shrinkage * self.variances.mean()
        most = int((variances > _LEAST * variances[0]).sum()) if variances[0] > 0 else 0
        if not most:
            raise DataError(
                f"the embeddings of the {self.images:,} training images are all the same: nothing to whiten"
            )
        if dim is not None and not 1 <= dim <= most:
            raise RecipeError(
                f"embeddings can be whitened to between 1 and {most} dimensions, as the {self.images:,} training "
                f"images vary in no more, got {dim}"
            )
        kept = slice(dim or most)
        return Whitening(self.mean, self.directions[:, kept] / np.sqrt(variances[kept]))

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, mean=self.mean, directions=self.directions, variances=self.variances, images=self.images)
        return buffer.getvalue()

    @classmethod
    def read(cls, file: Path) -> Axes:
        with np.load(file, allow_pickle=False) as held:
            return cls(held["mean"], held["directions"], held["variances"], int(held["images"]))


@dataclass(frozen=True)
class Whitening:
    """x → (x − mean) · matrix, brought to length 1: embeddings ``[N, D]`` in, ``[N, dim]`` out, compared by angle."""

    mean: NDArray[np.float64]
    matrix: NDArray[np.float64]

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    def __call__(self, vectors: Floats) -> NDArray[np.float32]:
        found = np.empty((len(vectors), self.dim), dtype=np.float32)
        for start in range(0, len(vectors), _AT_ONCE):
            moved = (vectors[start : start + _AT_ONCE] - self.mean) @ self.matrix
            lengths = np.linalg.norm(moved, axis=1, keepdims=True)
            found[start : start + _AT_ONCE] = moved / np.where(lengths > 0, lengths, 1.0)
        return found


def principal_axes(vectors: Floats) -> Axes:
    """The principal axes of embeddings ``[N, D]``: eigenvectors of their covariance, those of most variance first.

    Computed in float64. The sign of an axis is such that its largest number is positive.

    >>> axes = principal_axes(np.array([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]))
    >>> axes.variances.tolist(), (axes.whitening()(np.array([[1.0, 3.0]])) ** 2).round(4).tolist()
    ([4.5, 0.5], [[0.5, 0.5]])
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise DataError(f"at least two training images are needed to learn how embeddings vary, got {len(vectors)}")
    mean = vectors.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((len(mean), len(mean)))
    for start in range(0, len(vectors), _AT_ONCE):
        part = vectors[start : start + _AT_ONCE] - mean
        covariance += part.T @ part
    variances, directions = np.linalg.eigh(covariance / len(vectors))
    variances, directions = np.maximum(variances[::-1], 0.0), directions[:, ::-1]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    return Axes(mean, directions * np.where(largest < 0, -1.0, 1.0), variances, len(vectors))
