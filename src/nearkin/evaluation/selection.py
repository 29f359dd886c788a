"""The few entries of a large matrix that matter: what lies above thresholds, and rows in order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def positions(mask: Tensor) -> Tensor:
    """Where a mask holds, as positions in its flattened form; NumPy finds them faster on a CPU.

    >>> positions(torch.tensor([[False, True], [True, False]]))
    tensor([1, 2])
    """
    flat = mask.flatten()
    return flat.nonzero()[:, 0] if flat.is_cuda else torch.from_numpy(np.flatnonzero(flat.numpy()))


def above(values: Tensor, rows: Tensor, columns: Tensor | None = None) -> Tensor:
    """Positions in ``values [B, C]`` of what exceeds the threshold of its row ``[B]`` or of its column ``[C]``.

    >>> above(torch.tensor([[0.0, 2.0], [1.0, 3.0]]), torch.tensor([1.0, 5.0]), torch.tensor([0.5, 5.0]))
    tensor([1, 2])
    """
    if values.is_cuda:
        mask = values > rows[:, None]
        return positions(mask if columns is None else mask.logical_or_(values > columns))
    thresholds = [rows[:, None], *([] if columns is None else [columns])]
    if values.dtype == torch.bfloat16:
        if all(bool((each >= 0).all()) for each in thresholds):
            # The bits of numbers order as integers where one of them is not negative.
            values, thresholds = values.view(torch.int16), [each.bfloat16().view(torch.int16) for each in thresholds]
        else:
            values = values.float()
    mask = np.greater(values.numpy(), thresholds[0].numpy())
    if columns is not None:
        np.logical_or(mask, np.greater(values.numpy(), thresholds[1].numpy()), out=mask)
    return torch.from_numpy(np.flatnonzero(mask))


def columns_of(x: Tensor, which: Tensor) -> Tensor:
    """Columns ``[C]`` of ``x [B, M]``; NumPy has the faster one on a CPU."""
    return x.index_select(1, which) if x.is_cuda else torch.from_numpy(np.take(x.numpy(), which.numpy(), axis=1))


def argsort_rows(x: Tensor) -> Tensor:
    """Order of each row ``[B, M]``, rising; NumPy has the faster one on a CPU."""
    return x.argsort(dim=1) if x.is_cuda else torch.from_numpy(np.argsort(x.numpy(), axis=1))


def falling(x: Tensor) -> Tensor:
    """Order of each row of float32 ``[B, M]``, the largest first.

    >>> falling(torch.tensor([[0.5, -2.0, 3.0, -torch.inf]]))
    tensor([[2, 0, 1, 3]])
    """
    if x.is_cuda:
        return x.argsort(dim=1, descending=True)
    # NumPy sorts 16 bits by counting: the lower half first, then the upper one, which keeps the order of the lower.
    order = torch.empty(x.shape, dtype=torch.int64)
    rows = max(1, (1 << 17) // x.shape[1])
    for part, out in zip(x.split(rows), order.split(rows), strict=True):  # type: ignore[no-untyped-call]
        bits = part.contiguous().view(torch.int32)
        keys = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))
        by_low = torch.from_numpy(np.argsort(keys.numpy().astype(np.uint16), axis=1, kind="stable"))
        high = (keys >> 16).short().gather(1, by_low)
        torch.gather(by_low, 1, torch.from_numpy(np.argsort(high.numpy(), axis=1, kind="stable")), out=out)
    return order


def sorted_by(*keys: Tensor) -> Tensor:
    """Order of ``[P]`` by the first key, then the second, …, rising.

    >>> sorted_by(torch.tensor([1, 0, 1]), torch.tensor([0.5, 0.7, 0.2]))
    tensor([1, 2, 0])
    """
    if not keys[0].is_cuda:
        return torch.from_numpy(np.lexsort([key.numpy() for key in reversed(keys)]))
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def at_places(x: Tensor, places: Tensor) -> Tensor:
    """The ``places [B, P]``-th largest of each row of ``x [B, M]``, from 1, in float32."""
    deepest, count = int(places.max()), x.shape[1]
    if x.is_cuda:
        largest = x.topk(deepest, dim=1).values.flip(1)
    else:
        # The bits of bfloat16 order as integers where they are not negative, which is good enough for a guess.
        entries = x.view(torch.int16) if x.dtype == torch.bfloat16 else x
        partitioned = np.partition(entries.numpy(), count - deepest, axis=1)[:, count - deepest :]
        largest = torch.from_numpy(np.sort(partitioned, axis=1)).view(x.dtype)
    return largest.gather(1, deepest - places).float()


def spread(first: Tensor, counts: Tensor) -> Tensor:
    """``first[i], first[i] + 1, …``, ``counts[i]`` of them, one after the other.

    >>> spread(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    ends = counts.cumsum(0)
    begins = torch.repeat_interleave(first - (ends - counts), counts)
    return begins.add_(torch.arange(len(begins), device=first.device))


def places_for_sure(depth: Tensor, sampled: float, *, deviations: float = 5.0) -> Tensor:
    """The place in a random sample, a share ``sampled`` of all, above which almost certainly ``depth`` of all lie.

    How certain that is, ``deviations`` says, in standard deviations of how many of the first ``depth`` are drawn.

    >>> places_for_sure(torch.tensor([100]), 0.04), places_for_sure(torch.tensor([100]), 1.0)
    (tensor([18]), tensor([104]))
    """
    mean = depth.double() * sampled
    return (mean + (deviations * mean.sqrt() if sampled < 1.0 else 0.0) + 4.0).ceil().long()
