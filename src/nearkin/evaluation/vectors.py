"""Embeddings and labels as they come in: tensors, arrays or memory-mapped files, checked before all else."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

ArrayLike: TypeAlias = Any

# Elements that are looked at or converted at a time.
_AT_ONCE = 1 << 20


class Vectors:
    """Rows of numbers ``[N, D]`` where they lie, converted to float64 only as far as they are asked for."""

    def __init__(self, source: Tensor, device: torch.device) -> None:
        self.source = source
        self.device = device

    def __len__(self) -> int:
        return len(self.source)

    @property
    def dim(self) -> int:
        return self.source.shape[1]

    def rows(self, which: Tensor | slice) -> Tensor:
        """Some rows in float64, on the device."""
        if isinstance(which, Tensor):
            which = which.to(self.source.device)
        return self.source[which].to(self.device).to(torch.float64)

    def copies(self) -> float:
        """How many times each row is there, on average, by its bits."""
        hashes = torch.cat([row_hashes(self.source[part]) for part in self.parts()])
        return len(self) / len(torch.unique(hashes))

    def largest(self) -> float:
        """The largest magnitude."""
        return max(float(self.source[part].abs().max()) for part in self.parts())

    def parts(self) -> list[slice]:
        """The rows, so many at a time that converting them takes little room."""
        step = max(1, _AT_ONCE // self.dim)
        return [slice(start, start + step) for start in range(0, len(self), step)]


def row_hashes(x: Tensor) -> Tensor:
    """A number for each row ``[N, D]``, the same for rows of the same bits.

    >>> first, second, third = row_hashes(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])).tolist()
    >>> first == third, first == second
    (True, False)
    """
    # Products and sums of integers wrap round, alike in every order.
    factors = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=torch.Generator().manual_seed(0)) | 1
    bits = x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return (bits * factors.to(x.device)).sum(dim=1)


def as_vectors(x: ArrayLike, name: str, device: torch.device | str | None = None) -> Vectors:
    """``x`` as finite vectors, worked with on ``device``: by default its own (the CPU where that has no float64)."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name} must be an array of real numbers, got {array.dtype}")
        if array.dtype.kind != "f" or array.dtype.itemsize > 8 or not array.dtype.isnative:
            array = array.astype(np.float64)
        with warnings.catch_warnings():
            # A memory-mapped file is often read-only, which is all that is done with it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            x = torch.from_numpy(np.ascontiguousarray(array))
    if x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be a tensor of real numbers, got {x.dtype}")
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must have shape [N, D] with at least one row and one column, got {list(x.shape)}")
    x = x.detach()
    if not x.is_floating_point():
        x = x.to(torch.float64)
    place = torch.device(device) if device is not None else x.device
    vectors = Vectors(x, torch.device("cpu") if place.type == "mps" else place)
    suspects = [part for part in vectors.parts() if not bool(x[part].isfinite().all())]
    if suspects:
        bad = [part.start + (~x[part].isfinite().all(dim=1)).nonzero()[:, 0].cpu() for part in suspects]
        count = sum(map(len, bad))
        first = int(torch.cat(bad)[0])
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {count} of {len(x)} rows, first in row {first}"
        )
    return vectors


def as_float64(x: ArrayLike, name: str) -> Tensor:
    """``x`` as a finite float64 tensor ``[N, D]`` on its own device (on the CPU where that has no float64)."""
    return as_vectors(x, name).rows(slice(None))


def as_gallery(gallery: ArrayLike, queries: Vectors) -> Vectors:
    """``gallery`` as vectors of the same dimension as ``queries``, to be worked with on the same device."""
    vectors = as_vectors(gallery, "gallery", queries.device)
    if vectors.dim != queries.dim:
        raise ValueError(f"gallery must have {queries.dim} columns like the queries, got {vectors.dim}")
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
