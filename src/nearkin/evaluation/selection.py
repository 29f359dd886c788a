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


def argsort_rows(x: Tensor) -> Tensor:
    """Order of each row ``[B, M]``, rising; NumPy has the faster one on a CPU."""
    return x.argsort(dim=1) if x.is_cuda else torch.from_numpy(np.argsort(x.numpy(), axis=1))


def spread(first: Tensor, counts: Tensor) -> Tensor:
    """``first[i], first[i] + 1, …``, ``counts[i]`` of them, one after the other.

    >>> spread(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    ends = counts.cumsum(0)
    begins = torch.repeat_interleave(first - (ends - counts), counts)
    return begins.add_(torch.arange(len(begins), device=first.device))


def places_for_sure(depth: Tensor, sampled: float) -> Tensor:
    """The place in a random sample, a share ``sampled`` of all, above which almost certainly ``depth`` of all lie.

    >>> places_for_sure(torch.tensor([100]), 0.04), places_for_sure(torch.tensor([100]), 1.0)
    (tensor([18]), tensor([104]))
    """
    mean = depth.double() * sampled
    return (mean + (5.0 * mean.sqrt() if sampled < 1.0 else 0.0) + 4.0).ceil().long()
