"""Checks on what a loss is called with.

Shapes and dtypes are checked everywhere. Values (label range, NaN) are read only from CPU tensors: on an accelerator
reading them would make the host wait, so there the training loop's own finiteness check finds them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_embeddings(embeddings: Tensor, *, dim: int | None = None, name: str = "embeddings") -> None:
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
