"""Greedy k-centre: which images of a pool become a class's next proxies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from nearkin.numerics import check_at_least


@torch.no_grad()
def greedy_k_center(pool: Tensor, existing: Tensor | None, k: int, *, valid: Tensor | None = None) -> Tensor:
    """Pick ``k`` pool members per class, each the farthest from the points so far, for all classes at once.

    ``argmax_u min_v ‖u − v‖`` over the pool, with ``v`` among the ``existing`` points and the members picked so far
    (CCP, algorithm 2), see :func:`farthest_first`. A class with fewer than ``k`` members repeats its picks in order.

    Args:
        pool: embeddings ``[C, b, D]``.
        existing: ``[C, m, D]``, or None.
        k: how many to pick.
        valid: ``[C, b]`` bool, False where a class has fewer than b images; each class needs at least one.

    Returns:
        Indices into the pool, int64 ``[C, k]``.

    Example:
        >>> pool = torch.tensor([[[0.0], [1.0], [5.0], [9.0]]])
        >>> greedy_k_center(pool, None, 3).tolist()
        [[2, 0, 3]]
        >>> greedy_k_center(pool, torch.tensor([[[9.0]]]), 2).tolist()
        [[0, 2]]
    """
    _check(pool, existing, k, valid)
    chosen = torch.stack([pick for pick, _ in islice(farthest_first(pool, existing, valid), k)], dim=1)
    picked = chosen.shape[1]
    distinct = picked if valid is None else valid.sum(1, keepdim=True).clamp(min=1, max=picked)
    turn = torch.arange(k, device=pool.device) % distinct
    return chosen.gather(1, turn.expand(len(pool), k))


def farthest_first(
    pool: Tensor, existing: Tensor | None = None, valid: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The members of ``pool [C, b, D]`` one by one, in every class the one farthest from those before.

    Without existing points the first is the member nearest to the pool's mean. Ties go to the lower index. The
    arguments are those of :func:`greedy_k_center`.

    Yields:
        Indices into the pool ``[C]``, and the squared distance ``[C, b]`` of each member to the nearest centre so far.

    Example:
        >>> [(pick.item(), far.max().item()) for pick, far in farthest_first(torch.tensor([[[0.0], [1.0], [5.0]]]))]
        [(1, 16.0), (2, 1.0), (0, 0.0)]
    """
    left = torch.ones(pool.shape[:2], dtype=torch.bool, device=pool.device) if valid is None else valid.clone()
    far = torch.full(pool.shape[:2], torch.inf, dtype=pool.dtype, device=pool.device)
    if existing is None:
        share = left.unsqueeze(2).to(pool.dtype)
        mean = (pool * share).sum(1) / share.sum(1).clamp_min(1)
        # Nearest to the mean is farthest by the negative distance; real distances replace it after the first pick.
        merit = -_squared(pool, mean)
    else:
        for centre in existing.unbind(1):
            far = torch.minimum(far, _squared(pool, centre))
        merit = far
    every = torch.arange(len(pool), device=pool.device)
    for _ in range(pool.shape[1]):
        pick = merit.masked_fill(~left, -torch.inf).argmax(dim=1)
        left.scatter_(1, pick[:, None], False)
        merit = far = torch.minimum(far, _squared(pool, pool[every, pick]))
        yield pick, far


def _squared(pool: Tensor, centre: Tensor) -> Tensor:
    """Squared distances ``[C, b]`` from differences: a member is at exactly 0 from itself."""
    return (pool - centre.unsqueeze(1)).square_().sum(2)


def _check(pool: Tensor, existing: Tensor | None, k: int, valid: Tensor | None) -> None:
    if pool.ndim != 3 or 0 in pool.shape[:2]:
        raise ValueError(f"pool must have shape [C, b, D] with at least one class and member, got {list(pool.shape)}")
    check_at_least(1, k=k)
    if existing is not None and (existing.ndim != 3 or existing.shape[::2] != pool.shape[::2]):
        raise ValueError(f"existing must have shape [{pool.shape[0]}, m, {pool.shape[2]}], got {list(existing.shape)}")
    if valid is not None and (valid.shape != pool.shape[:2] or valid.dtype != torch.bool):
        raise ValueError(f"valid must be bool {list(pool.shape[:2])}, got {valid.dtype} {list(valid.shape)}")
