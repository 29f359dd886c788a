"""What a map is made of, by torch: every item's nearest ones, and the principal components to start from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 1024
"""Queries at a time."""


def principal_components(rows: Tensor) -> Tensor:
    """The first two principal components ``[N, 2]`` of ``rows [N, D]``; the largest loading of each is positive."""
    centred = rows - rows.mean(0)
    _, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes[:, -2:].flip(1).float()
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return torch.nn.functional.pad(centred @ axes, (0, 2 - axes.shape[1]))


def neighbours(
    queries: Tensor, rows: Tensor, k: int, distance: str, tell: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """The ``k`` nearest rows of each query, and how far they are.

    In float32 and without regard to ties: a map needs no more, and the exact order takes six times as long.
    """
    if distance == "cosine":
        queries, rows = torch.nn.functional.normalize(queries, dim=1), torch.nn.functional.normalize(rows, dim=1)
    squares = rows.square().sum(1)
    found = []
    for number, some in enumerate(queries.split(BLOCK)):  # type: ignore[no-untyped-call]
        near, places = (some @ rows.T).mul_(2).sub_(squares).topk(k, dim=1)
        found.append((places, (some.square().sum(1, keepdim=True) - near).clamp_min_(0).sqrt_()))
        tell(number + 1)
    indices, far = zip(*found, strict=True)
    return torch.cat(indices), torch.cat(far)


def without_itself(indices: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours without the row itself, or without the last where many copies crowd it out."""
    itself = indices == torch.arange(len(indices))[:, None]
    itself[:, -1] |= ~itself.any(dim=1)
    shape = (len(indices), indices.shape[1] - 1)
    return indices[~itself].view(shape), far[~itself].view(shape)
