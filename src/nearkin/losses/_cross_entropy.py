"""Cross-entropy of scaled class similarities, with or without a margin, as a value and its derivative."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def cross_entropy_slope(
    similarities: Tensor,
    labels: Tensor,
    *,
    scale: float,
    margin: float = 0.0,
    target: Tensor | None = None,
    target_slope: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of ``scale · similarities [N, C]`` and its derivative, outside autograd.

    ``margin`` is taken off the similarity to the own class. Any other function of that similarity goes in as
    ``target [N]``, which takes its place, and ``target_slope [N]``, its derivative.

    >>> import torch
    >>> cross_entropy_slope(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), scale=1.0)
    (tensor(0.3133), tensor([[-0.2689,  0.2689]]))
    """
    column = labels[:, None]
    logits = similarities * scale
    if margin:
        logits.scatter_(1, column, -scale * margin, reduce="add")
    if target is not None:
        logits.scatter_(1, column, (target * scale)[:, None])
    logits = logits.log_softmax(1)
    loss = F.nll_loss(logits, labels)
    step = scale / len(labels)
    slope = logits.exp_().mul_(step).scatter_(1, column, -step, reduce="add")
    if target_slope is not None:
        slope.scatter_(1, column, slope.gather(1, column) * target_slope[:, None])
    return loss, slope
