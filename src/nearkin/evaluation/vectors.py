"""Embeddings and labels as users give them: tensors, arrays or memory-mapped files, checked before all else.

This module works without torch, since an index of an exported encoder does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, device

ArrayLike: TypeAlias = Any

_AT_ONCE = 1 << 20
"""Numbers that are looked at or converted at a time."""


class Vectors:
    """Rows of numbers ``[N, D]``, an array or a tensor on a GPU, converted to float64 only as far as needed."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_cuda: bool = not isinstance(source, np.ndarray)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def dim(self) -> int:
        return int(self.source.shape[1])

    def rows(self, which: Any) -> Any:
        """Some rows in float64, where the vectors are."""
        rows = self.source[which]
        return rows.double() if self.is_cuda else rows.astype(np.float64)

    def parts(self) -> list[slice]:
        """The rows, so many at a time that converting them takes little room."""
        step = max(1, _AT_ONCE // self.dim)
        return [slice(start, start + step) for start in range(0, len(self), step)]

    def largest(self) -> float:
        """The largest magnitude."""
        return max(float(abs(self.source[part]).max()) for part in self.parts())


def as_vectors(x: ArrayLike, name: str, device: device | str | None = None) -> Vectors:
    """``x`` as finite vectors on ``device``, by default its own; devices without float64 count as the CPU."""
    if is_tensor(x):
        import torch

        x = x.detach()
        if x.is_complex() or x.dtype == torch.bool:
            raise ValueError(f"{name} must be a tensor of real numbers, got {x.dtype}")
        x = x if x.is_floating_point() else x.double()
        x = x.to("cpu" if torch.device(device or x.device).type != "cuda" else device or x.device)
        if not x.is_cuda:
            x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    else:
        x = np.asarray(x)
        if x.dtype.kind not in "fiu":
            raise ValueError(f"{name} must be an array of real numbers, got {x.dtype}")
        if x.dtype.kind != "f" or x.dtype.itemsize > 8 or not x.dtype.isnative:
            x = x.astype(np.float64)
        x = np.ascontiguousarray(x)
        if device is not None:
            import torch

            if torch.device(device).type == "cuda":
                x = torch.tensor(x, device=device)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must have shape [N, D] with at least one row and one column, got {list(x.shape)}")
    vectors = Vectors(x)
    for part in vectors.parts():
        finite = (x[part].isfinite() if vectors.is_cuda else np.isfinite(x[part])).all(1)
        if not bool(finite.all()):
            first = part.start + int((~finite).nonzero()[0][0])
            raise ValueError(f"{name} must be finite, got NaN or infinity, first in row {first} of {len(x)}")
    return vectors


def as_gallery(gallery: ArrayLike, queries: Vectors) -> Vectors:
    """``gallery`` as vectors of the same dimension and on the same device as ``queries``."""
    device = queries.source.device if queries.is_cuda else "cpu" if is_tensor(gallery) else None
    vectors = as_vectors(gallery, "gallery", device)
    if vectors.dim != queries.dim:
        raise ValueError(f"gallery must have {queries.dim} columns like the queries, got {vectors.dim}")
    return vectors


def as_float64(x: ArrayLike, name: str) -> Tensor:
    """``x`` as a finite float64 tensor ``[N, D]`` on its own device (on the CPU where that has no float64)."""
    import torch

    return torch.as_tensor(as_vectors(x, name).rows(slice(None)))


def label_array(labels: ArrayLike, name: str, *, rows: int | None = None) -> NDArray[np.int64]:
    """``labels`` as an int64 array ``[rows]``."""
    if is_tensor(labels):  # bfloat16 has no NumPy type
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
    return array.astype(np.int64)


def as_labels(labels: ArrayLike, name: str, *, rows: int | None = None) -> Tensor:
    """``labels`` as an int64 tensor ``[rows]`` on the CPU."""
    import torch

    return torch.from_numpy(label_array(labels, name, rows=rows))


def as_count(value: object, name: str) -> int:
    """``value`` as an int of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_distance(distance: str) -> None:
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f"unknown distance {distance!r}: {did_you_mean(str(distance), ['cosine', 'euclidean'])}")


def is_tensor(x: object) -> bool:
    """Whether ``x`` is a tensor of torch, which need not be installed."""
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)
