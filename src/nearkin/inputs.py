"""Checks on what a loss is called with.

Shapes and dtypes are checked everywhere. Values (label range, NaN) are read only from CPU tensors: on an accelerator
reading them would make the host wait, so there the training loop's own finiteness check finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = Tensor | NDArray[np.integer[Any]] | Sequence[int]
"""What a loss takes as labels."""


def as_labels(labels: Labels, embeddings: Tensor, *, name: str = "labels") -> Tensor:
    """Labels as a tensor on the device of the embeddings: a numpy array or a list of integers does as well.

    Embeddings are not turned into tensors likewise, because no gradient would come back through them.

    >>> as_labels([3, 1], torch.zeros(2, 4))
    tensor([3, 1])
    """
    if isinstance(labels, Tensor):
        return labels
    _check_is_tensor(embeddings, "embeddings")
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {array.dtype} ({type(labels).__name__})")
    return torch.as_tensor(array.astype(np.int64), device=embeddings.device)


def check_embeddings(embeddings: Tensor, *, dim: int | None = None, name: str = "embeddings") -> None:
    _check_is_tensor(embeddings, name)
    if embeddings.ndim != 2:
        raise ValueError(f"{name} must have shape [N, D], got {list(embeddings.shape)}")
    if embeddings.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one row, got shape {list(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {embeddings.dtype}")
    if dim is not None and embeddings.shape[1] != dim:
        raise ValueError(
            f"{name} must have {dim} columns, as the loss was built with dim={dim}, got {embeddings.shape[1]}"
        )
    # A sum over everything is far cheaper than a look at each value; it may overflow, so only the look decides.
    if embeddings.device.type == "cpu" and not math.isfinite(embeddings.detach().sum()):
        bad = (~torch.isfinite(embeddings)).any(dim=1).nonzero()
        if len(bad):
            raise ValueError(f"{name} must be finite, got NaN or infinity in row {int(bad[0])}")


def check_labels(labels: Tensor, rows: int, *, num_classes: int | None = None, name: str = "labels") -> None:
    if labels.ndim != 1 or labels.shape[0] != rows:
        raise ValueError(f"{name} must have shape [{rows}], one per embedding, got {list(labels.shape)}")
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise ValueError(f"{name} must be integers, got {labels.dtype}")
    if num_classes is not None and labels.device.type == "cpu":
        low, high = (int(v) for v in torch.aminmax(labels))
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"{name} must lie in 0..{num_classes - 1}, as the loss was built with "
                f"num_classes={num_classes}, got {low if low < 0 else high}"
            )


def check_positive(**options: float) -> None:
    """Refuse options that are not above 0, by name.

    >>> check_positive(alpha=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: alpha must be positive, got -1.0
    """
    for name, value in options.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def check_at_least(least: float, **options: float | None) -> None:
    """Refuse options below ``least``, by name; None is none given."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_choice(*choices: str, **options: str) -> None:
    """Refuse options that are none of the ``choices``, by name.

    >>> check_choice("l2", "ball", normalisation="none")
    Traceback (most recent call last):
    ...
    ValueError: normalisation must be 'l2' or 'ball', got 'none'
    """
    for name, value in options.items():
        if value not in choices:
            first, last = ", ".join(map(repr, choices[:-1])), choices[-1]
            raise ValueError(f"{name} must be {first} or {last!r}, got {value!r}")


def _check_is_tensor(embeddings: object, name: str) -> None:
    if isinstance(embeddings, np.ndarray):
        raise ValueError(f"{name} must be a torch tensor, got a numpy array: convert it with torch.from_numpy({name})")
    if not isinstance(embeddings, Tensor):
        raise ValueError(f"{name} must be a torch tensor of shape [N, D], got {type(embeddings).__name__}")
